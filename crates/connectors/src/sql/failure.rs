//! What a database's errors mean, whichever driver brings them.
//!
//! Invariants: what may pass is transient, what the user may not do or is not there is permanent,
//! what is wrong with the rows is a validation error; an unknown code is permanent, since repeating
//! what nobody understands helps nobody.
//! Deliberately absent: the server's details, which quote rows.

use std::fmt;

use steadfast_core::error::{Error, ErrorClass};

use crate::causes::causes;

/// It may pass.
pub(super) fn passing(why: impl fmt::Display) -> Error {
    let text = format!("the database cannot be used right now: {why}");
    Error::new(ErrorClass::TransientConnectorError, "SF-0722", text)
}

/// It took too long.
pub(super) fn late(why: impl fmt::Display) -> Error {
    let text = format!("the database gave no answer in time: {why}");
    Error::new(ErrorClass::Timeout, "SF-0722", text)
}

/// It will not pass.
pub(super) fn lasting(why: impl fmt::Display) -> Error {
    let text = format!("the database refuses: {why}");
    Error::new(ErrorClass::PermanentConnectorError, "SF-0723", text)
}

/// The rows are wrong.
pub(super) fn unfit(why: impl fmt::Display) -> Error {
    Error::invalid("SF-0724", format!("the rows do not fit the table: {why}"))
}

pub(super) fn postgres(error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(answer) => by_sqlstate(answer.code().code(), answer.message()),
        // A value that cannot be encoded never left; everything else is about the connection.
        None => passing(causes(error)),
    }
}

fn by_sqlstate(state: &str, message: &str) -> Error {
    let why = format!("{state} {message}");
    match state {
        // A statement's own time is up, or others were first: the transaction was taken back.
        "57014" => late(why).without_effect(),
        "40001" | "40P01" | "55P03" | "25006" => passing(why).without_effect(),
        "42501" | "42P01" => lasting(why),
        _ => match state.get(..2) {
            Some("08" | "53" | "57" | "58" | "XX") => passing(why),
            Some("21" | "22" | "23" | "42") => unfit(why),
            _ => lasting(why),
        },
    }
}

pub(super) fn mysql(error: &mysql_async::Error) -> Error {
    use mysql_async::Error as E;
    match error {
        E::Server(answer) => by_number(answer.code, &answer.state, &answer.message),
        E::Io(error) => passing(error),
        E::Driver(error) => passing(error),
        E::Other(error) => lasting(error),
        // The text may be the URL, with what is in it.
        E::Url(_) => lasting("the URL cannot be used"),
    }
}

fn by_number(number: u16, state: &str, message: &str) -> Error {
    let why = format!("{number} {message}");
    match number {
        // Deadlock, lock wait, changed under us; too many connections.
        1213 | 1205 | 1020 | 1040 | 1203 | 1226 => passing(why).without_effect(),
        // Connections lost, shutdown.
        2006 | 2013 | 1053 | 1927 => passing(why),
        // Read-only after a failover; out of room.
        1290 | 1792 | 1836 | 1021 | 1037 | 1041 | 1114 => passing(why).without_effect(),
        // A statement's own time is up, on either server.
        1969 | 3024 => late(why).without_effect(),
        // Defaults, ranges, lengths, types and checks that have no SQLSTATE of their own.
        1048 | 1054 | 1062 | 1136 | 1264 | 1265 | 1292 | 1364 | 1366 | 1406 => unfit(why),
        1451 | 1452 | 3140 | 3819 | 4025 => unfit(why),
        _ => match state.get(..2) {
            Some("08" | "40") => passing(why),
            Some("21" | "22" | "23") => unfit(why),
            _ => lasting(why),
        },
    }
}

pub(super) fn sqlite(error: &rusqlite::Error) -> Error {
    use rusqlite::ErrorCode as C;
    let why = error.to_string();
    match error.sqlite_error_code() {
        Some(C::DatabaseBusy | C::DatabaseLocked) => passing(why).without_effect(),
        Some(C::DiskFull | C::SystemIoFailure) => passing(why),
        Some(C::OutOfMemory | C::SchemaChanged) => passing(why),
        Some(C::OperationInterrupted) => late(why),
        Some(C::ConstraintViolation | C::TypeMismatch | C::TooBig) => unfit(why),
        // Without a code of its own: a column or a key that is not there.
        Some(C::Unknown) if !why.contains("no such table") => unfit(why),
        _ => lasting(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R46, R117, R118
    #[test]
    fn r118_what_may_pass_is_tried_again_and_nothing_else() {
        for state in ["08006", "53300", "57P01", "57P03", "40001", "40P01", "55P03", "XX000"] {
            assert!(by_sqlstate(state, "").is_retryable(), "{state}");
        }
        for (state, code) in [
            ("42501", "SF-0723"),
            ("28P01", "SF-0723"),
            ("3D000", "SF-0723"),
            ("42P01", "SF-0723"),
            ("23505", "SF-0724"),
            ("22P02", "SF-0724"),
            ("42703", "SF-0724"),
            ("42P10", "SF-0724"),
        ] {
            let error = by_sqlstate(state, "");
            assert_eq!((error.code(), error.is_retryable()), (code, false), "{state}");
        }
        assert_eq!(by_sqlstate("57014", "").class(), ErrorClass::Timeout);
        for number in [1213, 1205, 2006, 2013, 1290] {
            assert!(by_number(number, "HY000", "").is_retryable(), "{number}");
        }
        for (number, state, code) in [
            (1142, "42000", "SF-0723"),
            (1045, "28000", "SF-0723"),
            (1146, "42S02", "SF-0723"),
            (1062, "23000", "SF-0724"),
            (1366, "HY000", "SF-0724"),
            (1406, "22001", "SF-0724"),
        ] {
            let error = by_number(number, state, "");
            assert_eq!((error.code(), error.is_retryable()), (code, false), "{number}");
        }
    }
}
