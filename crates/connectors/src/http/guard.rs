//! Where a connector may connect to: the public internet, unless somebody said more.
//!
//! Invariants: names are resolved here, and only the addresses that passed are handed on, so the
//! address that was checked is the address that is connected to, whatever a name resolves to the
//! next time; an address written in the URL passes the same check; IPv6 spellings of an IPv4
//! address are checked as that address.
//! Deliberately absent: lists of names. Whoever controls a name controls what it resolves to.

use std::error::Error as StdError;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// How far a connector may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Public addresses only.
    Public,
    /// This machine and the networks around it as well.
    Private,
}

impl Reach {
    /// Lets an address through, or says what it is.
    pub(super) fn check(self, host: &str, address: IpAddr) -> Result<(), Refused> {
        match (self, kind(address)) {
            (Self::Public, Some(kind)) => Err(Refused { host: host.to_owned(), address, kind }),
            (Self::Public, None) | (Self::Private, _) => Ok(()),
        }
    }
}

/// An address that may not be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    host: String,
    address: IpAddr,
    kind: &'static str,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address, kind } = self;
        write!(f, "\"{host}\" is {address}, which is {kind}; allow_private() opens such networks")
    }
}

impl StdError for Refused {}

/// What is special about an address; nothing about a public one.
fn kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => kind_v4(v4),
        IpAddr::V6(v6) => match inner_v4(v6) {
            Some(v4) => kind_v4(v4),
            None => kind_v6(v6),
        },
    }
}

fn kind_v4(v4: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = v4.octets();
    match (a, b, c) {
        // "This network": Linux takes 0.0.0.0 for the machine itself.
        (0, ..) => Some("unspecified"),
        (127, ..) => Some("loopback"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("private"),
        (100, 64..=127, _) => Some("shared by a provider"),
        // Clouds answer with credentials here.
        (169, 254, _) => Some("link-local"),
        (192, 0, 0) | (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("reserved"),
        (198, 18..=19, _) => Some("for benchmarks"),
        (224..=239, ..) => Some("multicast"),
        (240..=255, ..) => Some("reserved"),
        _ => None,
    }
}

fn kind_v6(v6: Ipv6Addr) -> Option<&'static str> {
    let first = v6.segments()[0];
    match first {
        _ if v6.is_unspecified() => Some("unspecified"),
        _ if v6.is_loopback() => Some("loopback"),
        0xfc00..=0xfdff => Some("unique-local"),
        0xfe80..=0xfebf => Some("link-local"),
        0xfec0..=0xfeff => Some("site-local"),
        0xff00..=0xffff => Some("multicast"),
        // Only 2000::/3 has ever been given out.
        0x2000..=0x3fff if !(first == 0x2001 && v6.segments()[1] == 0x0db8) => None,
        _ => Some("reserved"),
    }
}

/// The IPv4 address within an IPv6 one: mapped, compatible, NAT64, 6to4.
fn inner_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = v6.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        // Only `::` and `::1` look like it without being one.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] => v4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => None,
    }
}

/// Resolves names for the HTTP library, and hands on only what may be connected to.
pub(super) struct Guard(pub(super) Reach);

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0;
        Box::pin(async move {
            let host = name.as_str();
            // Port 0 is replaced by the URL's.
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            let mut refused = None;
            let mut open = Vec::with_capacity(found.len());
            for address in found {
                match reach.check(host, address.ip()) {
                    Ok(()) => open.push(address),
                    Err(why) => refused = Some(why),
                }
            }
            match refused.filter(|_| open.is_empty()) {
                Some(why) => Err(why.into()),
                None => Ok(Box::new(open.into_iter()) as Addrs),
            }
        })
    }
}

/// The refusal somewhere in an error of the HTTP library.
pub(super) fn refusal<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Refused> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_reached() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "239.1.1.1",
            "255.255.255.255",
            "192.0.2.1",
            "198.18.0.1",
            "::",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "100::1",
        ] {
            let address: IpAddr = text.parse().unwrap();
            assert!(Reach::Public.check("host", address).is_err(), "{text}");
            assert!(Reach::Private.check("host", address).is_ok(), "{text}");
        }
        for text in ["1.1.1.1", "172.32.0.1", "169.253.1.1", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert!(Reach::Public.check("host", text.parse().unwrap()).is_ok(), "{text}");
        }
    }

    #[derive(Debug)]
    struct Around(Refused);
    impl fmt::Display for Around {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("cannot connect")
        }
    }
    impl StdError for Around {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_refusal_is_found_behind_other_errors() {
        let inner = Reach::Public.check("host", "10.0.0.1".parse().unwrap()).unwrap_err();
        assert_eq!(refusal(&Around(inner.clone())), Some(&inner));
        assert_eq!(refusal(&std::io::Error::other("else")), None);
    }
}
