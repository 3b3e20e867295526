//! Loads of whole partitions from the spool: on every database, cut off after every message that
//! goes to a server, and killed in every write to a file.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[cfg(target_os = "linux")]
mod killed;
mod knife;

use std::path::Path;

use serde_json::{Value, json};
use steadfast_connectors::spool::Spool;
use steadfast_connectors::sql::{Column, ColumnKind, Shape};
use steadfast_connectors::{Sql, SqlConnector};
use steadfast_core::connector::{Connector, Inbound, Operation, Outbound, Probe};
use steadfast_core::{ErrorClass, Result};
use steadfast_testkit::db::{DbKind, TestDb};
use tempfile::TempDir;

use knife::Knife;

const DAY: &str = "2026-06-01";

/// A way to the database whose URL is in a file, with the spool in a folder.
fn way(url: &Path, folder: &Path, schema: &str) -> SqlConnector {
    Sql::connect("warehouse", format!("file:{}", url.display()))
        .allow(Operation::write(format!("load {schema}sales_daily")).keyed())
        .allow(Operation::write(format!("upsert {schema}state")))
        .allow(Operation::read(format!("select {schema}sales_daily")))
        .allow(Operation::read(format!("select {schema}state")))
        .spool(Spool::at(folder.join("spool")))
        .build()
        .unwrap()
}

struct Warehouse {
    db: TestDb,
    schema: &'static str,
    folder: TempDir,
}

impl Warehouse {
    async fn new(db: TestDb) -> Self {
        let schema = match db.kind() {
            // Its schemas are databases, which other tests would share.
            DbKind::Mysql => "",
            DbKind::Sqlite | DbKind::Postgres => "warehouse.",
        };
        let made = Self { db, schema, folder: TempDir::new().unwrap() };
        let key = ["vendor_name", "target_date", "sku"].map(str::to_owned);
        let mut columns = vec![
            Column::new("vendor_name", ColumnKind::Name),
            Column::new("target_date", ColumnKind::Date),
        ];
        let state = [columns.clone(), vec![Column::new("hash", ColumnKind::Text)]].concat();
        columns.push(Column::new("sku", ColumnKind::Name));
        columns.push(Column::new("revenue", ColumnKind::Decimal).optional());
        columns.push(Column::new("note", ColumnKind::Text).optional());
        let tables = [
            Shape::new(made.table("sales_daily"), columns, &key),
            Shape::new(made.table("state"), state, &key[..2]),
        ];
        let way = made.way(&made.db.url);
        way.create(&tables).await.unwrap();
        way.create(&tables).await.unwrap(); // they are there: nothing is done
        made
    }

    async fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for db in TestDb::all() {
            all.push(Self::new(db).await);
        }
        all
    }

    fn table(&self, name: &str) -> String {
        format!("{}{name}", self.schema)
    }

    fn spool(&self) -> Spool {
        Spool::at(self.folder.path().join("spool"))
    }

    /// A way to the database at a URL, which may lead through a knife.
    fn way(&self, url: &str) -> SqlConnector {
        let file = self.folder.path().join(format!("url{}", url.len()));
        std::fs::write(&file, format!("{url}\n")).unwrap();
        way(&file, self.folder.path(), self.schema)
    }

    /// A load of so many rows in pages of four, each with a revenue of 1.10.
    fn load(&self, rows: u64, hash: &str) -> Value {
        let all: Vec<u64> = (0..rows).collect();
        let pages = all.chunks(4).map(|skus| {
            let line = |sku: &u64| format!("[\"1.10\",\"{sku:03}\",\"a\\tb\\\\ {hash} é\\n\"]\n");
            let lines: String = skus.iter().map(line).collect();
            json!({ "name": self.spool().put("t", lines.as_bytes()).unwrap(), "rows": skus.len() })
        });
        json!({
            "partition": { "vendor_name": "acme_sales", "target_date": DAY },
            "key": ["vendor_name", "target_date", "sku"],
            "columns": ["revenue", "sku", "note"],
            "pages": pages.collect::<Vec<_>>(),
            "expect": { "rows": rows, "sum": {
                "column": "revenue", "is": format!("{}.{}", rows * 11 / 10, rows * 11 % 10),
                "within": "0.001",
            } },
            "also": { "upsert": self.table("state"), "key": ["vendor_name", "target_date"], "row": {
                "vendor_name": "acme_sales", "target_date": DAY, "hash": hash,
            } },
        })
    }

    fn asked(&self, input: Value, key: &str) -> Outbound {
        let operation = format!("load {}", self.table("sales_daily"));
        Outbound { key: Some(key.to_owned()), ..Outbound::new(operation, input) }
    }

    async fn send(&self, input: Value, key: &str) -> Result<Inbound> {
        self.way(&self.db.url).send(&self.asked(input, key)).await
    }

    /// The hashes that the rows carry, how many rows there are, and the hash on record.
    async fn held(&self) -> (Vec<String>, usize, Option<String>) {
        let way = self.way(&self.db.url);
        let select = async |table: &str| {
            let asked = Outbound::new(format!("select {}", self.table(table)), json!({}));
            way.send(&asked).await.unwrap().output["rows"].as_array().unwrap().clone()
        };
        let rows = select("sales_daily").await;
        let of = |row: &Value| row["note"].as_str().unwrap().split(' ').nth(1).unwrap().to_owned();
        let mut hashes: Vec<_> = rows.iter().map(of).collect();
        hashes.dedup();
        let state = select("state").await;
        (hashes, rows.len(), state.first().map(|row| row["hash"].as_str().unwrap().to_owned()))
    }
}

/// R27, R28: what was there is replaced, what is known of it with it, and once by each key.
#[tokio::test(flavor = "multi_thread")]
async fn r027_a_load_replaces_the_partition_and_what_is_known_of_it() {
    for warehouse in Warehouse::all().await {
        let kind = warehouse.db.kind();
        let first = warehouse.send(warehouse.load(10, "one"), "k1").await.unwrap();
        assert_eq!(first.output, json!({ "written": 10, "replaced": 0 }), "{kind:?}");
        let second = warehouse.send(warehouse.load(6, "two"), "k2").await.unwrap();
        assert_eq!(second.output, json!({ "written": 6, "replaced": 10 }), "{kind:?}");
        // The first once more: its result is on record, and nothing is written.
        let again = warehouse.send(warehouse.load(10, "one"), "k1").await.unwrap();
        assert_eq!(again.output, first.output, "{kind:?}");
        let held = warehouse.held().await;
        assert_eq!(held, (vec!["two".to_owned()], 6, Some("two".to_owned())), "{kind:?}");
    }
}

/// R28: a load that does not come to what it must leaves everything as it was.
#[tokio::test(flavor = "multi_thread")]
async fn r028_a_load_that_is_wrong_changes_nothing() {
    for warehouse in Warehouse::all().await {
        let kind = warehouse.db.kind();
        warehouse.send(warehouse.load(10, "one"), "k1").await.unwrap();
        let before = warehouse.held().await;
        let with = |at: &str, value: Value| {
            let mut input = warehouse.load(6, "two");
            *input.pointer_mut(at).unwrap() = value;
            input
        };
        let gone = json!([{ "name": "00ff", "rows": 6 }]);
        let lines = "[\"1\",\"x\",null]\n[\"1\",\"x\",null]\n";
        let twice = warehouse.spool().put("t", lines.as_bytes()).unwrap();
        // Much comes after the row that is wrong: what is said is still what is wrong with it.
        let much: String = (0..30_000).map(|n| format!("[\"1\",\"{n}\",\"a note\"]\n")).collect();
        let early = warehouse.spool().put("t", format!("{lines}{much}").as_bytes()).unwrap();
        for (at, value, code, class) in [
            (
                "/pages",
                json!([{ "name": early, "rows": 30_002 }]),
                "SF-0724",
                ErrorClass::ValidationError,
            ),
            ("/expect/rows", json!(7), "SF-0728", ErrorClass::ValidationError),
            ("/expect/sum/is", json!("6.7"), "SF-0728", ErrorClass::ValidationError),
            ("/pages", gone, "SF-0726", ErrorClass::ValidationError),
            (
                "/pages",
                json!([{ "name": twice, "rows": 2 }]),
                "SF-0724",
                ErrorClass::ValidationError,
            ),
            (
                "/pages",
                json!([{ "name": twice, "rows": 3 }]),
                "SF-0721",
                ErrorClass::ValidationError,
            ),
            ("/also/upsert", json!("sales_other"), "SF-0806", ErrorClass::PolicyDenied),
        ] {
            let error = warehouse.send(with(at, value), "k2").await.unwrap_err();
            assert_eq!((error.code(), error.class()), (code, class), "{kind:?} {at}: {error}");
            assert_eq!(warehouse.held().await, before, "{kind:?} {at}");
        }
        // The key is still free.
        warehouse.send(warehouse.load(6, "two"), "k2").await.unwrap();
        assert_eq!(warehouse.held().await.1, 6);
    }
}

/// R28: cut off after every message that goes to the server: no row twice, none lost, never a mix.
#[tokio::test(flavor = "multi_thread")]
async fn r028_a_load_that_is_cut_off_anywhere_is_done_once() {
    for db in [TestDb::postgres(), TestDb::mysql()].into_iter().flatten() {
        let warehouse = Warehouse::new(db).await;
        let kind = warehouse.db.kind();
        warehouse.send(warehouse.load(12, "h0"), "k0").await.unwrap();
        let (mut cuts, mut done_anyway) = (0, 0);
        for messages in 1.. {
            let (before, hash) = (warehouse.held().await, format!("h{messages}"));
            let asked = warehouse.asked(warehouse.load(12, &hash), &format!("k{messages}"));
            let knife = Knife::at(&warehouse.db.url, messages).await;
            let whole = (vec![hash.clone()], 12, Some(hash.clone()));
            match warehouse.way(&knife.url).send(&asked).await {
                Ok(_) if !knife.has_cut() => break,
                // The answer was faster than the knife.
                Ok(_) => assert_eq!(warehouse.held().await, whole, "{kind:?}, {messages}"),
                Err(error) => assert!(error.is_retryable(), "{kind:?}, {messages}: {error}"),
            }
            cuts += 1;
            let way = warehouse.way(&warehouse.db.url);
            let held = warehouse.held().await;
            match way.probe(&asked).await.unwrap() {
                Probe::Done(_) => {
                    done_anyway += 1;
                    assert_eq!(held, whole, "{kind:?}, {messages}: done");
                }
                Probe::NotDone => assert_eq!(held, before, "{kind:?}, {messages}: not done"),
                Probe::CannotTell => panic!("{kind:?}: it keeps records"),
            }
            way.send(&asked).await.unwrap();
            assert_eq!(warehouse.held().await, whole, "{kind:?}, {messages}: again");
        }
        assert!(cuts > 12, "{kind:?}: only {cuts} cuts");
        assert!(done_anyway > 0, "{kind:?}: the commit itself was never cut off");
    }
}
