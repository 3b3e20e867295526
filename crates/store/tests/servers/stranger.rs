//! What listeners cost the rest of a MySQL or MariaDB server: other programs' connections are made
//! as fast as without them.

use std::time::{Duration, Instant};

use futures::future::join_all;
use steadfast_store::{OpenStore, StoreExt};

use super::database::Database;
use super::start;

const LISTENERS: usize = 20;
const CONNECTIONS: usize = 200;
/// No pause of a machine.
const HELD_UP: Duration = Duration::from_secs(2);

/// The slowest and the median of many new connections, one after the other.
async fn connections(database: &Database) -> (Duration, Duration) {
    let mut took = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let began = Instant::now();
        let connection = database.mysql().await;
        took.push(began.elapsed());
        connection.disconnect().await.unwrap();
    }
    took.sort();
    (took[CONNECTIONS - 1], took[CONNECTIONS / 2])
}

/// Waits for changes and for ends, as an idle worker and a caller do, until it is dropped.
async fn idle(store: &OpenStore) {
    loop {
        futures::future::select(store.changed(), store.ended()).await;
    }
}

/// Tells all others of something, again and again.
async fn news(store: &OpenStore, name: &str) {
    for number in 0.. {
        store.ask(start(&format!("{name}-{number}"), false)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Beside listeners; with `news`, all of them have something to tell, too.
async fn with_listeners(database: &Database, news_of: Option<&str>) -> (Duration, Duration) {
    let stores = join_all((0..LISTENERS).map(|_| database.open())).await;
    let tell = async {
        match news_of {
            None => std::future::pending().await,
            Some(name) => {
                let one = |(n, store)| async move { news(store, &format!("{name}-{n}")).await };
                join_all(stores.iter().enumerate().map(one)).await;
            }
        }
    };
    let idle = join_all(stores.iter().map(idle));
    let measured = async {
        // They connect in the background.
        tokio::time::sleep(Duration::from_secs(1)).await;
        connections(database).await
    };
    tokio::select! {
        measured = measured => measured,
        () = tell => unreachable!("it goes on for ever"),
        _ = idle => unreachable!("it goes on for ever"),
    }
}

pub(crate) async fn listeners_do_not_hold_up_new_connections(database: &Database) {
    // A pause of the machine looks like a lock that is held, so that there is a second chance; but
    // not for a wait of seconds, which is what wake-ups under locks of the server lead to.
    for chance in 0..2 {
        let (slowest, median) = connections(database).await;
        eprintln!("of {CONNECTIONS} connections the slowest took {slowest:?}, median {median:?}");
        let mut is_close = true;
        for news in [None, Some(format!("news-{chance}"))] {
            let what = if news.is_some() { "busy" } else { "idle" };
            let beside = with_listeners(database, news.as_deref()).await;
            eprintln!("beside {LISTENERS} {what} listeners {:?}, median {:?}", beside.0, beside.1);
            assert!(beside.0 < HELD_UP, "a new connection took {:?}", beside.0);
            is_close &= beside.0 < slowest * 4 + Duration::from_millis(50);
            is_close &= beside.1 < median * 4 + Duration::from_millis(5);
        }
        if is_close {
            return;
        }
        assert!(chance == 0, "new connections waited for listeners");
    }
}
