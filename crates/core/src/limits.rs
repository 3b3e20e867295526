//! Every limit, in one place, each with its reason.
//!
//! Invariants: a value beyond a limit is refused with a named error before it reaches SQL, so no
//! database ever truncates or drops it. Deliberately absent: limits that nothing checks.

use std::time::Duration;

/// The pause before a task or thread that has panicked is begun anew: one that panics at once, each
/// time, costs ten reports a second.
pub const RESTART: Duration = Duration::from_millis(100);
/// Longest key (run id, names, partition, deduplication id), in bytes. Three such keys and a
/// workspace fit MySQL's 3,072-byte index limit.
pub const KEY_BYTES: usize = 255;
/// The slots of a schedule whose commands are looked at before the next one begins.
pub const OVERLAP_SLOTS: usize = 32;
/// From this priority on, runs stand behind all others on every queue: what is filled in by hand.
pub const BACKGROUND_PRIORITY: i64 = 1_000;
/// Bytes in the type of an event.
pub const EVENT_TYPE_BYTES: usize = 64;
/// Longest workspace name: it is part of every primary key.
pub const WORKSPACE_BYTES: usize = 64;
/// Largest payload (input, output, signal, value) in bytes of JSON. MariaDB's default packet is
/// 16 MiB and a batch carries several payloads; beyond this a reference belongs in the payload.
pub const PAYLOAD_BYTES: usize = 2 * 1024 * 1024;
/// Deepest JSON nesting; recursion in readers is bounded by it.
pub const JSON_DEPTH: usize = 64;
/// Longest error message kept, in bytes; more is cut at a character border.
pub const MESSAGE_BYTES: usize = 8 * 1024;
/// Most steps a run may record: replay loads them all, so beyond this `continue_as_new` is due.
pub const STEPS_PER_RUN: u64 = 100_000;
/// Most pending signals of a run read at once; the rest follow when those are consumed.
pub const SIGNALS_PER_LOAD: usize = 1000;
/// Most runs taken by one claim: bounds the time a claim holds its locks.
pub const CLAIM_BATCH: usize = 256;
/// Most partitions looked at by one claim: bounds its time. Behind that many throttled keys in a
/// row, a ready one waits until a place is freed.
pub const CLAIM_PARTITIONS: usize = 1024;
/// Most rows a page of any listing returns.
pub const PAGE_ROWS: usize = 1000;
/// Most other workers whose reports a worker reads at once: with more, it reads them in turn.
pub const PEERS: usize = 100;
/// Most changes shared by one commit: bounds the latency of the first in the batch.
pub const COMMIT_BATCH: usize = 512;
/// Recovery attempts of a run before it is parked as RETRIES_EXCEEDED, unless the workflow says
/// otherwise.
pub const RECOVERY_ATTEMPTS: u32 = 100;
/// Rows removed by one retention batch: keeps the locks short.
pub const PURGE_BATCH: usize = 500;
/// Longest template (of a key, or one text of a payload), in bytes: more is a payload of its own.
pub const TEMPLATE_BYTES: usize = 4 * 1024;
/// Elements of lists that a filter may walk through for one event: a few milliseconds.
pub const FILTER_STEPS: usize = 100_000;
/// Most attempts a retry policy may ask for: beyond it a schedule is meant.
pub const RETRY_ATTEMPTS: u32 = 100;
/// Largest cost of one call, in units: thousands of such calls add up within 64 bits.
pub const COST_UNITS: u64 = 1_000_000_000_000_000;
/// Most missed slots that `catchup` may fire: each is a command.
pub const CATCHUP_SLOTS: u32 = 1000;
/// Most slots decided by one commit: a longer gap is taken in several.
pub const SLOT_BATCH: usize = 500;
/// Longest trigger id: with a moment behind it, it becomes a run's id.
pub const TRIGGER_BYTES: usize = 200;
/// Most events given their numbers by one commit.
pub const SEAL_BATCH: usize = 256;
/// Least time an audit event is kept, in days.
pub const AUDIT_DAYS: u32 = 90;
/// Most events of a sink that wait for another attempt, or behind one that does: beyond it the sink
/// reads no further, and what follows waits in its place.
pub const PARKED_EVENTS: usize = 1000;
/// Most events of a sink taken at a time: they are in memory together.
pub const OUTBOX_BATCH: usize = 100;
/// Attempts to send an event before it becomes a dead letter.
pub const DELIVERY_ATTEMPTS: u32 = 12;
/// Calls that a debounce key remembers: one that is repeated, because its answer was lost, is found
/// among them. Beyond that many calls in between it counts as another call.
pub const DEBOUNCE_CALLS: usize = 32;
/// How long a shutdown, after its time, waits for attempts to be aborted and runs to be given back:
/// a few commits. What takes longer does not let itself be aborted.
pub const GIVING_BACK: Duration = Duration::from_secs(2);
/// Longest name of a sink: with a number behind it, it becomes part of an event's id.
pub const SINK_BYTES: usize = 100;
