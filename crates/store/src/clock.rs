//! This machine's clock, and how far it is from the database's.
//!
//! Invariants: only an offset is taken from the database, so a slow answer costs accuracy by at
//! most half its round trip. Deliberately absent: correctness by clocks. Fences do that; clocks
//! only decide when a lease is looked at.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since the epoch, by this machine's clock.
pub(crate) fn local_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// The offset to the database's clock, from a reading that began and ended at these local times.
pub(crate) fn offset_us(began: i64, database: i64, ended: i64) -> i64 {
    database - (began + (ended - began) / 2)
}
