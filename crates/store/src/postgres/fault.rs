//! What Postgres errors mean: the table of SQLSTATEs.

use std::error::Error as _;

use tokio_postgres::error::SqlState;

use crate::session::Fault;

/// The meaning of an SQLSTATE.
pub(super) fn of_state(state: &str) -> Fault {
    match state {
        // Serialization failure, deadlock, lock not available.
        "40001" | "40P01" | "55P03" => Fault::Contended,
        // Writes on a server that is read-only: after a failover the connection leads to a replica.
        "25006" => Fault::Down,
        // The server ends sessions that sit in a transaction; ours did, so the network or we
        // stalled.
        "25P03" => Fault::Down,
        // No space left on the server's disk.
        "53100" => Fault::Full,
        // Connection exceptions, insufficient resources, operator intervention.
        _ if ["08", "53", "57"].iter().any(|class| state.starts_with(class)) => Fault::Down,
        _ => Fault::Final,
    }
}

/// The meaning of an error of the driver.
pub(super) fn of(error: &tokio_postgres::Error) -> Fault {
    match error.code() {
        Some(state) => of_state(state.code()),
        None if error.is_closed() || error.source().is_some_and(is_io) => Fault::Down,
        None => Fault::Final,
    }
}

/// Whether rows were sent as they were when the connection learned of their table, which has other
/// columns now.
pub(super) fn is_out_of_date(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::DATATYPE_MISMATCH)
}

/// Whether the network failed, whichever way: reset, refused, timed out, cut off.
fn is_io(source: &(dyn std::error::Error + 'static)) -> bool {
    source.is::<std::io::Error>()
}

/// The error's own words, and its state.
pub(super) fn text(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => {
            let detail = db.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
            format!("{}{detail} (SQLSTATE {})", db.message(), db.code().code())
        }
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// Whether a failed connection will keep failing: who we are or what we ask for is wrong.
pub(super) fn is_final_at_open(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(state) => of_state(state.code()) == Fault::Final,
        // The driver's own refusals (TLS, authentication it does not know) name no network error.
        None => !(error.is_closed() || is_timeout(error) || error.source().is_some_and(is_io)),
    }
}

fn is_timeout(error: &tokio_postgres::Error) -> bool {
    error.source().is_none() && error.to_string().contains("timed out")
}

/// An SQLSTATE for a wrong name or password.
pub(super) fn is_login(state: &SqlState) -> bool {
    state.code().starts_with("28")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R83
    #[test]
    fn r083_connection_resource_and_operator_classes_are_retryable() {
        for state in ["08000", "08003", "08006", "53200", "53300", "57014", "57P01", "57P03"] {
            assert_eq!(of_state(state), Fault::Down, "{state}");
        }
        assert_eq!(of_state("25006"), Fault::Down);
    }

    /// R83
    #[test]
    fn r083_contention_is_retried_on_the_same_connection() {
        for state in ["40001", "40P01", "55P03"] {
            assert_eq!(of_state(state), Fault::Contended, "{state}");
        }
    }

    /// R83
    #[test]
    fn r083_everything_else_is_final() {
        for state in [
            "23505", "23503", "23514", "22021", "25P02", "28P01", "3D000", "42804", "42P01",
            "XX000",
        ] {
            assert_eq!(of_state(state), Fault::Final, "{state}");
        }
    }

    /// R82 R83
    #[test]
    fn r083_a_full_disk_is_tried_again_soon() {
        assert_eq!(of_state("53100"), Fault::Full);
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
            assert!(is_io(&std::io::Error::from(kind)), "{kind}");
        }
        assert!(!is_io(&std::fmt::Error));
    }
}
