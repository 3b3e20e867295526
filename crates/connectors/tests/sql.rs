//! The SQL connector against SQLite, and against Postgres and MariaDB where the environment names
//! them: what is written, what is written once, and what each error means.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_connectors::{Sql, SqlConnector};
use steadfast_core::connector::{Connector, Inbound, Operation, Outbound, Probe};
use steadfast_core::{ErrorClass, Result};
use steadfast_testkit::db::{DbKind, TestDb, command};
use tempfile::TempDir;

/// A warehouse with the table of the nightly sync.
struct Warehouse {
    db: TestDb,
    /// The table as operations call it.
    table: String,
    /// Where the URL is, with the password that test servers have in it.
    folder: TempDir,
}

impl Warehouse {
    fn all() -> Vec<Self> {
        TestDb::all().into_iter().map(Self::new).collect()
    }

    fn new(db: TestDb) -> Self {
        let schema = match db.kind() {
            // Its schemas are databases, which other tests would share.
            DbKind::Mysql => db.url.rsplit('/').next().unwrap().to_owned(),
            DbKind::Sqlite | DbKind::Postgres => "warehouse".to_owned(),
        };
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("url"), format!("{}\n", db.url)).unwrap();
        let made = Self { table: format!("{schema}.sales_daily"), db, folder };
        let plain = match made.db.kind() {
            DbKind::Postgres => {
                made.run("CREATE SCHEMA warehouse");
                "warehouse.sales_daily"
            }
            DbKind::Sqlite | DbKind::Mysql => "sales_daily",
        };
        let letters = match made.db.kind() {
            DbKind::Mysql => " CHARACTER SET utf8mb4",
            DbKind::Sqlite | DbKind::Postgres => "",
        };
        made.run(&format!(
            "CREATE TABLE {plain} (vendor_name VARCHAR(50) NOT NULL, target_date DATE NOT NULL, \
             sku VARCHAR(50) NOT NULL, units BIGINT NOT NULL CHECK (units >= 0), \
             amount DECIMAL(12, 2), note VARCHAR(20), \
             PRIMARY KEY (vendor_name, target_date, sku)){letters}"
        ));
        made
    }

    fn run(&self, sql: &str) {
        command(self.db.kind(), &self.db.url, sql).unwrap();
    }

    fn settings(&self) -> Sql {
        let url = format!("file:{}", self.folder.path().join("url").display());
        Sql::connect("warehouse", url)
            .allow(Operation::write(format!("upsert {}", self.table)).keyed())
            .allow(Operation::write(format!("replace {}", self.table)))
            .allow(Operation::read(format!("select {}", self.table)))
    }

    fn connector(&self) -> SqlConnector {
        self.settings().build().unwrap()
    }

    fn asked(&self, verb: &str, input: Value, key: Option<&str>) -> Outbound {
        let key = key.map(str::to_owned);
        Outbound { key, ..Outbound::new(format!("{verb} {}", self.table), input) }
    }

    async fn ask(&self, verb: &str, input: Value, key: Option<&str>) -> Result<Inbound> {
        self.connector().send(&self.asked(verb, input, key)).await
    }

    /// Sku, units, amount and note of all rows, in the order of the key.
    async fn rows(&self) -> Vec<Value> {
        let input = json!({"columns": ["sku", "units", "amount", "note"],
                           "key": ["vendor_name", "target_date", "sku"]});
        let answer = self.ask("select", input, None).await.unwrap();
        let rows = answer.output["rows"].as_array().unwrap();
        rows.iter().map(|r| json!([r["sku"], r["units"], r["amount"], r["note"]])).collect()
    }
}

const KEY: [&str; 3] = ["vendor_name", "target_date", "sku"];

fn row(sku: &str, units: i64) -> Value {
    json!({"vendor_name": "acme_sales", "target_date": "2026-03-01", "sku": sku, "units": units,
           "amount": 12.5, "note": null})
}

fn upsert(rows: &[Value]) -> Value {
    json!({"key": KEY, "rows": rows})
}

fn replace(date: &str, skus: &[(&str, i64)]) -> Value {
    let rows: Vec<_> = skus.iter().map(|(sku, n)| json!({"sku": sku, "units": n})).collect();
    json!({"partition": {"vendor_name": "acme_sales", "target_date": date}, "key": KEY,
           "rows": rows})
}

/// R27
#[tokio::test]
async fn r027_an_upsert_writes_and_overwrites_row_for_row() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        let first = warehouse.ask("upsert", upsert(&[row("a", 1), row("b", 2)]), Some("1")).await;
        let first = first.unwrap();
        assert_eq!(first.output, json!({"written": 2}), "{kind:?}");
        assert_eq!(first.actual, format!("upsert {}", warehouse.table));
        warehouse.ask("upsert", upsert(&[row("b", 3), row("c", 4)]), Some("2")).await.unwrap();
        let rows = warehouse.rows().await;
        let expected =
            [json!(["a", 1, 12.5, null]), json!(["b", 3, 12.5, null]), json!(["c", 4, 12.5, null])];
        assert_eq!(rows, expected, "{kind:?}");
    }
}

/// R28, R54
#[tokio::test]
async fn a_replaced_partition_has_exactly_the_given_rows() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        let send = |input| warehouse.ask("replace", input, None);
        send(replace("2026-03-01", &[("a", 1), ("b", 2)])).await.unwrap();
        send(replace("2026-03-02", &[("z", 9)])).await.unwrap();
        let again = send(replace("2026-03-01", &[("b", 3), ("c", 4)])).await.unwrap();
        assert_eq!(again.output, json!({"written": 2, "replaced": 2}), "{kind:?}");
        let skus = |rows: Vec<Value>| rows.iter().map(|r| r[0].clone()).collect::<Vec<_>>();
        assert_eq!(skus(warehouse.rows().await), ["b", "c", "z"], "{kind:?}");

        // A row that does not fit leaves the partition as it was.
        let bad = send(replace("2026-03-01", &[("d", 5), ("e", -1)])).await.unwrap_err();
        assert_eq!((bad.class(), bad.code()), (ErrorClass::ValidationError, "SF-0724"), "{bad}");
        assert_eq!(skus(warehouse.rows().await), ["b", "c", "z"], "{kind:?}");

        send(replace("2026-03-01", &[])).await.unwrap();
        assert_eq!(skus(warehouse.rows().await), ["z"], "{kind:?}");
    }
}

/// R28
#[tokio::test(flavor = "multi_thread")]
async fn r028_of_many_replacements_at_once_one_holds_and_none_is_mixed() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        let connector = Arc::new(warehouse.connector());
        let sends = (0..8).map(|n| {
            let skus: Vec<String> = (0..20).map(|i| format!("{n}-{}", i + n)).collect();
            let rows: Vec<_> = skus.iter().map(|sku| (sku.as_str(), n)).collect();
            let asked = warehouse.asked("replace", replace("2026-03-01", &rows), None);
            let connector = connector.clone();
            tokio::spawn(async move { connector.send(&asked).await })
        });
        for sent in sends.collect::<Vec<_>>() {
            sent.await.unwrap().unwrap();
        }
        let rows = warehouse.rows().await;
        assert_eq!(rows.len(), 20, "{kind:?}");
        assert!(rows.iter().all(|row| row[1] == rows[0][1]), "{kind:?}: {rows:?}");
    }
}

/// R112
#[tokio::test]
async fn r112_a_repeated_key_returns_the_first_result_without_a_second_write() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        let connector = warehouse.connector();
        let asked = warehouse.asked("upsert", upsert(&[row("a", 1)]), Some("k ü"));
        assert_eq!(connector.probe(&asked).await.unwrap(), Probe::NotDone, "{kind:?}");
        let first = connector.send(&asked).await.unwrap();
        assert_eq!(connector.probe(&asked).await.unwrap(), Probe::Done(first.clone()), "{kind:?}");

        // Somebody else has changed the row since: the repeat must not change it back.
        warehouse.ask("upsert", upsert(&[row("a", 7)]), Some("other")).await.unwrap();
        assert_eq!(connector.send(&asked).await.unwrap(), first, "{kind:?}");
        assert_eq!(warehouse.rows().await, [json!(["a", 7, 12.5, null])], "{kind:?}");

        let other = warehouse.asked("upsert", upsert(&[row("a", 2)]), Some("k ü"));
        for error in
            [connector.send(&other).await.unwrap_err(), connector.probe(&other).await.unwrap_err()]
        {
            assert_eq!((error.class(), error.code()), (ErrorClass::Conflict, "SF-0725"));
        }
        // Keys are compared byte by byte.
        let near = warehouse.asked("upsert", upsert(&[row("a", 1)]), Some("k ü "));
        assert_eq!(connector.probe(&near).await.unwrap(), Probe::NotDone, "{kind:?}");
        let natural = warehouse.asked("replace", replace("2026-03-01", &[]), Some("k"));
        assert_eq!(connector.probe(&natural).await.unwrap(), Probe::CannotTell);
    }
}

/// R112
#[tokio::test(flavor = "multi_thread")]
async fn r112_of_many_at_once_with_one_key_one_writes() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        // Each with its own connections, and none has seen the table for records.
        let sends = (0..8).map(|_| {
            let connector = warehouse.connector();
            let asked = warehouse.asked("upsert", upsert(&[row("a", 1)]), Some("k"));
            tokio::spawn(async move { connector.send(&asked).await })
        });
        for sent in sends.collect::<Vec<_>>() {
            assert_eq!(sent.await.unwrap().unwrap().output, json!({"written": 1}), "{kind:?}");
        }
        let records = match kind {
            DbKind::Mysql => "steadfast_outbound".to_owned(),
            DbKind::Sqlite => "warehouse.steadfast_outbound".to_owned(),
            DbKind::Postgres => "public.steadfast_outbound".to_owned(),
        };
        let url = format!("file:{}", warehouse.folder.path().join("url").display());
        let book = Sql::connect("book", url).allow(Operation::read(format!("select {records}")));
        let book = book.build().unwrap();
        let asked = Outbound::new(format!("select {records}"), json!({"columns": ["digest"]}));
        let answer = book.send(&asked).await.unwrap();
        assert_eq!(answer.output["rows"].as_array().unwrap().len(), 1, "{kind:?}");
    }
}

/// A failed write leaves no record, so it can be done later under the same key.
#[tokio::test]
async fn a_write_that_failed_has_no_record() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        let connector = warehouse.connector();
        let bad = warehouse.asked("upsert", upsert(&[row("a", 1), row("b", -1)]), Some("k"));
        assert_eq!(connector.send(&bad).await.unwrap_err().code(), "SF-0724", "{kind:?}");
        assert_eq!(connector.probe(&bad).await.unwrap(), Probe::NotDone, "{kind:?}");
        assert!(warehouse.rows().await.is_empty(), "{kind:?}");
        let good = warehouse.asked("upsert", upsert(&[row("a", 1)]), Some("k"));
        connector.send(&good).await.unwrap();
    }
}

/// R15, R44
#[tokio::test]
async fn r015_other_tables_and_verbs_are_denied_and_r044_keyed_writes_need_a_key() {
    for warehouse in Warehouse::all() {
        let connector = warehouse.connector();
        for operation in [
            "upsert sales_daily",
            "replace warehouse.other",
            "delete warehouse.sales_daily",
            "upsert warehouse.sales_daily; DROP TABLE sales_daily",
        ] {
            let error = connector.send(&Outbound::new(operation, json!({}))).await.unwrap_err();
            assert_eq!((error.class(), error.code()), (ErrorClass::PolicyDenied, "SF-0806"));
        }
        let error = warehouse.ask("upsert", upsert(&[row("a", 1)]), None).await.unwrap_err();
        assert_eq!((error.class(), error.code()), (ErrorClass::ValidationError, "SF-0713"));
        assert!(warehouse.rows().await.is_empty());
    }
}

#[tokio::test]
async fn values_are_values_whatever_they_look_like() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        let nasty = ["'; DROP TABLE x;--", "\"`\\", "a\nb", "é漢🦀"];
        let rows: Vec<Value> = nasty.iter().map(|text| row(text, 1)).collect();
        warehouse.ask("upsert", upsert(&rows), Some("k")).await.unwrap();
        for text in nasty {
            let input = json!({"where": {"sku": text, "note": null}});
            let found = warehouse.ask("select", input, None).await.unwrap();
            let found = found.output["rows"].as_array().unwrap().clone();
            assert_eq!(found.len(), 1, "{kind:?}: {text}");
            assert_eq!(found[0]["sku"], text, "{kind:?}");
            assert_eq!(found[0]["target_date"], "2026-03-01", "{kind:?}");
        }
    }
}

#[tokio::test]
async fn many_rows_go_in_several_statements_of_one_transaction() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        let skus: Vec<String> = (0..2500).map(|n| format!("{n:05}")).collect();
        let mut rows: Vec<_> = skus.iter().map(|sku| (sku.as_str(), 1)).collect();
        let answer = warehouse.ask("replace", replace("2026-03-01", &rows), None).await.unwrap();
        assert_eq!(answer.output["written"], 2500, "{kind:?}");
        // The last statement fails, and takes the first ones with it.
        rows[2499].1 = -1;
        rows[0].0 = "changed";
        assert!(warehouse.ask("replace", replace("2026-03-01", &rows), None).await.is_err());
        let input = json!({"key": KEY, "limit": 2});
        let found = warehouse.ask("select", input, None).await.unwrap().output;
        assert_eq!(found["rows"][0]["sku"], "00000", "{kind:?}");
        assert_eq!((found["rows"].as_array().unwrap().len(), &found["more"]), (2, &json!(true)));
    }
}

/// R45, R46, R117
#[tokio::test]
async fn each_error_has_its_class() {
    for warehouse in Warehouse::all() {
        let kind = warehouse.db.kind();
        let wrong = |name: &str, value: Value| {
            let mut row = row("a", 1);
            row[name] = value;
            warehouse.ask("upsert", upsert(&[row]), Some("k"))
        };
        let unknown = wrong("no_such_column", json!(1)).await.unwrap_err();
        let null = wrong("units", Value::Null).await.unwrap_err();
        for error in [unknown, null] {
            assert_eq!(
                (error.class(), error.code()),
                (ErrorClass::ValidationError, "SF-0724"),
                "{kind:?}: {error}"
            );
        }
        // SQLite takes a text for a number; what a column is there is a preference.
        if kind != DbKind::Sqlite {
            let error = wrong("units", json!("many")).await.unwrap_err();
            assert_eq!(error.class(), ErrorClass::ValidationError, "{kind:?}: {error}");
            let error = wrong("note", json!("x".repeat(21))).await.unwrap_err();
            assert_eq!(error.class(), ErrorClass::ValidationError, "{kind:?}: {error}");
        }
        let key = json!({"key": ["note"], "rows": [{"note": "x", "units": 1}]});
        let error = warehouse.ask("upsert", key, Some("k")).await.unwrap_err();
        assert_eq!(error.code(), "SF-0724", "{kind:?}: {error}");

        let table = warehouse.table.replace("sales_daily", "missing");
        let operation = format!("upsert {table}");
        let settings = warehouse.settings().allow(Operation::write(&operation));
        let asked = Outbound::new(&operation, upsert(&[row("a", 1)]));
        let error = settings.build().unwrap().send(&asked).await.unwrap_err();
        assert_eq!(
            (error.class(), error.code()),
            (ErrorClass::PermanentConnectorError, "SF-0723"),
            "{kind:?}: {error}"
        );
    }
}

/// R118
#[tokio::test]
async fn r118_a_database_that_is_away_is_tried_again() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for scheme in ["postgres", "mysql"] {
        let settings = Sql::connect("warehouse", format!("{scheme}://me@{free}/w"));
        let connector = settings.allow(Operation::read("select t")).build().unwrap();
        let error = connector.send(&Outbound::new("select t", json!({}))).await.unwrap_err();
        assert_eq!(
            (error.class(), error.code()),
            (ErrorClass::TransientConnectorError, "SF-0722"),
            "{error}"
        );
    }
    // A file that is not there will not be there the next time, and is not made.
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("none.db");
    let settings = Sql::connect("warehouse", format!("sqlite://{}", path.display()));
    let connector = settings.allow(Operation::read("select t")).build().unwrap();
    let error = connector.send(&Outbound::new("select t", json!({}))).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::PermanentConnectorError);
    assert!(!path.exists());
}

/// R118
#[tokio::test]
async fn r118_a_lock_that_is_not_given_in_time_is_tried_again() {
    let warehouse = Warehouse::new(TestDb::sqlite());
    let path = warehouse.db.url.strip_prefix("sqlite://").unwrap().to_owned();
    let (locked, waits) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let holder = std::thread::spawn(move || {
        let other = rusqlite::Connection::open(path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        locked.send(()).unwrap();
        released.recv().unwrap();
    });
    waits.recv().unwrap();
    let connector = warehouse.settings().timeout(Duration::from_secs(2)).build().unwrap();
    let asked = warehouse.asked("replace", replace("2026-03-01", &[("a", 1)]), None);
    let error = connector.send(&asked).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::TransientConnectorError, "{error}");
    assert!(error.is_retryable() && !error.is_unclear(), "nothing was written: {error}");
    release.send(()).unwrap();
    holder.join().unwrap();
}

/// X7
#[tokio::test]
async fn x7_a_password_is_named_and_not_written_down() {
    for url in [
        "postgres://me:t0k3n@host/db",
        "mysql://me:t0k3n@host/db",
        "postgres://host/db?password=t0k3n",
    ] {
        let settings = Sql::connect("warehouse", url);
        let error = settings.clone().build().unwrap_err();
        assert_eq!(error.code(), "SF-0716");
        assert!(!format!("{error} {error:?} {settings:?}").contains("t0k3n"));
    }
    let literal = Sql::connect("warehouse", "postgres://me@host/db").password("t0k3n");
    let error = literal.build().unwrap_err();
    assert!(error.message().contains("looks like a secret"), "{error}");
    for warehouse in Warehouse::all() {
        let shown = format!("{:?}", warehouse.connector());
        assert!(!shown.contains(&warehouse.db.url), "{shown}");
    }
    // The URL is read for each request: a file that moves is found.
    let (one, two) = (Warehouse::new(TestDb::sqlite()), Warehouse::new(TestDb::sqlite()));
    let connector = one.connector();
    let asked = one.asked("upsert", upsert(&[row("a", 1)]), Some("k"));
    connector.send(&asked).await.unwrap();
    std::fs::write(one.folder.path().join("url"), &two.db.url).unwrap();
    connector.send(&one.asked("replace", replace("2026-03-01", &[("z", 9)]), None)).await.unwrap();
    assert_eq!(two.rows().await, [json!(["z", 9, null, null])]);
}

#[test]
fn settings_that_could_never_work_are_refused() {
    let open = || Sql::connect("warehouse", "sqlite:///data/warehouse.db");
    for settings in [
        Sql::connect("warehouse", "warehouse.db"),
        Sql::connect("warehouse", "oracle://host/db"),
        open().allow(Operation::read("upsert t")),
        open().allow(Operation::write("drop t")),
        open().allow(Operation::read("select a.x")).allow(Operation::read("select b.x")),
        open().records("a b"),
    ] {
        assert_eq!(settings.build().unwrap_err().code(), "SF-0710");
    }
}
