//! What MySQL and MariaDB errors mean: the table of error numbers.

use mysql_async::{DriverError, Error, IoError};

use crate::session::Fault;

/// The meaning of a server's error number.
pub(super) fn of_number(number: u16) -> Fault {
    match number {
        // Deadlock, lock wait timeout, record changed since it was read.
        1213 | 1205 | 1020 => Fault::Contended,
        // The disk, or the space that a table may have, is full.
        1021 | 1114 => Fault::Full,
        // Too many connections (of this user), out of memory, aborted, shutting down,
        // killed.
        1040 | 1203 | 1226 | 1037 | 1038 | 1041 | 1152 | 1053 | 1927 => Fault::Down,
        1077..=1080 | 1158..=1161 | 1184 => Fault::Down,
        // A statement that was killed, or ran out of the time the server allows.
        1317 | 1969 | 3024 => Fault::Down,
        // Gone away, lost during a query; idle too long.
        2006 | 2013 | 4031 => Fault::Down,
        // Writes on a server that is read-only: after a failover the connection leads to a replica.
        1290 | 1792 | 1836 => Fault::Down,
        _ => Fault::Final,
    }
}

/// The meaning of an error of the driver.
pub(super) fn of(error: &Error) -> Fault {
    match error {
        Error::Server(server) => of_number(server.code),
        Error::Io(IoError::Io(_)) => Fault::Down,
        Error::Driver(
            DriverError::ConnectionClosed
            | DriverError::PacketOutOfOrder
            | DriverError::PoolDisconnected
            | DriverError::UnexpectedPacket { .. },
        ) => Fault::Down,
        // Without the TLS feature there is no other kind of I/O error.
        #[cfg(feature = "mysql-tls")]
        Error::Io(IoError::Tls(_)) => Fault::Final,
        Error::Driver(_) | Error::Other(_) | Error::Url(_) => Fault::Final,
    }
}

/// The error's own words, and its number.
pub(super) fn text(error: &Error) -> String {
    match error {
        Error::Server(server) => format!("{} (error {})", server.message, server.code),
        other => other.to_string(),
    }
}

/// A wrong name or password.
pub(super) fn is_login(error: &Error) -> bool {
    matches!(error, Error::Server(server) if [1045, 1698, 1044, 1862].contains(&server.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R83
    #[test]
    fn r083_contention_is_retried_on_the_same_connection() {
        for number in [1213, 1205, 1020] {
            assert_eq!(of_number(number), Fault::Contended, "{number}");
        }
    }

    /// R83
    #[test]
    fn r083_lost_busy_and_read_only_servers_are_retryable() {
        let numbers = [2006, 2013, 1053, 1077, 1078, 1079, 1080, 1040, 1290, 1792, 1836, 1927];
        for number in numbers {
            assert_eq!(of_number(number), Fault::Down, "{number}");
        }
    }

    /// R82 R83
    #[test]
    fn r083_a_full_disk_is_tried_again_soon() {
        for number in [1021, 1114] {
            assert_eq!(of_number(number), Fault::Full, "{number}");
        }
        assert!(Fault::Full.error(String::new()).is_retryable());
    }

    /// R83
    #[test]
    fn r083_network_errors_are_retryable() {
        use std::io::ErrorKind;
        let kinds = [
            ErrorKind::ConnectionReset,
            ErrorKind::ConnectionRefused,
            ErrorKind::TimedOut,
            ErrorKind::UnexpectedEof,
        ];
        for kind in kinds {
            assert_eq!(of(&Error::from(std::io::Error::from(kind))), Fault::Down, "{kind}");
        }
        assert_eq!(of(&Error::Driver(DriverError::ConnectionClosed)), Fault::Down);
    }

    /// R83
    #[test]
    fn r083_everything_else_is_final() {
        for number in [1062, 1048, 1406, 1452, 4025, 3819, 1045, 1049, 1064, 1146] {
            assert_eq!(of_number(number), Fault::Final, "{number}");
        }
        assert_eq!(of(&Error::Driver(DriverError::PacketTooLarge)), Fault::Final);
    }
}
