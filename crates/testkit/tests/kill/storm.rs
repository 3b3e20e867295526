//! The storm: runs are submitted without pause while their workers are killed without pause.
//!
//! Invariants: the clients and the ledger are never disturbed, so every acknowledgement and every
//! call is known; when the storm is over, three workers are left alone and everything must come to
//! its end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join;
use steadfast::{Client, Queue, Run};
use steadfast_testkit::crash;
use steadfast_testkit::ledger::Ledger;

use crate::check::{self, History};
use crate::database::Place;
use crate::dice::Dice;
use crate::fleet::{Fleet, Recipe};
use crate::shapes::{PLAIN, SHAPES, Shape};
use crate::watch::{NARROW, NARROW_MOST, Watch};

/// Worker processes at once.
const WORKERS: usize = 3;
/// Runs that are under way at once; more only wait.
const OPEN: usize = 36;
/// How long a worker that was thawed is left alone: longer than its late calls are believed to have
/// been on their way, so that one that was not stopped by its lease is seen.
const SPARED: Duration = Duration::from_micros(check::IN_FLIGHT_US + 500_000);
/// How long the survivors have to bring everything to its end.
const SETTLE: Duration = Duration::from_secs(30);

/// What the tasks of a storm tell each other.
#[derive(Default)]
pub(crate) struct Weather {
    pub(crate) calm: AtomicBool,
    all_submitted: AtomicBool,
    /// Runs that are not over: those of the last sample, and those submitted since.
    open: AtomicUsize,
}

/// What was done to the workers.
#[derive(Debug, Default)]
struct Toll {
    kills: u64,
    crashes: u64,
    freezes: u64,
}

/// Says how to repeat a storm that ends in a panic.
struct Seed {
    seed: u64,
    kills: u64,
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, kills } = self;
            eprintln!("again: STEADFAST_KILL_SEED={seed} STEADFAST_KILL_COUNT={kills}");
        }
    }
}

pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// What chance is drawn from.
pub(crate) fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    number("STEADFAST_KILL_SEED").unwrap_or(u64::from(now.subsec_nanos()))
}

/// Kills workers so many times, then judges.
pub(crate) async fn storm(place: &Place, kills: u64) {
    let kills = number("STEADFAST_KILL_COUNT").unwrap_or(kills);
    let seed = seed();
    let repeat = Seed { seed, kills };
    let began = Instant::now();
    let ledger = Ledger::open(&place.dir.path().join("ledger")).unwrap();
    let client = Client::connect(&place.url).await.unwrap();
    client.put_queue(Queue::new(NARROW).concurrency(NARROW_MOST)).await.unwrap();
    client.put_queue(Queue::new(PLAIN)).await.unwrap();
    let weather = Weather::default();
    let mut fleet = Fleet::new(&place.url, &ledger);
    let mut watch = Watch::new(client.clone(), &ledger);
    let rage = async {
        let toll = rage(&mut fleet, seed, kills).await;
        weather.calm.store(true, Ordering::Release);
        toll
    };
    let (toll, submission, ()) = futures::future::join3(
        rage,
        submit(&weather, &place.url, seed),
        look_on(&weather, &mut watch),
    )
    .await;
    watch.last_look().await.unwrap();
    let mut faults = std::mem::take(&mut watch.faults);
    faults.extend(submission.faults);
    faults.extend(end_all(&mut fleet));
    let log = ledger.log();
    let (lives, runs, acked) = (&fleet.lives, &watch.runs, &submission.acked);
    faults.extend(check::check(&History { log: &log, lives, runs, acked }));
    explain_stuck(&client, &watch).await;
    eprintln!(
        "{}: {} kills ({} more at crash points, {} freezes), {} runs, {} calls, {} repeated, \
         {} samples, {:.1} s, seed {seed}",
        place.name(),
        toll.kills,
        toll.crashes,
        toll.freezes,
        watch.runs.len(),
        log.len(),
        check::repeated(&log),
        watch.samples,
        began.elapsed().as_secs_f64(),
    );
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    drop(repeat);
}

/// Kills, freezes and restarts workers.
async fn rage(fleet: &mut Fleet<'_>, seed: u64, kills: u64) -> Toll {
    let mut dice = Dice::new(seed);
    let mut toll = Toll::default();
    let mut frozen: Option<(usize, Instant)> = None;
    // A zombie that was just thawed gets time to do its worst.
    let mut spared: Option<(usize, Instant)> = None;
    (0..WORKERS).for_each(|place| drop(fleet.start(place, &recipe(place, &mut dice))));
    while toll.kills < kills {
        tokio::time::sleep(Duration::from_millis(dice.between(20, 160))).await;
        let now = Instant::now();
        for place in 0..WORKERS {
            if let Some(status) = fleet.ended(place) {
                assert!(!status.success(), "worker {place} ended without being asked");
                assert_eq!(status.code(), None, "worker {place} failed: {status}");
                toll.crashes += 1;
                fleet.start(place, &recipe(place, &mut dice));
            }
        }
        if let Some((place, until)) = frozen.filter(|(_, until)| *until <= now) {
            fleet.thaw(place);
            frozen = None;
            spared = Some((place, until + SPARED));
        }
        spared = spared.filter(|(_, until)| *until > now);
        let victims = if dice.percent(10) { 2 } else { 1 };
        for _ in 0..victims {
            let place = *dice.one(&[0, 1, 2]);
            let is_frozen = frozen.is_some_and(|(f, _)| f == place);
            if spared.is_some_and(|(s, _)| s == place) || (is_frozen && !dice.percent(10)) {
                continue;
            }
            if frozen.is_none() && dice.percent(5) {
                fleet.freeze(place);
                let beyond_the_lease = Duration::from_millis(dice.between(1200, 1800));
                frozen = Some((place, now + beyond_the_lease));
                toll.freezes += 1;
                continue;
            }
            frozen = frozen.filter(|_| !is_frozen);
            toll.kills += u64::from(fleet.kill(place));
            fleet.start(place, &recipe(place, &mut dice));
        }
    }
    // Whoever is left lives: the armed ones are replaced by others.
    for place in 0..WORKERS {
        toll.kills += u64::from(fleet.kill(place));
        fleet.start(place, &Recipe::default());
    }
    toll
}

/// One worker in three has a name and takes its runs over at once; some die by themselves.
fn recipe(place: usize, dice: &mut Dice) -> Recipe {
    let name = (place == 0).then(|| "phoenix".to_owned());
    let crash_at = dice.percent(35).then(|| {
        let point = dice.one(&crash::POINTS);
        format!("{point}:{}", dice.between(1, 3))
    });
    Recipe { name, crash_at, ..Recipe::default() }
}

pub(crate) struct Submission {
    pub(crate) acked: BTreeMap<String, &'static Shape>,
    pub(crate) faults: Vec<String>,
}

/// Submits runs as long as the storm lasts, some of them twice at the same time (G1).
pub(crate) async fn submit(weather: &Weather, url: &str, seed: u64) -> Submission {
    let mut dice = Dice::new(seed ^ 0x5eed);
    let one = Client::connect(url).await.unwrap();
    let other = Client::connect(url).await.unwrap();
    let mut done = Submission { acked: BTreeMap::new(), faults: Vec::new() };
    let mut signals = tokio::task::JoinSet::new();
    let mut n = 0u32;
    while !weather.calm.load(Ordering::Acquire) {
        if weather.open.load(Ordering::Acquire) >= OPEN {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        n += 1;
        let shape = &SHAPES[n as usize % SHAPES.len()];
        let id = format!("{}-{n:05}", shape.workflow);
        let started = match dice.percent(25) {
            true => {
                let (a, b) = join(start(&one, shape, &id, n), start(&other, shape, &id, n)).await;
                let new = [&a, &b].iter().filter(|r| r.as_ref().is_ok_and(Run::is_new)).count();
                if new != 1 {
                    done.faults.push(format!("{id} was new for {new} of two clients"));
                }
                a.and(b)
            }
            false => start(&one, shape, &id, n).await,
        };
        if let Err(error) = started {
            done.faults.push(format!("{id} was not accepted: {error}"));
            continue;
        }
        weather.open.fetch_add(1, Ordering::AcqRel);
        done.acked.insert(id.clone(), shape);
        if shape.workflow == "signaller" {
            let wait = Duration::from_millis(dice.between(0, 800));
            signals.spawn(signal_twice(other.clone(), id, wait));
        }
    }
    for signalled in signals.join_all().await {
        done.faults.extend(signalled.err());
    }
    weather.all_submitted.store(true, Ordering::Release);
    done
}

async fn start(
    client: &Client,
    shape: &Shape,
    id: &str,
    n: u32,
) -> steadfast::Result<Run<Vec<String>>> {
    let call = client.start_named::<Vec<String>>(shape.workflow, &n).id(id);
    match shape.workflow {
        "queued" => call.queue(NARROW).await,
        "clocked" => call.queue(PLAIN).await,
        _ => call.await,
    }
}

/// Sends a signal and repeats it, as an impatient caller does: the run must get it once.
async fn signal_twice(client: Client, id: String, wait: Duration) -> Result<(), String> {
    tokio::time::sleep(wait).await;
    let word = format!("word of {id}");
    let sent = client.signal_once(&id, "go", &word, "first").await;
    sent.map_err(|error| format!("the signal to {id} was not accepted: {error}"))?;
    // The run may be over by now; then the repetition is refused.
    let _ = client.signal_once(&id, "go", &word, "first").await;
    Ok(())
}

/// Samples the tables until everything submitted is over, or the time to settle is.
pub(crate) async fn look_on(weather: &Weather, watch: &mut Watch<'_>) {
    let mut give_up: Option<Instant> = None;
    loop {
        // Asked before the sample: what was submitted by then is in it.
        let all_submitted = weather.all_submitted.load(Ordering::Acquire);
        watch.sample().await.unwrap();
        weather.open.store(watch.open, Ordering::Release);
        if all_submitted {
            let give_up = *give_up.get_or_insert_with(|| Instant::now() + SETTLE);
            if watch.open == 0 || Instant::now() > give_up {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Ends the survivors: with nothing to do they leave at once, and in order.
pub(crate) fn end_all(fleet: &mut Fleet<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    for place in fleet.places() {
        match fleet.end(place, Duration::from_secs(10)) {
            Some(status) if status.success() => {}
            other => faults.push(format!("worker {place} did not end in order: {other:?}")),
        }
    }
    faults
}

pub(crate) async fn explain_stuck(client: &Client, watch: &Watch<'_>) {
    for (id, run) in watch.runs.iter().filter(|(_, run)| !run.row.status.is_terminal()) {
        let why = client.explain(id).await;
        eprintln!(
            "stuck: {id}: {} {:?}",
            why.map_or_else(|e| e.to_string(), |w| w.to_string()),
            run.row
        );
    }
}
