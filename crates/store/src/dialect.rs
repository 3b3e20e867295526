//! Every difference between the databases, in one place.
//!
//! Conventions: statements are written once with holes `{{name}}` and parameters `:name`; a dialect
//! fills the holes and numbers the parameters; what several have in common is `{{the:name}}`. Keys
//! compare as bytes everywhere: `TEXT` on SQLite, `text COLLATE "C"` on Postgres, `VARBINARY` on
//! MySQL and MariaDB (whose binary text collations still ignore trailing spaces). SQLite needs no
//! row locks because its writer is alone.
//! Deliberately absent: anything a database cannot do is not emulated here.

/// A family of databases.
#[cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "the dialects are one table, whichever drivers are built in")
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
    /// MySQL 8+ and MariaDB 10.6+, by their common subset.
    Mysql,
}

/// Columns of `run`, in the order in which `RunRow` is read.
const RUN_COLUMNS: &str = "run_id, workflow, status, input, output, error, queue, partition_key, \
    priority, dedupe_id, app_version, worker, epoch, attempts, max_attempts, created_at, \
    updated_at, started_at, finished_at, ready_at, wake_at, parked, waits, timeout_us, \
    deadline_at, forked_from, parent, detached, generation, seed, inbox, context";
/// The same of a new run `n`.
const NEW_RUN: &str = "n.run_id, n.workflow, n.status, n.input, NULL, NULL, n.queue, \
    n.partition_key, n.priority, '', n.app_version, n.worker, n.epoch, n.epoch, n.max_attempts, \
    n.created_at, n.created_at, n.started_at, NULL, n.ready_at, n.wake_at, n.parked, n.waits, \
    n.timeout_us, n.deadline_at, '', n.parent, n.detached, 0, n.seed, 0, n.context";
/// Columns of `commands`, in the order in which `CommandRow` is read.
const COMMAND_COLUMNS: &str = "command_id, command_type, requested_by, ingress, payload, context, \
    status, cancellation_mode, idempotency_key, workflow_id, result, error, collapsed, created_at, \
    updated_at, completed_at, expires_at";
/// Columns of `triggers`, in the order in which `TriggerRow` is read.
const TRIGGER_COLUMNS: &str = "trigger_id, kind, spec, revision, source, state, reason, \
    absent_from, absent_until, cursor_at, gap, due_at, version, created_at, updated_at";
/// Columns of `trigger_slots`, in the order in which `SlotRow` is read.
const SLOT_COLUMNS: &str = "nominal_at, status, reason, lag_us, command_id, into_at, window_from, \
    revision, decided_at";
/// Columns of `domain_effects`, in the order in which `EffectRow` is read.
const EFFECT_COLUMNS: &str = "domain_effect_id, command_id, executed_by_run_id, ordinal, \
    effect_type, effect_payload, idempotency_key, status, result, error, compensates_effect_id, \
    declared_compensation, compensated_at, created_at, updated_at, completed_at";
/// Columns of `connector_invocations`, in the order in which `InvocationRow` is read.
const INVOCATION_COLUMNS: &str = "invocation_id, command_id, run_id, connector_name, agent_name, \
    intended_action, actual_action, input_digest, output_summary, side_effect, idempotency_key, \
    verification_status, error, latency_us, cost_units, created_at";
/// Columns of `approvals`, in the order in which `ApprovalRow` is read.
const APPROVAL_COLUMNS: &str = "approval_id, approval_type, action, reason, request_payload, \
    request_hash, requested_by, approvers, among, expires_at, escalate_at, command_id, run_id, \
    status, created_at, decided_at";
/// Columns of `domain_events`, in the order in which `EventRow` is read.
const EVENT_COLUMNS: &str = "event_id, command_id, purpose, event_type, payload, actor, trace_id, \
    created_at";
/// Columns of `event_sinks`, in the order in which `SinkRow` is read.
const SINK_COLUMNS: &str = "sink, kind, place, state, reason, cursor_seq, owner, epoch, \
    lease_until, created_at";
/// Columns of `step`, in the order in which a record is read.
const STEP_COLUMNS: &str = "function_id, seq, name, kind, state, input, input_digest, \
    output, error, child_run_id, attempt, started_at, completed_at, next_at";
/// Columns of `queue`, in the order in which `QueueRow` is read.
const QUEUE_COLUMNS: &str = "name, concurrency, worker_concurrency, rate_limit, rate_period_us, \
    priorities, partitioned, paused";

/// The columns of a table, by the name of their hole.
fn columns(hole: &str) -> Option<String> {
    let text = match hole {
        "run_columns" => RUN_COLUMNS,
        "new_run" => NEW_RUN,
        "step_columns" => STEP_COLUMNS,
        "step_columns_of_n" => return Some(of("n", STEP_COLUMNS)),
        "queue_columns" => QUEUE_COLUMNS,
        "command_columns" => COMMAND_COLUMNS,
        "trigger_columns" => TRIGGER_COLUMNS,
        "slot_columns" => SLOT_COLUMNS,
        "effect_columns" => EFFECT_COLUMNS,
        "invocation_columns" => INVOCATION_COLUMNS,
        "approval_columns" => APPROVAL_COLUMNS,
        "event_columns" => EVENT_COLUMNS,
        "event_columns_of_e" => return Some(of("e", EVENT_COLUMNS)),
        "sink_columns" => SINK_COLUMNS,
        _ => return None,
    };
    Some(text.to_owned())
}

/// What a move of runs changes, in the order in which MySQL evaluates it: from left to right.
fn changes(hole: &str) -> Option<&'static str> {
    Some(match hole {
        "as_claimed" => {
            "prev_status = status, status = :to, worker = :worker, epoch = epoch + :stride, \
             attempts = attempts + :attempt, started_at = COALESCE(started_at, :now), \
             wake_at = {{least}}(:lease_until, {{deadline}}), parked = 0, waits = '', \
             updated_at = :now, deadline_at = NULLIF({{deadline}}, {{never}})"
        }
        // Of many runs, each by its own row `n`, or by its place among the parameters.
        "as_ended_by_n" => {
            "prev_status = run.status, status = n.status, output = n.output, error = n.error, \
             worker = '', wake_at = 9223372036854775807, parked = 0, waits = '', \
             finished_at = n.now, updated_at = n.now"
        }
        "as_ended" => {
            "prev_status = status, worker = '', wake_at = 9223372036854775807, parked = 0, \
             waits = '', status = CASE run_id[[ WHEN :run_id THEN :to]] END, \
             output = CASE run_id[[ WHEN :run_id THEN :output]] END, \
             error = CASE run_id[[ WHEN :run_id THEN :error]] END, \
             finished_at = CASE run_id[[ WHEN :run_id THEN :now]] END, updated_at = finished_at"
        }
        // The same where all have come to the same, none of them to an error.
        "as_ended_alike" => {
            "prev_status = status, worker = '', wake_at = 9223372036854775807, parked = 0, \
             waits = '', status = :to, error = NULL, \
             output = CASE run_id[[ WHEN :run_id THEN :output]] END, \
             finished_at = CASE run_id[[ WHEN :run_id THEN :now]] END, updated_at = finished_at"
        }
        _ => return None,
    })
}

impl Dialect {
    /// The text for a hole, or `None` if there is no such hole.
    pub(crate) fn fill(self, hole: &str) -> Option<String> {
        use Dialect::{Mysql, Postgres, Sqlite};
        if let Some(column) = hole.strip_prefix("or_keep:") {
            return Some(match self {
                Sqlite | Postgres => "ON CONFLICT DO NOTHING".to_owned(),
                // Not INSERT IGNORE, which would also swallow truncation and bad values.
                Mysql => format!("ON DUPLICATE KEY UPDATE {column} = {column}"),
            });
        }
        if let Some(part) = hole.strip_prefix("the:") {
            return Some(crate::statement::fill(self, crate::statement::raw(part)));
        }
        if let Some(machine) = hole.strip_prefix("arrows:") {
            return crate::migrate::arrows(self, machine);
        }
        if let Some(texts) = hole.strip_prefix("one_of:") {
            let (column, these) = texts.split_once(' ')?;
            return Some(crate::migrate::one_of(self, column, these.split(' ')));
        }
        if let Some(text) = columns(hole)
            .or_else(|| {
                self.part(hole).or(self.way(hole)).or(self.column_type(hole)).map(str::to_owned)
            })
            .or_else(|| {
                changes(hole).or(self.limit(hole)).map(|text| crate::statement::fill(self, text))
            })
        {
            return Some(text);
        }
        let text = match (hole, self) {
            // Events without a number are few, and are found without reading the others.
            ("of_sealed", Sqlite | Postgres) => "WHERE seq IS NOT NULL",
            ("of_unsealed", Sqlite | Postgres) => "WHERE seq IS NULL",
            ("of_sealed" | "of_unsealed", Mysql) => "",
            ("unsealed", Sqlite | Postgres) => "workspace, created_at, event_id",
            ("unsealed", Mysql) => "workspace, seq, created_at, event_id",
            // A run of whose end nobody is to be told: no parent, no key to be freed, no command.
            ("untold", _) => "parent = '' AND dedupe_id = '' AND context IS NULL",
            // Behind a place in line. MySQL uses no index for a comparison of rows.
            ("behind", Sqlite | Postgres) => {
                "(sort_rank, ready_at, run_id) > (:rank, :ready_at, :after)"
            }
            ("behind", Mysql) => {
                "(sort_rank > :rank OR (sort_rank = :rank AND (ready_at > :ready_at \
                 OR (ready_at = :ready_at AND run_id > :after))))"
            }
            // A queue and a partition as one value; keys hold no line breaks.
            ("place", Sqlite | Postgres) => "queue || '\n' || partition_key",
            ("place", Mysql) => "CONCAT(queue, '\n', partition_key)",
            // The key is the table: one tree to write instead of two.
            ("small", Sqlite) => "STRICT, WITHOUT ROWID",
            ("small", Postgres | Mysql) => return self.fill("end"),
            ("end", Postgres) => "",
            ("end", Mysql) => "ENGINE=InnoDB",
            // Postgres enters a row anew when it changes, beside the old entry, and a page that is
            // full by then is first searched for what can go: the half that stays free is for that.
            ("roomy", Postgres) => "WITH (fillfactor = 50)",
            ("roomy", Sqlite | Mysql) => "",
            // SQLite copies the pages that a statement changes, in case it fails half-way, if it
            // could write several rows: whatever selects what it inserts, too. Whoever meets an
            // error takes back more than the statement, so it need not.
            ("or_fail", Sqlite) => "OR FAIL",
            ("or_fail", Postgres | Mysql) => "",
            // By their keys, whatever Postgres thinks of a workspace's size: see `together.sql`.
            ("these_runs", Sqlite | Mysql) => "workspace = :workspace AND run_id IN (:run_ids)",
            ("these_runs", Postgres) => {
                "(workspace, run_id) IN (SELECT w, r FROM \
                 unnest(array_fill(:workspace, ARRAY[cardinality(:run_ids)]), :run_ids) \
                 AS t (w, r))"
            }
            ("for_update" | "skip_locked", Sqlite) => "",
            ("for_update", Postgres | Mysql) => "FOR UPDATE",
            ("skip_locked", Postgres | Mysql) => "FOR UPDATE SKIP LOCKED",
            _ => return None,
        };
        Some(text.to_owned())
    }

    /// The type of a column.
    fn column_type(self, hole: &str) -> Option<&'static str> {
        use Dialect::{Mysql, Postgres, Sqlite};
        Some(match (hole, self) {
            ("key", Sqlite) => "TEXT",
            ("key", Postgres) => "text COLLATE \"C\"",
            ("key", Mysql) => "VARBINARY(255)",
            ("ws", Sqlite) => "TEXT",
            ("ws", Postgres) => "text COLLATE \"C\"",
            ("ws", Mysql) => "VARBINARY(64)",
            ("text", Sqlite | Postgres) => "TEXT",
            ("text", Mysql) => "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            ("int", Sqlite) => "INTEGER",
            ("int", Postgres | Mysql) => "BIGINT",
            ("end", Sqlite) => "STRICT",
            _ => return None,
        })
    }

    /// What a run's deadline and a worker's workflows allow.
    fn limit(self, hole: &str) -> Option<&'static str> {
        use Dialect::{Mysql, Postgres, Sqlite};
        Some(match (hole, self) {
            ("never", _) => "9223372036854775807",
            // What a worker can execute: its workflows, of its version or of any.
            ("for_worker", _) => "app_version IN ('', :app_version) AND workflow IN (:workflows)",
            ("least", Sqlite) => "MIN",
            ("least", Postgres | Mysql) => "LEAST",
            // When a run that is claimed now has to end: by its deadline or its time limit,
            // whichever is earlier. A later claim never moves it.
            ("deadline", _) => {
                "{{least}}(COALESCE(deadline_at, {{never}}), CASE WHEN timeout_us IS NULL \
                 OR timeout_us > {{never}} - :now THEN {{never}} ELSE :now + timeout_us END)"
            }
            // An owner's write is refused after the deadline: every read shows the run as ended.
            ("in_time", _) => "(deadline_at IS NULL OR deadline_at > :now)",
            ("in_time_of_n", _) => "(run.deadline_at IS NULL OR run.deadline_at > n.now)",
            // Without a lease or a wait that ends earlier, a run is looked at when it is overdue.
            ("until_deadline", _) => "COALESCE(deadline_at, 9223372036854775807)",
            _ => return None,
        })
    }

    /// The condition of an index that holds a part of its table, or of a statement that uses it.
    fn part(self, hole: &str) -> Option<&'static str> {
        use Dialect::{Mysql, Postgres, Sqlite};
        Some(match (hole, self) {
            // Runs that are over, the most, need not be in the indexes by which work is found. What
            // uses such an index repeats its condition. MySQL has none of them.
            ("of_active", Sqlite | Postgres) => "WHERE finished_at IS NULL",
            ("and_active", Sqlite | Postgres) => "AND finished_at IS NULL",
            ("of_waking", Sqlite | Postgres) => "WHERE wake_at < 9223372036854775807",
            ("and_waking", Sqlite | Postgres) => "AND wake_at < 9223372036854775807",
            ("of_due", Sqlite | Postgres) => "WHERE due_at < 9223372036854775807",
            ("and_due", Sqlite | Postgres) => "AND due_at < 9223372036854775807",
            ("of_active" | "and_active" | "of_waking" | "and_waking", Mysql) => "",
            ("of_due" | "and_due", Mysql) => "",
            // All runs. Postgres, while it thinks the table small, would also look for a single run
            // in the index of lists, so whoever does not list does not say this.
            ("of_listed", Postgres) => "WHERE created_at > -9223372036854775807",
            ("and_listed", Postgres) => "AND created_at > -9223372036854775807",
            ("of_listed" | "and_listed", Sqlite | Mysql) => "",
            // Most runs have no parent, and need not be in an index by it. MySQL has none such.
            ("of_children", Sqlite | Postgres) => "WHERE parent <> ''",
            ("of_children", Mysql) => "",
            _ => return None,
        })
    }

    /// The index by which a statement goes, where that is not left to the database.
    fn way(self, hole: &str) -> Option<&'static str> {
        use Dialect::{Mysql, Postgres, Sqlite};
        Some(match (hole, self) {
            ("by_unsealed", Sqlite) => "INDEXED BY domain_events_unsealed",
            ("by_unsealed", Mysql) => "FORCE INDEX (domain_events_unsealed)",
            // MySQL and MariaDB weigh every index anew at every execution, which takes as long as
            // the execution.
            ("by_key", Mysql) => "FORCE INDEX (PRIMARY)",
            ("by_line", Mysql) => "FORCE INDEX (run_claim)",
            ("by_key" | "by_line", Sqlite | Postgres) | ("by_unsealed", Postgres) => "",
            _ => return None,
        })
    }

    /// Whether a list is one value.
    pub(crate) fn has_arrays(self) -> bool {
        self == Dialect::Postgres
    }

    /// The placeholder for parameter `n` (from 1). Postgres is told the type, where the statement
    /// does not say it, because it cannot always infer one.
    pub(crate) fn placeholder(self, n: usize, ty: &str) -> String {
        match self {
            Dialect::Sqlite => format!("?{n}"),
            Dialect::Postgres if ty.is_empty() => format!("${n}"),
            Dialect::Postgres => format!("${n}::{ty}"),
            Dialect::Mysql => "?".to_owned(),
        }
    }
}

/// Columns, each with its table's name before it.
fn of(table: &str, columns: &str) -> String {
    let named = columns.split(',').map(|column| format!("{table}.{}", column.trim()));
    named.collect::<Vec<_>>().join(", ")
}
