//! What one operation alone does: over every kind of address, and where it cannot be one statement.

use steadfast_store::op::*;
use steadfast_store::{Error, open};

use super::database::Database;
use super::{claimed, finish, record, run, step, steps};

/// A socket of the network, one of the file system, and one of several hosts.
async fn addresses(database: &Database) -> [String; 3] {
    let url = database.url();
    let sql = "SELECT split_part(current_setting('unix_socket_directories'), ',', 1), \
        current_setting('port')";
    let row = database.postgres().await.query_one(sql, &[]).await.unwrap();
    let (folder, port): (String, String) = (row.get(0), row.get(1));
    let (account, place) = url.split_once('@').unwrap();
    let (host, name) = place.split_once('/').unwrap();
    let folder = folder.replace('/', "%2F");
    [
        url.clone(),
        format!("{account}@{folder}:{port}/{name}"),
        format!("{account}@{host},{host}/{name}"),
    ]
}

pub(super) async fn runs_are_carried_out_over_every_kind_of_address(database: &Database) {
    for (number, url) in addresses(database).await.into_iter().enumerate() {
        let store = open(&url).await.unwrap();
        for turn in 0..3 {
            let run_id = format!("run-{number}-{turn}");
            claimed(&store, &run_id).await;
            for id in 0..4 {
                let written = store.ask(record(&run_id, vec![step(id, "1")])).await.unwrap();
                assert_eq!(written, Written::Done, "over {url}");
            }
            // A server that ends its connections in between is met by the next operation.
            if turn == 1 {
                database.cut().await;
            }
            let last = Finish { entries: vec![step(4, "5")], ..finish(&run_id) };
            assert_eq!(store.ask(last).await.unwrap(), Written::Done, "over {url}");
            assert_eq!(steps(&store, &run_id).await.len(), 5);
            assert!(run(&store, &run_id).await.unwrap().status.is_terminal());
        }
    }
}

pub(super) async fn an_end_whose_record_is_there_already_is_carried_out(database: &Database) {
    let store = database.open().await;
    claimed(&store, "a").await;
    store.ask(record("a", vec![step(0, "1")])).await.unwrap();
    let last = Finish { entries: vec![step(0, "1")], ..finish("a") };
    assert_eq!(store.ask(last.clone()).await.unwrap(), Written::Done);
    assert_eq!(store.ask(last).await.unwrap(), Written::Done);
    assert_eq!(steps(&store, "a").await.len(), 1);
    // Another call at the same place is refused, and the run goes on.
    claimed(&store, "b").await;
    store.ask(record("b", vec![step(0, "1")])).await.unwrap();
    let mut other = step(0, "2");
    other.record.name = "another".into();
    let last = Finish { entries: vec![other], ..finish("b") };
    assert!(matches!(store.ask(last).await, Err(Error::Refused(_))));
    assert!(!run(&store, "b").await.unwrap().status.is_terminal());
}
