//! Who asks for an operation, and what it shows for its right to.
//!
//! Invariants: an operation declared as an owner's has a lease in its type, or it does not compile;
//! an execution of a run is given nothing but those and reads ([`ByOwner`]), so it cannot ask for
//! what only an operator may, whatever it believes about its run.
//! Deliberately absent: permissions of people. Those are policies, and asked before.

use super::run::Lease;
use super::{Operation, Tell};

/// What an operation shows for its right to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right<'a> {
    /// It only reads.
    Read,
    /// The owner of a run shows its lease. A newer claim makes it void.
    Owner(&'a Lease),
    /// A worker names itself, to become the owner of runs or to remain it.
    Worker(&'a str),
    /// Anyone: what clients, operators and schedulers ask for. The store looks at the state it
    /// finds, and at nothing that the caller believes.
    Caller,
}

/// What the execution of a run may ask for: reads, and what carries its lease.
///
/// ```
/// use steadfast_store::op::{ByOwner, Finish, GetRun, TimeOut};
/// fn may_be_asked<O: ByOwner>() {}
/// may_be_asked::<TimeOut>();
/// may_be_asked::<Finish>();
/// may_be_asked::<GetRun>();
/// ```
///
/// What ends a run without a lease is not among it:
///
/// ```compile_fail,E0277
/// use steadfast_store::op::{ByOwner, Cancel};
/// fn may_be_asked<O: ByOwner>() {}
/// may_be_asked::<Cancel>();
/// ```
pub trait ByOwner: Operation {}

/// An event for the audit log says what was seen. That stays true after the lease is void, it moves
/// no run, and its id is written once.
impl ByOwner for Tell {}

/// The right of an operation, from its own fields.
macro_rules! right {
    (Read, $op:ident) => {{
        let _ = $op;
        Right::Read
    }};
    (Owner, $op:ident) => {
        Right::Owner(&$op.lease)
    };
    (Worker, $op:ident) => {
        Right::Worker(&$op.worker)
    };
    (Caller, $op:ident) => {{
        let _ = $op;
        Right::Caller
    }};
}

/// Says of an operation whether an execution may ask for it.
macro_rules! by_owner {
    (Read, $name:ident) => {
        impl ByOwner for $name {}
    };
    (Owner, $name:ident) => {
        impl ByOwner for $name {}
    };
    ($other:ident, $name:ident) => {};
}

pub(super) use {by_owner, right};
