//! SQLite: one thread, `synchronous=FULL`.

use std::sync::Arc;

use rusqlite::{Connection, TransactionBehavior, params};

use super::{Inbox, OUTPUT, Rows};

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;
    CREATE TABLE run (id TEXT PRIMARY KEY, name TEXT, status INTEGER, queue TEXT, input TEXT,
        output TEXT, created INTEGER, updated INTEGER) WITHOUT ROWID;
    CREATE TABLE step (run TEXT, seq INTEGER, name TEXT, output TEXT, started INTEGER,
        ended INTEGER, PRIMARY KEY (run, seq)) WITHOUT ROWID;
    CREATE INDEX run_queue ON run (queue, status) WHERE queue IS NOT NULL AND status < 2;";

pub(super) fn spawn(url: &str, inbox: Arc<Inbox>) {
    let path = url.trim_start_matches("sqlite:").trim_start_matches("//");
    let mut connection = Connection::open(path).expect("a file that can be made");
    connection.execute_batch(SCHEMA).expect("a fresh file");
    let runtime = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        loop {
            let batch = match inbox.take() {
                batch if batch.is_empty() => runtime.block_on(inbox.next()),
                batch => batch,
            };
            commit(&mut connection, &Rows::of(&batch)).expect("the disk has room");
            inbox.committed(batch);
        }
    });
}

fn commit(connection: &mut Connection, rows: &Rows<'_>) -> rusqlite::Result<()> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut start =
            tx.prepare_cached("INSERT INTO run VALUES (?1, 'five', ?2, ?3, '1', NULL, 1, 1)")?;
        for (run, queued) in &rows.starts {
            start.execute(params![run, i64::from(!queued), queued.then_some("bench")])?;
        }
        let mut step = tx.prepare_cached("INSERT INTO step VALUES (?1, ?2, 'work', ?3, 1, 2)")?;
        for (run, seq) in &rows.steps {
            step.execute(params![run, seq, OUTPUT])?;
        }
        let mut end =
            tx.prepare_cached("UPDATE run SET status = 2, output = ?2, updated = 2 WHERE id = ?1")?;
        for run in &rows.ends {
            end.execute(params![run, OUTPUT])?;
        }
    }
    tx.commit()
}
