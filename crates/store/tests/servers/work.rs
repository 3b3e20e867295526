//! The caller's own transactions: their work and its record are written together, once.

use super::*;

/// Work that inserts a number, and then succeeds or fails.
fn insert(kind: Kind, number: i64, succeeds: bool) -> Box<dyn std::any::Any + Send + Sync> {
    let outcome = move || match succeeds {
        true => Ok(number.to_string()),
        false => Err(Failure::app("no")),
    };
    let sql = format!("INSERT INTO mine (n) VALUES ({number})");
    match kind {
        Kind::Postgres => Box::new(postgres::Work::new(move |tx| {
            let sql = sql.clone();
            Box::pin(async move {
                tx.execute(&sql, &[]).await.map_err(postgres::failed)?;
                outcome()
            })
        })),
        Kind::Mysql => Box::new(mysql::Work::new(move |tx| {
            let sql = sql.clone();
            Box::pin(async move {
                tx.query_drop(sql).await.map_err(mysql::failed)?;
                outcome()
            })
        })),
    }
}

pub(crate) async fn transact_commits_the_work_and_its_record_or_neither(database: &Database) {
    let store = database.open().await;
    database.execute("CREATE TABLE mine (n BIGINT NOT NULL)").await;
    claimed(&store, "a").await;
    let kind = database.kind;
    let good = store.transact(record("a", vec![step(0, "null")]), insert(kind, 1, true)).await;
    assert_eq!(good.unwrap(), (Written::Done, Ok("1".to_owned())));
    let bad = store.transact(record("a", vec![step(1, "null")]), insert(kind, 2, false)).await;
    assert_eq!(bad.unwrap(), (Written::Done, Err(Failure::app("no"))));
    let mut void = record("a", vec![step(2, "null")]);
    void.lease.epoch = 2;
    let (fenced, _) = store.transact(void, insert(kind, 3, true)).await.unwrap();
    assert_eq!(fenced, Written::Fenced);
    assert_eq!(database.number("SELECT COUNT(*) FROM mine").await, 1);
    let steps = steps(&store, "a").await;
    assert_eq!(steps.len(), 2);
    assert_eq!(steps[1].outcome, Err(Failure::app("no")));
    let foreign = store.transact(record("a", vec![step(3, "null")]), Box::new(())).await;
    assert!(matches!(foreign, Err(Error::Refused(_))));
}

pub(crate) async fn a_repeated_transact_does_not_work_twice(database: &Database) {
    let store = database.open().await;
    database.execute("CREATE TABLE mine (n BIGINT NOT NULL)").await;
    claimed(&store, "a").await;
    let over = AtomicBool::new(false);
    let work = async {
        for id in 0..40u64 {
            let number = i64::try_from(id).unwrap();
            let work = insert(database.kind, number, true);
            let done = store.transact(record("a", vec![step(id, "null")]), work).await.unwrap();
            assert_eq!(done, (Written::Done, Ok(id.to_string())));
            // Once more, as after a commit whose answer was lost.
            let work = insert(database.kind, number, true);
            let done = store.transact(record("a", vec![step(id, "null")]), work).await.unwrap();
            assert_eq!(done, (Written::Done, Ok(id.to_string())));
        }
        over.store(true, Ordering::Relaxed);
    };
    let cut = async {
        while !over.load(Ordering::Relaxed) {
            database.cut().await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    futures::join!(work, cut);
    assert_eq!(database.number("SELECT COUNT(*) FROM mine").await, 40);
    assert_eq!(database.number("SELECT COUNT(DISTINCT n) FROM mine").await, 40);
}

pub(crate) async fn work_that_met_a_deadlock_is_run_again(database: &Database) {
    let store = database.open().await;
    database.execute("CREATE TABLE mine (n BIGINT PRIMARY KEY, v BIGINT NOT NULL)").await;
    database.execute("INSERT INTO mine (n, v) VALUES (1, 0), (2, 0)").await;
    let update = |order: [i64; 2]| -> Box<dyn std::any::Any + Send + Sync> {
        let sql = order.map(|n| format!("UPDATE mine SET v = v + 1 WHERE n = {n}"));
        let pause = Duration::from_millis(30);
        match database.kind {
            Kind::Postgres => Box::new(postgres::Work::new(move |tx| {
                let sql = sql.clone();
                Box::pin(async move {
                    tx.execute(&sql[0], &[]).await.map_err(postgres::failed)?;
                    tokio::time::sleep(pause).await;
                    tx.execute(&sql[1], &[]).await.map_err(postgres::failed)?;
                    Ok("1".to_owned())
                })
            })),
            Kind::Mysql => Box::new(mysql::Work::new(move |tx| {
                let [one, two] = sql.clone();
                Box::pin(async move {
                    tx.query_drop(one).await.map_err(mysql::failed)?;
                    tokio::time::sleep(pause).await;
                    tx.query_drop(two).await.map_err(mysql::failed)?;
                    Ok("1".to_owned())
                })
            })),
        }
    };
    claimed(&store, "a").await;
    claimed(&store, "b").await;
    for id in 0..3 {
        let one = store.transact(record("a", vec![step(id, "null")]), update([1, 2]));
        let two = store.transact(record("b", vec![step(id, "null")]), update([2, 1]));
        let (one, two) = futures::join!(one, two);
        assert_eq!(one.unwrap(), (Written::Done, Ok("1".to_owned())));
        assert_eq!(two.unwrap(), (Written::Done, Ok("1".to_owned())));
    }
    assert_eq!(database.number("SELECT MIN(v) FROM mine").await, 6);
    assert_eq!(database.number("SELECT MAX(v) FROM mine").await, 6);
}

pub(crate) async fn start_in_joins_the_callers_transaction(database: &Database) {
    let store = database.open().await;
    match database.kind {
        Kind::Postgres => {
            let mut client = database.postgres().await;
            let tx = client.transaction().await.unwrap();
            let new = postgres::start_in(&tx, &start("no", false)).await.unwrap();
            assert_eq!(new, Started::New(None));
            tx.rollback().await.unwrap();
            let tx = client.transaction().await.unwrap();
            postgres::start_in(&tx, &start("yes", false)).await.unwrap();
            tx.commit().await.unwrap();
        }
        Kind::Mysql => {
            let mut conn = database.mysql().await;
            let opts = mysql_async::TxOpts::default;
            let mut tx = conn.start_transaction(opts()).await.unwrap();
            let new = mysql::start_in(&mut tx, &start("no", false)).await.unwrap();
            assert_eq!(new, Started::New(None));
            tx.rollback().await.unwrap();
            let mut tx = conn.start_transaction(opts()).await.unwrap();
            mysql::start_in(&mut tx, &start("yes", false)).await.unwrap();
            tx.commit().await.unwrap();
        }
    }
    assert!(run(&store, "no").await.is_none());
    assert!(run(&store, "yes").await.is_some());
}
