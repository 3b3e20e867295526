//! Schema versions: what each step does, and which versions this program can work with.
//!
//! Invariants: steps run under a lock that other processes respect; a schema newer than this
//! program is refused and left alone; on MySQL, where DDL commits by itself, each statement is
//! skipped if what it creates is there already, so an interrupted migration is taken up where it
//! stopped.

use std::collections::BTreeSet;

use steadfast_core::schedule::SlotStatus;
use steadfast_core::{ApprovalStatus, CommandStatus, EffectStatus, RunStatus};

use crate::append_only;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::statement;

/// The version this program writes.
pub(crate) const VERSION: i64 = 6;
/// The table that holds the version; created first, so that it can be asked.
pub(crate) const VERSION_TABLE: &str = "steadfast_schema";
/// The key of the lock that keeps two processes from migrating at once.
#[cfg(feature = "postgres")]
pub(crate) const LOCK: i64 = 0x0005_7EAD_FA57;

/// One statement of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ddl {
    /// The table or index it creates; empty for statements that may simply run again.
    pub(crate) creates: String,
    /// The statement.
    pub(crate) sql: String,
}

/// The statements that lead from a version to the current one.
pub(crate) fn statements(dialect: Dialect, from: i64) -> Result<Vec<Ddl>, Error> {
    if from > VERSION {
        return Err(Error::Incompatible(format!(
            "the schema has version {from}, this program knows {VERSION}; upgrade the program"
        )));
    }
    let mut ddl = Vec::new();
    if from < 1 {
        // Nothing is there, so everything is made as it is today.
        for name in statement::schema().filter(|name| name.starts_with("create_")) {
            ddl.push(create(dialect, name));
        }
        ddl.extend(append_only::triggers(dialect));
        return Ok(ddl);
    }
    // A table that is made now has all of its columns.
    let made_in = [
        (3, "add_domain_events"),
        (3, "add_activity_runs"),
        (4, "add_meters"),
        (4, "add_connector_invocations"),
    ];
    let whole =
        |name: &str| made_in.iter().any(|(made, table)| from < *made && name.starts_with(table));
    let added = ADDED.iter().filter(|(since, name)| from < *since && !whole(name));
    ddl.extend(added.map(|(_, name)| create(dialect, name)));
    if from < 4 {
        ddl.extend(append_only::triggers(dialect));
    }
    Ok(ddl)
}

/// What a version brought that the one before it did not have.
const ADDED: &[(i64, &str)] = &[
    (2, "create_run_parent"),
    (3, "add_run_context"),
    (3, "create_commands"),
    (3, "create_commands_due"),
    (3, "create_command_dependencies"),
    (3, "create_command_dependents"),
    (3, "create_command_duplicates"),
    (3, "create_domain_events"),
    (3, "create_domain_events_list"),
    (3, "create_triggers"),
    (3, "create_triggers_due"),
    (3, "create_trigger_slots"),
    (3, "create_activity_runs"),
    (3, "create_activity_runs_list"),
    (3, "create_task_instances"),
    (3, "create_task_instances_run"),
    (4, "add_domain_events__seq"),
    (4, "add_domain_events__hash"),
    (4, "create_domain_events_seq"),
    (4, "create_domain_events_unsealed"),
    (4, "create_event_chain"),
    (4, "create_event_tombstones"),
    (4, "create_event_sinks"),
    (4, "create_event_parked"),
    (4, "create_event_parked_due"),
    (4, "create_event_parked_seq"),
    (4, "create_event_marks"),
    (4, "create_domain_effects"),
    (4, "create_domain_effects_command"),
    (4, "create_domain_effects_key"),
    (4, "create_domain_effects_unknown"),
    (4, "create_connector_invocations"),
    (4, "create_connector_invocations_list"),
    (4, "create_approvals"),
    (4, "create_approvals_due"),
    (4, "create_approvals_command"),
    (4, "create_approvals_list"),
    (4, "create_approval_votes"),
    (4, "create_meters"),
    (5, "create_triggers_kind"),
    (5, "add_activity_runs__scheduled_for"),
    (5, "add_activity_runs__fired_at"),
    (5, "add_activity_runs__window_start"),
    (5, "add_activity_runs__window_end"),
    (5, "add_activity_runs__status"),
    (5, "add_activity_runs__error"),
    (5, "add_activity_runs__finished_at"),
    (6, "add_meters__past_at"),
    (6, "set_meters__past_at"),
    (6, "create_meters_past"),
    (6, "add_connector_invocations__cost_units"),
];

fn create(dialect: Dialect, name: &str) -> Ddl {
    let sql = statement::fill(dialect, statement::raw(name));
    // A column is known by its table's name before it.
    let creates = match name.strip_prefix("add_") {
        Some(column) if column.contains("__") => column.replacen("__", ".", 1),
        Some(column) => column.replacen('_', ".", 1),
        None if name.starts_with("set_") => String::new(),
        None => name.trim_start_matches("create_").to_owned(),
    };
    Ddl { creates, sql }
}

/// A lifecycle's arrows, as the condition of a check. Not a foreign key to a table of arrows: on
/// Postgres every write would share a lock on the same few rows. And not longer than it must be:
/// Postgres reads the text of a check anew for every statement.
pub(crate) fn arrows(dialect: Dialect, machine: &str) -> Option<String> {
    // A life begins from nothing; an update that keeps the status keeps the pair.
    let mut arrows = BTreeSet::new();
    macro_rules! collect {
        ($state:ident, $births:expr) => {{
            arrows.extend($births.iter().map(|born| ("", born.as_str())));
            arrows.extend($state::TABLE.iter().map(|(from, _, to)| (from.as_str(), to.as_str())));
        }};
    }
    match machine {
        "run" => collect!(RunStatus, RunStatus::START),
        "command" => collect!(CommandStatus, CommandStatus::START),
        "slot" => collect!(SlotStatus, SlotStatus::START),
        "effect" => collect!(EffectStatus, EffectStatus::START),
        "approval" => collect!(ApprovalStatus, ApprovalStatus::START),
        _ => return None,
    }
    let arrows: Vec<String> = arrows.into_iter().map(|(from, to)| format!("{from}>{to}")).collect();
    let pair = match dialect {
        Dialect::Sqlite | Dialect::Postgres => "prev_status || '>' || status",
        Dialect::Mysql => "CONCAT(prev_status, '>', status)",
    };
    Some(one_of(dialect, pair, arrows.iter().map(String::as_str)))
}

/// Whether a text is one of these, as the condition of a check. SQLite makes a tree of a list of
/// more than two, anew for every statement; compared one by one, they cost next to nothing.
pub(crate) fn one_of<'a>(
    dialect: Dialect,
    text: &str,
    these: impl Iterator<Item = &'a str>,
) -> String {
    match dialect {
        Dialect::Sqlite => {
            let cases: String = these.map(|one| format!("WHEN '{one}' THEN 1 ")).collect();
            format!("CASE {text} {cases}ELSE 0 END")
        }
        // One value instead of one for each: Postgres reads the text anew for every statement.
        Dialect::Postgres => {
            let list: Vec<&str> = these.collect();
            format!("{text} = ANY ('{{{}}}'::text[])", list.join(","))
        }
        Dialect::Mysql => {
            let list: Vec<String> = these.map(|one| format!("'{one}'")).collect();
            format!("{text} IN ({})", list.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_schema_is_refused_with_both_versions() {
        let refused = statements(Dialect::Sqlite, VERSION + 1).unwrap_err();
        let newer = format!("version {}", VERSION + 1);
        assert!(matches!(&refused, Error::Incompatible(text) if text.contains(&newer)));
        assert_eq!(statements(Dialect::Sqlite, VERSION).unwrap(), []);
    }

    #[test]
    fn an_older_schema_gets_what_it_lacks_and_a_new_one_everything() {
        for dialect in [Dialect::Sqlite, Dialect::Postgres, Dialect::Mysql] {
            let creates = |from| -> Vec<String> {
                statements(dialect, from).unwrap().into_iter().map(|ddl| ddl.creates).collect()
            };
            assert_eq!(creates(1)[..3], ["run_parent", "run.context", "commands"]);
            assert_eq!(creates(2)[..2], ["run.context", "commands"]);
            let new = creates(0);
            let tables = ADDED.iter().filter_map(|(_, name)| name.strip_prefix("create_"));
            assert!(tables.clone().all(|name| new.iter().any(|made| made == name)));
        }
    }
}
