//! Durable execution in Rust: write a plain async function, and it runs to its end through crashes.
//!
//! ```
//! use steadfast::{Cx, Result, Steadfast};
//!
//! async fn charge_card(order: String) -> Result<String> {
//!     Ok(format!("ch_{order}"))
//! }
//!
//! async fn process_order(cx: Cx, order: String) -> Result<String> {
//!     let charge = cx.step(charge_card, order).await?; // recorded: never runs twice
//!     cx.sleep(std::time::Duration::from_millis(10)).await?; // durable: survives a restart
//!     Ok(charge)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! let fabric = Steadfast::open("sqlite::memory:").workflow(process_order).start().await?;
//! let run = fabric.start(process_order, "1001".to_owned()).id("order-1001").await?;
//! assert_eq!(run.result().await?, "ch_1001");
//! fabric.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: this crate holds no logic of its own; it gives names and types to what `core` means,
//! `store` remembers and `runtime-native` executes. Deliberately absent: macros and global state.

/// The examples of the documentation, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/governance.md")]
mod governance_examples {}

mod activity;
mod agent;
mod approval;
mod budget;
mod client;
mod command;
mod contract;
mod env;
mod event;
mod fabric;
mod flow;
mod fork;
mod governance;
mod ledger;
mod queue;
mod run;
mod schedule;
mod sink;
mod start;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod transaction;
mod trial;
mod trigger;

pub use activity::{Activity, TaskTemplate};
pub use agent::propose;
pub use budget::{Budget, BudgetState};
pub use client::{Client, RunInfo, Runs};
pub use command::{Command, CommandInfo, SubmitCall};
pub use contract::Contract;
pub use env::TokioEnv;
pub use event::{Retention, Verified};
pub use fabric::{Builder, Steadfast};
pub use flow::compensate::Undo;
pub use flow::router::Routed;
pub use fork::ForkCall;
pub use governance::Governance;
pub use queue::{Queue, QueueInfo};
pub use run::{Run, StreamReader};
pub use schedule::{Backfill, Filled, ScheduleHandle, Slot, TriggerInfo};
pub use schemars;
pub use sink::Sink;
pub use start::StartCall;
pub use steadfast_core::alert::{Alerts, Rule as AlertRule, Severity};
pub use steadfast_core::approval::{Answer, ApprovalRequest, Approved, Vote};
pub use steadfast_core::command::{
    CancellationMode, Capability, CommandType, Context, Ingress, RetryPolicy,
};
pub use steadfast_core::connector;
pub use steadfast_core::driver::{
    Kind as StepKind, Record as StepRecord, RecordState as StepState,
};
pub use steadfast_core::effect::{Compensation, EffectType};
pub use steadfast_core::envelope::Envelope;
pub use steadfast_core::event::{Anchor, Break, CloudEvent};
pub use steadfast_core::policy;
pub use steadfast_core::runtime::ExecutionRuntime;
pub use steadfast_core::schedule::{
    Calendar, Misfire, Overlap, Schedule as Cron, SlotStatus, parse_moment,
};
pub use steadfast_core::sink::{Dedup, Delivery, SinkTarget};
pub use steadfast_core::trigger::{EventMatch, Trigger, When};
pub use steadfast_core::workflow::{Call, Child, Effect, Workflow};
pub use steadfast_core::{
    ApprovalStatus, CommandStatus, Cx, EffectStatus, Error, ErrorClass, Result, Retry, RunStatus,
    Timestamp, env::Env, limits,
};
pub use steadfast_runtime_native::{Explanation, Rule};
pub use steadfast_store::Tally;
pub use steadfast_store::op::{
    ActivityRow, ApprovalRow, BudgetRow, CommandRow, DeadLetter, Decided, EffectRow, EventRow,
    Holder, InvocationRow, ListApprovals, ListBudgets, ListCommands, ListEffects, ListEvents,
    ListInvocations, Parent, RunFilter, SinkReport, SinkRow, SinkState, Sinks, TaskRow,
    TriggerState, Truth,
};
#[cfg(feature = "mysql")]
pub use transaction::mysql;
#[cfg(feature = "postgres")]
pub use transaction::postgres;
#[cfg(feature = "sqlite")]
pub use transaction::sqlite;
pub use trial::{Deed, Trial, Tried};
pub use trigger::{OnEvent, Schedule};

/// The parts below, for tools and adapters. Not covered by the promises about compatibility.
pub mod parts {
    pub use steadfast_core as core;
    pub use steadfast_runtime_native as runtime;
    pub use steadfast_store as store;
}
