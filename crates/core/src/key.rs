//! Keys: the bounded, printable strings that name things and reach primary keys.
//!
//! Invariants: a checked key is non-empty, at most [`limits::KEY_BYTES`] long and free of control
//! characters; keys are compared as bytes on every database, never folded or padded.

use crate::error::{Error, Result};
use crate::{json, limits};

/// Checks a key before it reaches the store.
pub fn check(what: &str, key: &str) -> Result<()> {
    bounded(what, key, limits::KEY_BYTES)
}

/// A key that is made of another: the two texts one after the other where that fits, and else as
/// much of them as does with a digest of the whole. What fits in no other way is 255 bytes long and
/// ends with `~` and the digest, so it is no plain key of a child, a task or a trigger's run.
pub fn derived(of: &str, rest: &str) -> String {
    let mut whole = format!("{of}{rest}");
    if whole.len() > limits::KEY_BYTES {
        let digest = json::fingerprint(&whole);
        let mut end = limits::KEY_BYTES - digest.len() - 1;
        while !whole.is_char_boundary(end) {
            end -= 1;
        }
        whole.truncate(end);
        whole.push('~');
        whole.push_str(&digest);
    }
    whole
}

/// Checks a workspace name, which is bounded more tightly because it is part of every key.
pub fn check_workspace(key: &str) -> Result<()> {
    bounded("workspace", key, limits::WORKSPACE_BYTES)
}

/// What the host's own signals begin with: people's answers. Nobody else sends such.
const OWN_SIGNALS: [&str; 2] = ["approval:", "effect:"];

/// Checks a signal's name or id. Those that carry people's answers are not for sending by hand.
pub fn check_signal(what: &str, name: &str) -> Result<()> {
    check(what, name)?;
    match OWN_SIGNALS.iter().find(|own| name.starts_with(**own)) {
        Some(own) => Err(Error::invalid(
            "SF-0122",
            format!("the {what} begins with \"{own}\", which only people's answers do"),
        )),
        None => Ok(()),
    }
}

/// What the types of the host's own events begin with.
const OWN_EVENTS: [&str; 12] = [
    "agent.",
    "command.",
    "workflow.",
    "run.",
    "policy.",
    "approval.",
    "effect.",
    "compensation",
    "cost.",
    "schedule.",
    "retention.",
    "ingress.",
];

/// Checks the type of an event that a workflow tells. What only the host knows, only the host says.
pub fn check_event(event_type: &str) -> Result<()> {
    bounded("event type", event_type, limits::EVENT_TYPE_BYTES)?;
    match OWN_EVENTS.iter().find(|own| event_type.starts_with(**own)) {
        Some(own) => Err(Error::invalid(
            "SF-0123",
            format!("event \"{event_type}\": what begins with \"{own}\" is told by the host alone"),
        )),
        None => Ok(()),
    }
}

fn bounded(what: &str, key: &str, most: usize) -> Result<()> {
    let problem = if key.is_empty() {
        "is empty".to_owned()
    } else if key.len() > most {
        format!("is {} bytes long; at most {most} are allowed", key.len())
    } else if key.chars().any(char::is_control) {
        "holds a control character".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::invalid("SF-0105", format!("the {what} {problem}")))
}

/// The last path segment of a function's type name: how plain functions get their durable names.
///
/// A closure has no name of its own and is refused: its record would be called after the
/// function around it, and two closures could not be told apart.
pub fn function_name<F>(_: &F) -> Result<&'static str> {
    let path = std::any::type_name::<F>();
    // Everything between angle brackets is about types, not about the function.
    let mut depth = 0usize;
    let plain: String = path
        .chars()
        .filter(|c| {
            depth += usize::from(*c == '<');
            let outside = depth == 0;
            depth -= usize::from(*c == '>' && depth > 0);
            outside
        })
        .collect();
    let last = plain.trim_end_matches("::").rsplit("::").next().unwrap_or_default();
    // The same name as a part of the static path, which outlives this call.
    let name = path.rfind(last).map_or("", |at| &path[at..at + last.len()]);
    if name.contains('{') || name.is_empty() {
        return Err(Error::invalid(
            "SF-0106",
            format!("{path} is a closure and has no name; pass a function, or give a name"),
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_at_the_border() {
        assert!(check("run id", &"k".repeat(255)).is_ok());
        assert_eq!(check("run id", &"k".repeat(256)).unwrap_err().code(), "SF-0105");
        assert_eq!(check("run id", "").unwrap_err().code(), "SF-0105");
        assert_eq!(check("run id", "a\0b").unwrap_err().code(), "SF-0105");
        assert!(check("run id", "order:1001 ").is_ok());
    }

    #[test]
    fn a_derived_key_always_fits_and_keeps_its_parts_apart() {
        assert_eq!(derived("run", "/7"), "run/7");
        for text in ["k", "é", "\u{1F600}"] {
            for len in 200..=limits::KEY_BYTES {
                let of = text.repeat(len / text.len());
                let made: Vec<_> = (0..200).map(|n| derived(&of, &format!("/{n}"))).collect();
                let different: std::collections::BTreeSet<_> = made.iter().collect();
                assert_eq!(different.len(), made.len());
                assert!(made.iter().all(|key| check("run id", key).is_ok()));
                assert_eq!(derived(&of, "/0"), made[0], "the same again is the same");
                assert!(made.iter().all(|key| key.len() <= limits::KEY_BYTES));
            }
        }
        // The children of two long parents that differ at their very end.
        let parent = |last: char| format!("{}{last}", "p".repeat(254));
        assert_ne!(derived(&parent('a'), "/1"), derived(&parent('b'), "/1"));
        let deep = (0..200).fold("a".to_owned(), |parent, _| derived(&parent, "/0"));
        assert!(check("run id", &deep).is_ok(), "{deep}");
        let deeper = derived(&deep, "/0");
        assert_ne!(deep, deeper);
    }

    #[test]
    fn functions_have_names_and_closures_do_not() {
        fn charge_card() {}
        assert_eq!(function_name(&charge_card).unwrap(), "charge_card");
        assert_eq!(function_name(&|| ()).unwrap_err().code(), "SF-0106");
        struct Pay<T>(T);
        impl<T> Pay<T> {
            fn charge() {}
        }
        trait Act {
            fn act() {}
        }
        impl Act for Pay<u8> {}
        fn generic<T>() {}
        let closure = || {
            fn inner() {}
            function_name(&inner).unwrap()
        };
        assert_eq!(closure(), "inner", "a function inside a closure is still a function");
        assert_eq!(function_name(&Pay::<Vec<u8>>::charge).unwrap(), "charge");
        assert_eq!(function_name(&<Pay<u8> as Act>::act).unwrap(), "act");
        assert_eq!(function_name(&generic::<std::string::String>).unwrap(), "generic");
    }
}
