//! The nightly sync: a vendor's sales of a day, from its REST API into a partition of the
//! warehouse.
//!
//! ```text
//! config     the file that describes vendors, warehouse, schedule, policies
//! vendor     one page of a vendor's answer: checked, mapped, spooled
//! snapshot   the pages put together, their hash, and whether it is stale
//! workflow   sync_vendor_sales: fetch, hash, compare, load, confirm
//! job        contract, policies, connectors and schedules made of the configuration
//! warehouse  the tables it writes to
//! status     what became of the last nights
//! simulator  a vendor to try it on
//! leap       a clock that skips the waiting
//! ```
//!
//! Invariants: a partition holds one snapshot, whole; what is known of it is written in the same
//! transaction of the warehouse; every request to the vendor is judged, counted and in the ledger.
//! Deliberately absent: code for a vendor. A second one is a second section of the file.

pub mod canon;
pub mod config;
pub mod job;
pub mod leap;
pub mod simulator;
pub mod snapshot;
pub mod status;
pub mod vendor;
pub mod warehouse;
pub mod workflow;

pub use config::Config;
pub use job::install;
pub use steadfast_core::decimal::Decimal;
pub use workflow::{Order, Outcome, Report, sync_vendor_sales};
