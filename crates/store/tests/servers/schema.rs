//! Opening: schemas that are missing, old, half made or too new, and logins that are wrong.

use super::*;

pub(crate) async fn a_store_opens_again_and_keeps_what_it_has(database: &Database) {
    let first = database.open().await;
    first.ask(start("a", false)).await.unwrap();
    let second = database.open().await;
    assert_eq!(run(&second, "a").await.unwrap().status, RunStatus::Enqueued);
    drop(first);
    second.ask(start("b", false)).await.unwrap();
    drop(second);
    let third = database.open().await;
    assert!(run(&third, "a").await.is_some() && run(&third, "b").await.is_some());
}

pub(crate) async fn four_processes_migrate_at_once(database: &Database) {
    let stores = join_all((0..4).map(|_| database.open())).await;
    for (number, store) in stores.iter().enumerate() {
        store.ask(start(&format!("r{number}"), false)).await.unwrap();
    }
    assert_eq!(database.number("SELECT COUNT(*) FROM steadfast_schema").await, 1);
    assert_eq!(database.number("SELECT COUNT(*) FROM run").await, 4);
}

pub(crate) async fn an_interrupted_migration_is_taken_up(database: &Database) {
    drop(database.open().await);
    let version = database.number("SELECT MAX(version) FROM steadfast_schema").await;
    // As if it had stopped half-way: on Postgres that cannot be seen, there it is one transaction.
    if database.kind == Kind::Mysql {
        database.execute("DROP TABLE worker").await;
        database.execute("DROP INDEX run_wake ON run").await;
        database.execute("DELETE FROM steadfast_schema").await;
    }
    let store = database.open().await;
    store.ask(start("a", false)).await.unwrap();
    assert_eq!(database.number("SELECT MAX(version) FROM steadfast_schema").await, version);
}

/// A later version of the program may give tables more columns while this one goes on.
pub(crate) async fn a_table_that_gets_a_column_is_written_as_before(database: &Database) {
    let store = database.open().await;
    for round in 0..3 {
        let ids: Vec<String> = (0..60).map(|n| format!("r{round}-{n}")).collect();
        join_all(ids.iter().map(|id| claimed(&store, id))).await;
        let one = |id: &String| store.ask(record(id, vec![step(1, "1")]));
        for written in join_all(ids.iter().map(one)).await {
            assert_eq!(written.unwrap(), Written::Done);
        }
        for table in ["run", "step"] {
            let sql = format!("ALTER TABLE {table} ADD COLUMN extra_{round} BIGINT");
            database.execute(&sql).await;
        }
    }
    assert_eq!(database.number("SELECT COUNT(*) FROM step").await, 180);
}

/// In a new database, too, of which Postgres knows nothing yet: the index of lists would have it
/// read all runs of a workspace for each.
pub(crate) async fn single_runs_are_found_by_their_key(database: &Database) {
    let store = database.open().await;
    let ids: Vec<String> = (0..60).map(|n| format!("r{n}")).collect();
    join_all(ids.iter().map(|id| claimed(&store, id))).await;
    for round in 1..=5 {
        let one = |id: &String| store.ask(record(id, vec![step(round, "1")]));
        for written in join_all(ids.iter().map(one)).await {
            assert_eq!(written.unwrap(), Written::Done);
        }
    }
    drop(store);
    let uses = |indexes: &str| {
        let of = format!("WHERE relname = 'run' AND indexrelname IN ({indexes})");
        format!("SELECT COALESCE(SUM(idx_scan), 0)::int8 FROM pg_stat_user_indexes {of}")
    };
    // A connection tells what it has used as it ends.
    while database.number(&uses("'run_pkey', 'run_list'")).await < 250 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(database.number(&uses("'run_list'")).await, 0);
}

/// Until 0.1.0 there are no upgrades.
pub(crate) async fn a_schema_of_another_version_is_refused(database: &Database) {
    let store = database.open().await;
    store.ask(start("a", false)).await.unwrap();
    drop(store);
    let own = database.number("SELECT MAX(version) FROM steadfast_schema").await;
    for version in [1, own - 1, own + 1] {
        database.execute(&format!("UPDATE steadfast_schema SET version = {version}")).await;
        let Err(refused) = open(&database.url()).await else { panic!("opened") };
        let wanted = format!("schema version {version}");
        assert!(
            matches!(&refused, Error::Incompatible(text) if text.contains(&wanted)),
            "{refused}"
        );
    }
    database.execute(&format!("UPDATE steadfast_schema SET version = {own}")).await;
    assert!(run(&database.open().await, "a").await.is_some());
}

pub(crate) async fn a_wrong_password_or_database_is_refused_at_once(database: &Database) {
    let began = Instant::now();
    let Err(refused) = open(&format!("{}_not", database.url())).await else { panic!("opened") };
    assert!(matches!(&refused, Error::Refused(_)), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(3));
    if database.kind == Kind::Mysql {
        // The test's Postgres asks for no password.
        let (user, rest) =
            database.url().split_once('@').map(|(u, r)| (u.to_owned(), r.to_owned())).unwrap();
        let wrong = format!("{}:s3cret@{rest}", user.rsplit_once(':').unwrap().0);
        let Err(refused) = open(&wrong).await else { panic!("opened") };
        assert!(matches!(&refused, Error::Refused(text) if text.contains("login")), "{refused}");
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
    }
    let scheme = database.url().split(':').next().unwrap().to_owned();
    let nowhere = format!("{scheme}://me:s3cret@127.0.0.1:1/db");
    let Err(error) = open(&nowhere).await else { panic!("opened") };
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
    assert!(began.elapsed() > Duration::from_secs(4));
}
