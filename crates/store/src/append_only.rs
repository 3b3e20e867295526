//! What the database itself refuses: to change an event, or to remove one outside retention.
//!
//! Invariants: the one change an event may see is its sealing, from no number to one; a row may go
//! only when its digest stays behind. A hand at a prompt is refused like a program.
//! Deliberately absent: protection from whoever may drop these triggers. The chain of links shows
//! what he did.

use crate::dialect::Dialect;
use crate::migrate::Ddl;

/// What a refusal says.
const SAYS: &str = "domain_events is append only";
/// What never changes.
const COLUMNS: &[&str] = &[
    "workspace",
    "event_id",
    "command_id",
    "purpose",
    "event_type",
    "payload",
    "actor",
    "trace_id",
    "created_at",
];

/// The triggers of a dialect.
pub(crate) fn triggers(dialect: Dialect) -> Vec<Ddl> {
    let (update, delete) = ("domain_events_no_update", "domain_events_no_delete");
    let forbidden = format!("NOT ({})", is_sealing(dialect));
    let gone = "NOT EXISTS (SELECT 1 FROM event_tombstones t \
        WHERE t.workspace = OLD.workspace AND t.seq = OLD.seq)";
    match dialect {
        Dialect::Sqlite => [(update, "UPDATE", forbidden.as_str()), (delete, "DELETE", gone)]
            .map(|(name, event, when)| Ddl {
                creates: name.to_owned(),
                sql: format!(
                    "CREATE TRIGGER {name} BEFORE {event} ON domain_events WHEN {when} \
                     BEGIN SELECT RAISE(ABORT, '{SAYS}'); END"
                ),
            })
            .into(),
        Dialect::Mysql => [(update, "UPDATE", forbidden.as_str()), (delete, "DELETE", gone)]
            .map(|(name, event, when)| Ddl {
                creates: name.to_owned(),
                sql: format!(
                    "CREATE TRIGGER {name} BEFORE {event} ON domain_events FOR EACH ROW \
                     BEGIN IF {when} THEN \
                     SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{SAYS}'; END IF; END"
                ),
            })
            .into(),
        Dialect::Postgres => vec![Ddl {
            creates: update.to_owned(),
            sql: format!(
                "CREATE OR REPLACE FUNCTION domain_events_guard() RETURNS trigger \
                 LANGUAGE plpgsql AS $$ BEGIN \
                 IF TG_OP = 'UPDATE' THEN \
                     IF {forbidden} THEN RAISE EXCEPTION '{SAYS}'; END IF; RETURN NEW; \
                 ELSIF TG_OP = 'DELETE' THEN \
                     IF {gone} THEN RAISE EXCEPTION '{SAYS}'; END IF; RETURN OLD; \
                 END IF; \
                 RAISE EXCEPTION '{SAYS}'; END $$; \
                 CREATE TRIGGER {update} BEFORE UPDATE OR DELETE ON domain_events \
                 FOR EACH ROW EXECUTE FUNCTION domain_events_guard(); \
                 CREATE TRIGGER domain_events_no_truncate BEFORE TRUNCATE ON domain_events \
                 FOR EACH STATEMENT EXECUTE FUNCTION domain_events_guard()"
            ),
        }],
    }
}

/// Whether an update gives an event its number, or changes nothing, as an insert of what is there
/// does on MySQL.
fn is_sealing(dialect: Dialect) -> String {
    let same = |column: &str| match dialect {
        Dialect::Sqlite => format!("OLD.{column} IS NEW.{column}"),
        Dialect::Postgres => format!("OLD.{column} IS NOT DISTINCT FROM NEW.{column}"),
        Dialect::Mysql => format!("OLD.{column} <=> NEW.{column}"),
    };
    let kept: Vec<_> = COLUMNS.iter().map(|column| same(column)).collect();
    format!(
        "{} AND (({} AND {}) OR (OLD.seq IS NULL AND OLD.hash IS NULL \
         AND NEW.seq IS NOT NULL AND NEW.hash IS NOT NULL))",
        kept.join(" AND "),
        same("seq"),
        same("hash")
    )
}
