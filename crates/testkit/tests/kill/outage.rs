//! The database server is killed under load, again and again, and comes back with what it had
//! written to its files. The workers live on.
//!
//! What the storm checks holds here, too. Added is what a server can forget: a claim that did not
//! wait for the disk. A run whose claim was forgotten may be given another input before it is
//! claimed again, and begins at another time; what its code computed before must not be mixed with
//! what it computes then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use steadfast::{Client, Queue};
use steadfast_testkit::db::DbKind;
use steadfast_testkit::ledger::Ledger;

use crate::check::{self, History};
use crate::dice::Dice;
use crate::fleet::{Fleet, Recipe};
use crate::server::Server;
use crate::shapes::{LATEST, PLAIN};
use crate::storm::{self, Weather};
use crate::watch::{NARROW, NARROW_MOST, Watch};

/// Worker processes.
const WORKERS: usize = 2;
/// Debounced runs at once.
const KEYS: usize = 4;
/// How long a debounced run waits for another call.
const QUIET: Duration = Duration::from_millis(60);

/// Kills the server so many times, then judges.
pub(crate) async fn outages(kind: DbKind, kills: u64) {
    let Some(server) = Server::start(kind) else {
        return eprintln!("skipped: there is no server for {kind:?}");
    };
    let kills = storm::number("STEADFAST_OUTAGE_COUNT").unwrap_or(kills);
    let seed = storm::seed();
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&dir.path().join("ledger")).unwrap();
    let client = Client::connect(&server.url).await.unwrap();
    client.put_queue(Queue::new(NARROW).concurrency(NARROW_MOST)).await.unwrap();
    client.put_queue(Queue::new(PLAIN)).await.unwrap();
    let mut fleet = Fleet::new(&server.url, &ledger);
    (0..WORKERS).for_each(|place| drop(fleet.start(place, &Recipe::default())));
    let (weather, began) = (Weather::default(), Instant::now());
    let mut watch = Watch::new(client.clone(), &ledger);
    watch.forgets = kind == DbKind::Postgres;
    let strike = async {
        let recoveries = strike(&server, seed, kills).await;
        weather.calm.store(true, Ordering::Release);
        recoveries
    };
    let (recoveries, submission, pushed, ()) = futures::join!(
        strike,
        storm::submit(&weather, &server.url, seed),
        push(&weather.calm, &server.url, seed),
        storm::look_on(&weather, &mut watch),
    );
    watch.last_look().await.unwrap();
    let mut faults = std::mem::take(&mut watch.faults);
    faults.extend(submission.faults);
    faults.extend(settle(&mut watch, pushed.acked.keys()).await);
    faults.extend(dropped(&pushed.last, &watch));
    faults.extend(storm::end_all(&mut fleet));
    let mut acked = submission.acked;
    acked.extend(pushed.acked);
    let (log, lives, runs) = (ledger.log(), &fleet.lives, &watch.runs);
    faults.extend(check::check(&History { log: &log, lives, runs, acked: &acked }));
    storm::explain_stuck(&client, &watch).await;
    eprintln!(
        "{kind:?}: {kills} kills of the server, back after {:?} on average, {} runs, {} debounced \
         calls, {} calls of the ledger, {} repeated, {:.1} s, seed {seed}",
        recoveries / u32::try_from(kills.max(1)).unwrap_or(u32::MAX),
        watch.runs.len(),
        pushed.calls,
        log.len(),
        check::repeated(&log),
        began.elapsed().as_secs_f64(),
    );
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Kills the server while it works, and waits until it is back; gives the sum of those waits.
async fn strike(server: &Server, seed: u64, kills: u64) -> Duration {
    let (mut dice, mut away) = (Dice::new(seed), Duration::ZERO);
    for _ in 0..kills {
        // Long enough that clients, who wait for a second after a failure, are back as well.
        tokio::time::sleep(Duration::from_millis(dice.between(900, 1900))).await;
        away += server.kill().await;
    }
    away
}

/// What was pushed by debounced calls.
#[derive(Default)]
struct Pushed {
    calls: u64,
    /// The runs that were named to callers.
    acked: BTreeMap<String, &'static crate::shapes::Shape>,
    /// The last call of each key that was acknowledged: its input.
    last: BTreeMap<String, u32>,
}

/// Calls debounced workflows with growing numbers, as long as the storm lasts.
async fn push(calm: &AtomicBool, url: &str, seed: u64) -> Pushed {
    let client = Client::connect(url).await.unwrap();
    let (mut dice, mut pushed, mut n) = (Dice::new(seed ^ 0xdeb0), Pushed::default(), 0u32);
    while !calm.load(Ordering::Acquire) {
        n += 1;
        let key = format!("key-{}", dice.between(1, KEYS as u64));
        let call = client.start_named::<Vec<String>>(LATEST.workflow, &n).queue(PLAIN);
        let run = call.debounce(&key, QUIET, None).await.expect("a call that is accepted");
        pushed.acked.insert(run.id().to_owned(), &LATEST);
        pushed.last.insert(key, n);
        pushed.calls += 1;
        tokio::time::sleep(Duration::from_millis(dice.between(1, 80))).await;
    }
    pushed
}

/// Waits for the debounced runs, which may end after all others.
async fn settle(watch: &mut Watch<'_>, runs: impl Iterator<Item = &String>) -> Vec<String> {
    let mut faults = Vec::new();
    for run_id in runs {
        if let Err(error) = watch.end_of(run_id).await {
            faults.push(format!("{run_id}: {error}"));
        }
    }
    faults
}

/// An acknowledged call whose input no run was carried out with: the last of each key has to be,
/// because only a later one may replace it.
fn dropped(last: &BTreeMap<String, u32>, watch: &Watch<'_>) -> Vec<String> {
    let outputs: Vec<Vec<String>> = watch
        .runs
        .values()
        .filter(|run| run.row.workflow == LATEST.workflow)
        .map(|run| check::list(run.row.output.as_deref()))
        .collect();
    let is_carried_out = |n: u32| outputs.iter().any(|output| output.contains(&n.to_string()));
    let missing = last.iter().filter(|(_, n)| !is_carried_out(**n));
    missing.map(|(key, n)| format!("the call {n} of {key} was dropped")).collect()
}
