//! The memory of Steadfast: some thirty named atomic operations, on SQLite, Postgres and
//! MySQL/MariaDB.
//!
//! Invariants: one operation is one transaction, a value in and a value out; no transaction handle
//! leaks upward; every owner's write carries its fence; a repeated operation after an unknown
//! outcome recognises its own success; all SQL of the repository is in `sql/*.sql`, written once.
//! Deliberately absent: a query builder, an ORM, and any decision about what a run means.

// Without a database there is nothing to apply operations to; only the operations are left.
#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code)
)]

mod append_only;
mod apply;
mod backend;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod bell;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod busy;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod clock;
mod dialect;
mod error;
#[cfg(feature = "fault")]
#[doc(hidden)]
pub mod fault;
#[cfg(not(feature = "fault"))]
mod fault;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod flight;
mod gate;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod keep;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod lane;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod long_way;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod lookout;
mod migrate;
pub mod op;
mod open;
#[cfg(not(feature = "sabotage"))]
mod sabotage;
#[cfg(feature = "sabotage")]
pub mod sabotage;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod session;
mod statement;
mod tally;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod work;

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use error::Error;
pub use op::{Op, Reply, Store, StoreExt};
pub use open::{OpenStore, open};
pub use tally::Tally;
