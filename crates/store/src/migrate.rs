//! The schema's version, and the statements that create it.
//!
//! Invariants: the schema is created under a lock that other processes respect; a store of any
//! other version is refused and left unchanged; on MySQL, where DDL commits by itself, each
//! statement is skipped if what it creates exists, so an interrupted creation continues where it
//! stopped.
//! Deliberately absent: upgrades. Until 0.1.0 the schema changes without them.

use std::collections::BTreeSet;

use steadfast_core::schedule::SlotStatus;
use steadfast_core::{ApprovalStatus, CommandStatus, EffectStatus, RunStatus};

use crate::append_only;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::statement;

/// The version this program writes.
pub(crate) const VERSION: i64 = 8;
/// The table that holds the version; created first, so that it can be asked.
pub(crate) const VERSION_TABLE: &str = "steadfast_schema";
/// The key of the lock that keeps two processes from migrating at once.
#[cfg(feature = "postgres")]
pub(crate) const LOCK: i64 = 0x0005_7EAD_FA57;

/// One statement of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ddl {
    /// The table, index or trigger that it creates.
    pub(crate) creates: String,
    /// The statement.
    pub(crate) sql: String,
}

/// The statements that make the schema, or none where it is there already.
pub(crate) fn statements(dialect: Dialect, found: i64) -> Result<Vec<Ddl>, Error> {
    match found {
        0 => {
            let names = statement::schema().filter(|name| name.starts_with("create_"));
            let mut ddl: Vec<Ddl> = names.map(|name| create(dialect, name)).collect();
            ddl.extend(append_only::triggers(dialect));
            Ok(ddl)
        }
        VERSION => Ok(Vec::new()),
        newer if newer > VERSION => Err(Error::Incompatible(format!(
            "the store has schema version {newer} and this program knows {VERSION}; upgrade the \
             program"
        ))),
        older => Err(Error::Incompatible(format!(
            "the store has schema version {older}, made by an older build, and this program needs \
             {VERSION}; before 0.1.0 stores are not upgraded. Finish its runs with the build that \
             made it, and open a new database with this one"
        ))),
    }
}

fn create(dialect: Dialect, name: &str) -> Ddl {
    let sql = statement::fill(dialect, statement::raw(name));
    Ddl { creates: name.trim_start_matches("create_").to_owned(), sql }
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
    fn a_schema_of_another_version_is_refused_with_both_versions() {
        let refused = |found| statements(Dialect::Sqlite, found).unwrap_err().to_string();
        let newer = refused(VERSION + 1);
        assert!(newer.contains(&format!("version {}", VERSION + 1)), "{newer}");
        assert!(newer.contains("upgrade the program"), "{newer}");
        for version in 1..VERSION {
            let older = refused(version);
            assert!(older.contains(&format!("version {version}, made by an older")), "{older}");
        }
        assert_eq!(statements(Dialect::Sqlite, VERSION).unwrap(), []);
    }
}
