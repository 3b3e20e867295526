//! The bell on MySQL and MariaDB, which have no notifications: who listens lets a connection sleep
//! on the server, and who rings cuts that sleep short.
//!
//! Invariants: only connections that were found in a sleep with our mark in our database are cut
//! short, and such a connection does nothing else. A ring between two sleeps is lost, as is one
//! from another user of the server; polling finds what it told. Those who share this store are told
//! without the server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::connection::{Connector, sorted};
use super::fault;
use crate::backend::{Backoff, random};
use crate::bell::{Bell, Pauses, Ring};
use crate::error::Error;
use crate::session::Fault;

/// What a listener does: found by this text, and long enough to cost nothing.
const LISTEN: &str = "DO SLEEP(60) /* steadfast listens */";
/// A sleep that was cut short, where that is an error.
const INTERRUPTED: u16 = 1317;
/// The longest that others wait for news while there is always more. To find them costs the server
/// a millisecond.
const FAR_APART: Duration = Duration::from_millis(64);
/// How often it is looked whether others listen.
const LOOK: Duration = Duration::from_millis(500);

/// Rings and listens for as long as the store is open.
pub(super) async fn ring(connector: Arc<Connector>, bell: Arc<Bell>) {
    let (others, mut backoff) = (Bell::default(), Backoff::new());
    let attend = async {
        loop {
            if let Err(error) = attend(&connector, &bell, &others, &mut backoff).await {
                tracing::debug!(%error, "nobody is told for now");
            }
            tokio::time::sleep(backoff.wait(random())).await;
        }
    };
    tokio::join!(bell.tell_here(&others), attend);
}

/// Two connections' worth: one that sleeps, and one that wakes others.
async fn attend(
    connector: &Connector,
    bell: &Bell,
    others: &Bell,
    backoff: &mut Backoff,
) -> Result<(), Error> {
    let (ear, hand) = (connector.connect_raw().await?, connector.connect_raw().await?);
    *backoff = Backoff::new();
    let own = ear.id();
    tokio::select! {
        ended = listen(ear, bell) => ended,
        ended = wake_others(hand, others, own) => ended,
    }
}

async fn listen(mut ear: Conn, bell: &Bell) -> Result<(), Error> {
    loop {
        // At first, too: nobody could tell us anything before.
        bell.ring(Ring::ALL);
        match ear.query_drop(LISTEN).await {
            Err(mysql_async::Error::Server(error)) if error.code == INTERRUPTED => {}
            done => done.map_err(sorted)?,
        }
    }
}

async fn wake_others(mut hand: Conn, others: &Bell, own: u32) -> Result<(), Error> {
    let listeners = format!(
        "SELECT id FROM information_schema.processlist \
         WHERE db = DATABASE() AND info = '{LISTEN}' AND id <> {own}"
    );
    let (mut known, mut looked) = (BTreeSet::new(), None::<Instant>);
    let mut pauses = Pauses::up_to(FAR_APART);
    loop {
        others.pulled().await;
        if looked.is_none_or(|at| at.elapsed() > LOOK) {
            looked = Some(Instant::now());
            // Those who were known may be between two sleeps.
            known.extend(hand.query::<u64, _>(&listeners).await.map_err(sorted)?);
        }
        for id in cut_short(&mut hand, &known).await? {
            known.remove(&id);
            looked = None;
        }
        pauses.pause(others).await;
    }
}

/// Ends the sleeps of listeners; gives those who are not there any more.
async fn cut_short(hand: &mut Conn, listeners: &BTreeSet<u64>) -> Result<Vec<u64>, Error> {
    let mut gone = Vec::new();
    for id in listeners {
        match hand.query_drop(format!("KILL QUERY {id}")).await {
            // Gone meanwhile, or another user's.
            Err(mysql_async::Error::Server(error))
                if fault::of_number(error.code) == Fault::Final =>
            {
                gone.push(*id);
            }
            done => done.map_err(sorted)?,
        }
    }
    Ok(gone)
}
