//! Years in the lives of schedules, on the model and on every database, held against a schedule
//! that is worked out the long way.
//!
//! Requirements shown here: R5 and R10 (one command a slot, whoever ticks), R58 (its name), R62,
//! R63 and R64 (skip, catchup, compress), R66 (down, overloaded, paused) and X8 (grace, window, and
//! an event for each miss).
//!
//! `STEADFAST_SCHEDULE_SEED` lives one life again, on every store; `STEADFAST_SCHEDULE_LIVES` is
//! how many there are on the model.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

mod chance;
#[path = "../kill/dice.rs"]
mod dice;
mod judgement;
mod life;
mod policy;
mod tally;
mod unsteady;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::json;
use steadfast::{Client, CommandType, Cron, Timestamp, Trigger, When};
use steadfast_store::OpenStore;
use steadfast_testkit::db::{DbKind, TestDb};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::suite::runtime::Clock;

use life::Span;
use tally::{KINDS, Tally};

/// Lives on the model.
const LIVES: u64 = 200;
/// Lives that once showed something that few others do.
const TELLING: [u64; 4] = [939, 1971, 2069, 3960];
const ON_THE_MODEL: Span = Span { years: 4, slots: 1_200, deaths: true };
/// A database is slower, and it is the same scheduler.
const ON_A_DATABASE: Span = Span { years: 2, slots: 600, deaths: false };

/// Says how to repeat a life that ends in a panic.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: STEADFAST_SCHEDULE_SEED={}", self.0);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Lives one life, and judges it.
async fn life(store: OpenStore, seed: u64, span: Span) -> Tally {
    let repeat = Seed(seed);
    let mut life = life::live(store, &format!("life-{seed}"), seed, span).await;
    judgement::judge(&life).await;
    let (rows, world) = (std::mem::take(&mut life.rows), life.world().clone());
    life.tally.bury(&rows, &world);
    life.tally.add("days", life.days());
    life.tally.add("lives", 1);
    drop(repeat);
    life.tally
}

fn report(place: &str, began: Instant, tally: &Tally) {
    let kinds = KINDS.map(|kind| format!("{} {kind}", tally.of(kind)));
    println!(
        "{place}: {} lives, {} years, {} slots in {:.1?}: {}",
        tally.of("lives"),
        tally.of("days") / 365,
        tally.of("slots"),
        began.elapsed(),
        kinds.join(", ")
    );
}

/// R5, R10, R62, R63, R64, R66, X8
#[test]
fn every_nominal_time_gets_what_its_policy_says_whatever_happens() {
    let only = setting("STEADFAST_SCHEDULE_SEED");
    let count = setting("STEADFAST_SCHEDULE_LIVES").unwrap_or(LIVES);
    let seeds: Vec<_> = match only {
        Some(seed) => vec![seed],
        None => (1..=count).chain(TELLING).collect(),
    };
    let (began, next) = (Instant::now(), AtomicUsize::new(0));
    let some_lives = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut tally = Tally::default();
        loop {
            let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return tally };
            let store = Arc::new(ModelStore::new());
            tally.merge(&runtime.block_on(life(store, *seed, ON_THE_MODEL)));
        }
    };
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(some_lives)).collect();
        threads.into_iter().for_each(|thread| tally.merge(&thread.join().unwrap()));
    });
    report("model", began, &tally);
    if only.is_none() && count >= LIVES {
        // The seeds are fixed, so this is no matter of luck.
        let missing: Vec<_> = KINDS.into_iter().filter(|kind| tally.of(kind) == 0).collect();
        assert!(missing.is_empty(), "never met: {missing:?}");
    }
}

/// X8
#[tokio::test]
async fn a_schedule_that_is_removed_after_a_long_outage_accounts_for_all_of_it() {
    let clock = Clock::at("2026-06-01T00:00:30Z");
    let client = Client::over(clock.clone(), Arc::new(ModelStore::new()), "removed").unwrap();
    let minutely = Trigger {
        trigger_id: "minutely".to_owned(),
        enabled: true,
        when: When::Cron(Cron::cron("* * * * *")),
        command: CommandType::new("tick"),
        payload: json!({ "at": "{scheduled_for}" }),
    };
    client.define(&minutely).await.unwrap();
    clock.go("2026-06-06T00:00:30Z");
    client.remove("minutely").await.unwrap();
    let from_the_first = Timestamp::from_micros(0);
    let schedule = client.schedule("minutely");
    let slots = schedule.slots_between(from_the_first, Timestamp::NEVER).await.unwrap();
    assert_eq!(slots.len(), 5 * 24 * 60, "more than one tick would decide");
}

/// R5, R10, R62, R63, R64, R66, R98, X8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_live_the_same_on_every_database() {
    let databases = TestDb::all();
    let places = databases.iter().map(|db| tokio::spawn(some_lives_on(db.kind(), db.url.clone())));
    for place in places.collect::<Vec<_>>() {
        place.await.unwrap();
    }
}

async fn some_lives_on(kind: DbKind, url: String) {
    let (began, mut tally) = (Instant::now(), Tally::default());
    let store = steadfast_store::open(&url).await.unwrap();
    // Each store has seeds of its own: the same ones would find the same bugs.
    let seeds = match (setting("STEADFAST_SCHEDULE_SEED"), kind) {
        (Some(seed), _) => seed..=seed,
        (None, DbKind::Sqlite) => 10_001..=10_012,
        (None, DbKind::Postgres) => 20_001..=20_006,
        (None, DbKind::Mysql) => 30_001..=30_006,
    };
    for seed in seeds {
        tally.merge(&life(store.clone(), seed, ON_A_DATABASE).await);
    }
    report(&format!("{kind:?}"), began, &tally);
}
