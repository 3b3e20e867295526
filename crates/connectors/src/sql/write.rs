//! Writes: all rows in one transaction, and for keyed ones the record of it in the same.
//!
//! Invariants: a key that has a record is not written again, and whoever comes while the first is
//! at work waits for it; the same key with another content is a conflict; of two replacements of
//! one partition the second begins after the first has ended, so it holds the rows of one of them.
//! Deliberately absent: removing records. They are small, and how long a key counts is for the
//! owner of the database to say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use steadfast_core::connector::{Inbound, Outbound};
use steadfast_core::error::{Error, ErrorClass, Result};
use steadfast_core::json as payload;

use super::dialect::{self, Dialect, batches};
use super::failure;
use super::load::{self, Load};
use super::request::Write;
use super::session::Session;
use crate::spool::Spool;

/// How long a partition's lock is waited for on MySQL, in seconds.
const LOCK_WAIT: u32 = 20;

/// Under which key a write is on record, and where.
pub(super) struct Record<'a> {
    pub(super) table: &'a str,
    pub(super) key: &'a str,
    pub(super) digest: String,
}

/// What a request comes to: the same key must always mean the same.
pub(super) fn digest(asked: &Outbound) -> String {
    let mut input = asked.input.clone();
    payload::sort(&mut input);
    payload::digest(format!("{}\n{input}", asked.operation))
}

/// What a transaction is for.
pub(super) enum Work<'a> {
    /// Rows that are at hand.
    Rows(&'a Write),
    /// Rows that are in the spool.
    Pages(&'a Load, &'a Spool),
}

impl Work<'_> {
    fn write(&self) -> &Write {
        match self {
            Self::Rows(write) => write,
            Self::Pages(load, _) => &load.write,
        }
    }
}

/// Carries a write out; nothing of it stays if any of it fails.
pub(super) async fn carry(
    session: &mut Session,
    work: &Work<'_>,
    operation: &str,
    record: Option<&Record<'_>>,
) -> Result<Inbound> {
    let (dialect, write) = (session.dialect(), work.write());
    let lock = write.partition.as_ref().map(|partition| lock_name(&write.table, partition));
    if dialect != Dialect::Mysql {
        return transact(session, work, operation, record, lock.as_deref()).await;
    }
    if lock.is_none() && !write.rows.is_empty() {
        check_key(session, write).await?;
    }
    if let Some(lock) = &lock {
        take_lock(session, lock).await?;
    }
    if let Work::Pages(Load { also: Some(also), .. }, _) = work {
        check_key(session, also).await?;
    }
    let done = transact(session, work, operation, record, None).await;
    // Others would wait until the pool has seen to the connection.
    if done.is_err() {
        let _ = session.plain("ROLLBACK").await;
    }
    if let Some(lock) = lock {
        let _ = session.query("SELECT RELEASE_LOCK(?)".into(), vec![lock.into()]).await;
    }
    done
}

/// One transaction, with a lock of Postgres that ends with it.
async fn transact(
    session: &mut Session,
    work: &Work<'_>,
    operation: &str,
    record: Option<&Record<'_>>,
    lock: Option<&str>,
) -> Result<Inbound> {
    let dialect = session.dialect();
    session.begin().await?;
    if let Some(record) = record
        && let Some(first) = claim(session, record).await?
    {
        // Nothing was written: the transaction is empty.
        session.commit().await?;
        return Ok(first);
    }
    if let (Dialect::Postgres, Some(lock)) = (dialect, lock) {
        let number = i64::from_str_radix(&lock[lock.len() - 15..], 16).unwrap_or(0);
        session.plain(&format!("SELECT pg_advisory_xact_lock({number})")).await?;
    }
    let done = match work {
        Work::Rows(write) => rows(session, write, operation).await?,
        Work::Pages(load, spool) => load::rows(session, load, spool, operation).await?,
    };
    if let Some(record) = record {
        let text = serde_json::to_string(&done).map_err(failure::unfit)?;
        let values = vec![Value::String(text), Value::String(record.key.to_owned())];
        session.execute(dialect.finish(record.table), values).await?;
    }
    session.commit().await?;
    Ok(done)
}

/// Removes the partition, if it is one, and writes the rows.
async fn rows(session: &mut Session, write: &Write, operation: &str) -> Result<Inbound> {
    let dialect = session.dialect();
    let mut output = json!({ "written": write.rows.len() });
    let mut summary = format!("{} rows written", write.rows.len());
    if let Some(partition) = &write.partition {
        let sql = dialect.delete(&write.table, partition);
        let replaced = session.execute(sql, partition.values().cloned().collect()).await?;
        output["replaced"] = replaced.into();
        summary = format!("{summary} in place of {replaced}");
    }
    for batch in batches(&write.rows) {
        let sql = dialect.insert(write, batch.len());
        session.execute(sql, batch.iter().flatten().cloned().collect()).await?;
    }
    Ok(Inbound::new(output, operation, summary))
}

/// Takes the key for this transaction, or gives what it was used for.
async fn claim(session: &mut Session, record: &Record<'_>) -> Result<Option<Inbound>> {
    let dialect = session.dialect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let values = vec![
        record.key.into(),
        record.digest.as_str().into(),
        "".into(),
        i64::try_from(now).unwrap_or(i64::MAX).into(),
    ];
    match session.execute(dialect.claim(record.table), values).await? {
        0 => find(session, record).await.and_then(|found| match found {
            Some(first) => Ok(Some(first)),
            // Somebody removed it between the two statements.
            None => Err(failure::passing("the record of the key is gone")),
        }),
        _ => Ok(None),
    }
}

/// The result on record, if there is one.
pub(super) async fn find(session: &mut Session, record: &Record<'_>) -> Result<Option<Inbound>> {
    let sql = session.dialect().find_record(record.table);
    let found = session.query(sql, vec![record.key.into()]).await?;
    let Some(row) = found.first() else {
        return Ok(None);
    };
    if row.get("digest").and_then(Value::as_str) != Some(&record.digest) {
        let text = format!("the key \"{}\" was used for another write", record.key);
        return Err(Error::new(ErrorClass::Conflict, "SF-0725", text));
    }
    let text = row.get("result").and_then(Value::as_str).unwrap_or_default();
    serde_json::from_str(text).map(Some).map_err(failure::unfit)
}

/// Sees to it that there is a table for records; it is made outside of any transaction, since
/// MySQL would end that.
pub(super) async fn prepare(session: &mut Session, table: &str) -> Result<()> {
    let dialect = session.dialect();
    if session.query(dialect.see_records(table), vec![]).await.is_ok() {
        return Ok(());
    }
    let sql = dialect.create_records(table);
    let Err(error) = session.plain(&sql).await else {
        return Ok(());
    };
    // Two that make it at once are in each other's way on Postgres; one of them has made it.
    match session.query(dialect.see_records(table), vec![]).await {
        Ok(_) => Ok(()),
        Err(_) if error.is_retryable() => Err(error),
        Err(_) => Err(failure::lasting(format!("{}; it was to do: {sql}", error.message()))),
    }
}

fn lock_name(table: &str, partition: &BTreeMap<String, Value>) -> String {
    let values = serde_json::to_string(partition).unwrap_or_default();
    format!("steadfast:{}", payload::fingerprint(&format!("{table}\n{values}")))
}

async fn take_lock(session: &mut Session, lock: &str) -> Result<()> {
    let sql = "SELECT GET_LOCK(?, ?) AS taken".to_owned();
    let found = session.query(sql, vec![lock.into(), LOCK_WAIT.into()]).await?;
    match found.first().and_then(|row| row.get("taken")).and_then(Value::as_i64) {
        Some(1) => Ok(()),
        _ => Err(failure::passing("another replacement of this partition is at work")),
    }
}

/// MySQL's upsert goes by any unique index. So the key must be one, and no other may be met by the
/// rows: it would change rows that nobody named.
async fn check_key(session: &mut Session, write: &Write) -> Result<()> {
    let (schema, table) = match write.table.split_once('.') {
        Some((schema, table)) => (Value::from(schema), table),
        None => (Value::Null, write.table.as_str()),
    };
    let values = vec![table.into(), schema];
    let found = session.query(dialect::MYSQL_INDEXES.into(), values).await?;
    let mut indexes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in &found {
        let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
        indexes.entry(text("i").to_owned()).or_default().insert(text("c").to_lowercase());
    }
    let lower = |names: &[String]| names.iter().map(|n| n.to_lowercase()).collect::<BTreeSet<_>>();
    let (key, columns) = (lower(&write.key), lower(&write.columns));
    if indexes.is_empty() {
        // Perhaps there is no such table: the write itself will say so better.
        return match session.query(dialect::seen(&write.table), vec![]).await {
            Ok(_) => Err(failure::unfit("the key is no unique index of the table")),
            Err(error) => Err(error),
        };
    }
    if !indexes.values().any(|index| *index == key) {
        return Err(failure::unfit("the key is no unique index of the table"));
    }
    let other = indexes.iter().find(|(_, index)| **index != key && index.is_subset(&columns));
    match other {
        Some((name, _)) => Err(failure::unfit(format!("the rows also meet the index \"{name}\""))),
        None => Ok(()),
    }
}
