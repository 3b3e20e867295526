//! Single deaths, each with its own promise: at the start, in a drain, with a name, with a queue
//! slot.

use std::time::{Duration, Instant};

use steadfast::{Client, Queue, Rule};
use steadfast_testkit::db::DbKind;
use steadfast_testkit::ledger::{Ledger, SLOW_FOR};

use crate::database::Place;
use crate::dice::Dice;
use crate::fleet::{Fleet, Recipe};
use crate::storm;

const LEASE: Duration = Duration::from_secs(1);
/// What recovery may take beyond the lease.
const MARGIN: Duration = Duration::from_secs(1);

fn ledger(place: &Place) -> Ledger {
    Ledger::open(&place.dir.path().join("ledger")).unwrap()
}

/// Waits until something is true; gives how long that took.
async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(15), "not in 15 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    began.elapsed()
}

async fn result(client: &Client, id: &str) -> Vec<String> {
    let run = client.run::<Vec<String>>(id);
    match run.result_within(Duration::from_secs(15)).await {
        Ok(nonces) => nonces,
        Err(error) => panic!("{id}: {error}; {:?}", client.explain(id).await),
    }
}

async fn submit(client: &Client, workflow: &str, id: &str) {
    client.start_named::<Vec<String>>(workflow, &1u32).id(id).await.unwrap();
}

/// 500 kills on SQLite, 100 on a server (R74, R79, R85, R93, R95, R96, R98).
pub(crate) async fn many_kills(place: &Place) {
    storm::storm(place, if place.kind == DbKind::Sqlite { 500 } else { 100 }).await;
}

/// A start is killed within its first 50 ms, mostly in the middle of the migration, two at a time.
pub(crate) async fn killed_at_the_start(place: &Place) {
    let ledger = ledger(place);
    let mut dice = Dice::new(u64::from(std::process::id()));
    let file = |n: u32| format!("sqlite://{}", place.dir.path().join(format!("{n}.db")).display());
    let stores = match place.kind {
        DbKind::Sqlite => (0..6).map(file).collect(),
        DbKind::Postgres | DbKind::Mysql => vec![place.url.clone()],
    };
    let mut kills = 0;
    for url in &stores {
        let mut fleet = Fleet::new(url, &ledger);
        for _ in 0..60 / stores.len() {
            fleet.start(0, &Recipe::default());
            fleet.start(1, &Recipe::default());
            tokio::time::sleep(Duration::from_millis(dice.between(0, 50))).await;
            for at in 0..2 {
                let ended = fleet.ended(at);
                assert!(ended.is_none(), "a worker could not start: {ended:?}");
                kills += u32::from(fleet.kill(at));
            }
        }
        fleet.start(0, &Recipe::default());
        let client = Client::connect(url).await.unwrap();
        submit(&client, "linear", "after").await;
        assert_eq!(result(&client, "after").await.len(), 5);
    }
    eprintln!("{}: {kills} kills at the start", place.name());
}

/// SIGTERM lets steps under way end and gives the runs back: exit code 0, and every step of every
/// run is called exactly once, some of them by another worker (X16). The lease is long, so nothing
/// here is a recovery.
pub(crate) async fn drained(place: &Place) {
    let ledger = ledger(place);
    let client = Client::connect(&place.url).await.unwrap();
    let mut fleet = Fleet::new(&place.url, &ledger);
    let recipe = Recipe { lease_ms: Some(15_000), ..Recipe::default() };
    let first = fleet.start(0, &recipe);
    let ids = ["a", "b", "c"];
    for id in ids {
        submit(&client, "slow", id).await;
    }
    until("all runs are in a step", || ledger.log().len() >= ids.len()).await;
    let second = fleet.start(1, &recipe);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    let status = fleet.end(0, Duration::from_secs(10)).expect("it ends when asked");
    assert_eq!(status.code(), Some(0), "a drained worker ends in order");
    let drained = began.elapsed();
    for id in ids {
        assert_eq!(result(&client, id).await.len(), 3);
        for step in ["slow1", "slow2", "slow3"] {
            assert_eq!(ledger.calls(id, step).len(), 1, "{id} {step} was lost or repeated");
        }
        assert_eq!(client.get(id).await.unwrap().attempts, 1, "a drain is not a failed attempt");
    }
    let by = |life: &str| ledger.log().iter().filter(|a| a.call.worker == life).count();
    assert!(by(&first) > 0 && by(&second) > 0, "the runs went on elsewhere");
    eprintln!("{}: drained in {} ms", place.name(), drained.as_millis());
}

/// A worker restarted under its name goes on within a second although its lease is 15 s (R93).
pub(crate) async fn taken_over(place: &Place) {
    let ledger = ledger(place);
    let client = Client::connect(&place.url).await.unwrap();
    let mut fleet = Fleet::new(&place.url, &ledger);
    let name = Some("phoenix".to_owned());
    let recipe = Recipe { name, lease_ms: Some(15_000), ..Recipe::default() };
    fleet.start(0, &recipe);
    let mut took = Vec::new();
    for n in 0..5u32 {
        let id = format!("run-{n}");
        submit(&client, "stalled", &id).await;
        until("the step is under way", || ledger.calls(&id, "stall").len() == 1).await;
        assert!(fleet.kill(0));
        fleet.start(0, &recipe);
        let again = || ledger.calls(&id, "stall").len() == 2;
        took.push(until("the step is called again", again).await);
        assert_eq!(result(&client, &id).await.len(), 2);
    }
    took.sort();
    eprintln!("{}: taken over in {took:?}", place.name());
    assert!(took[2] <= Duration::from_secs(1), "half of the restarts took longer: {took:?}");
}

/// The slot a killed worker held, by a run or by a step, is free again when its lease has run out,
/// and until then the one who waits can be told who holds it (R84, R85).
pub(crate) async fn slot_returned(place: &Place) {
    let ledger = ledger(place);
    let client = Client::connect(&place.url).await.unwrap();
    client.put_queue(Queue::new("single").concurrency(1)).await.unwrap();
    let mut fleet = Fleet::new(&place.url, &ledger);
    for (n, (workflow, by_step)) in [("stalled", false), ("slotted", true)].into_iter().enumerate()
    {
        fleet.start(0, &Recipe::default());
        let (holder, waiter) = (format!("holder-{n}"), format!("waiter-{n}"));
        let start = client.start_named::<Vec<String>>(workflow, &1u32).id(&holder);
        let start = if by_step { start } else { start.queue("single") };
        start.await.unwrap();
        until("the slot is held", || ledger.calls(&holder, "stall").len() == 1).await;
        let start = client.start_named::<Vec<String>>("linear", &1u32).id(&waiter);
        start.queue("single").await.unwrap();
        let why = client.explain(&waiter).await.unwrap();
        assert_eq!(why.rule, Rule::QueueFull, "{why}");
        let owner = client.get(&holder).await.unwrap().worker;
        let named = |h: &steadfast::Holder| h.run_id == holder && h.worker == owner;
        assert!(why.holders.len() == 1 && named(&why.holders[0]), "{why}");
        assert_eq!(why.holders[0].step >= 0, by_step, "{why}");
        fleet.start(1, &Recipe::default());
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(fleet.kill(0));
        let again = || ledger.calls(&holder, "stall").len() == 2;
        let took = until("the holder goes on", again).await;
        let waited = until("the waiter starts", || !ledger.calls(&waiter, "one").is_empty()).await;
        assert_eq!(result(&client, &holder).await.len(), 2);
        assert_eq!(result(&client, &waiter).await.len(), 5);
        let all = took + waited;
        eprintln!("{}: slot of a {workflow} run back in {all:?}", place.name());
        assert!(all <= LEASE + MARGIN, "the slot returned after {all:?}");
        assert!(fleet.kill(1));
    }
}

/// Places where a worker is frozen beyond its lease, and how many calls may be in flight there:
/// only a step that has begun may still reach the outside.
const FROSTS: [(&str, usize); 4] =
    [("record.after:1", 0), ("step.started:2", 1), ("record.before:2", 0), ("finish.before:1", 0)];

/// A worker frozen at a named place until another has finished its run goes on as if nothing had
/// happened; it must find out before it begins or writes anything (R93, R95, G11). It is then as
/// good as new.
pub(crate) async fn zombie(place: &Place) {
    let ledger = ledger(place);
    let client = Client::connect(&place.url).await.unwrap();
    let mut void = 0;
    for (point, in_flight) in FROSTS {
        while !woken(place, &ledger, &client, &format!("{point}/{void}"), point, in_flight).await {
            void += 1;
            assert!(void < 10, "no frost at {point} left the database free");
        }
    }
    while !woken_beside_its_heir(place, &ledger, &client, &format!("heir-{void}")).await {
        void += 1;
        assert!(void < 10, "no frost left the database free");
    }
    eprintln!("{}: {} zombies, {void} void", place.name(), FROSTS.len() + 1);
}

/// How long an heir may take: the lease and then some. If it cannot even claim the run, the frost
/// caught the zombie inside a transaction of another of its loops, whose locks it keeps; such a
/// frost shows nothing about leases and is void.
const HEIR: Duration = Duration::from_secs(4);

/// After a void frost, nothing of it is left for the next one: neither its workers nor its run,
/// which a slow heir may have ended after all while it was stopped.
async fn void(fleet: Fleet<'_>, client: &Client, id: &str) {
    drop(fleet);
    if let Err(error) = client.cancel(id, "a void frost").await {
        assert_eq!(error.code(), "SF-0114", "{error}");
    }
}

/// One frost; false if it was void.
async fn woken(
    place: &Place,
    ledger: &Ledger,
    client: &Client,
    id: &str,
    point: &str,
    in_flight: usize,
) -> bool {
    let mut fleet = Fleet::new(&place.url, ledger);
    let frozen = fleet.start(0, &Recipe::freezing(point));
    submit(client, "linear", id).await;
    until("it has begun", || !ledger.calls(id, "one").is_empty()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    fleet.start(1, &Recipe::default());
    let run = client.run::<Vec<String>>(id);
    if run.result_within(HEIR).await.is_err() {
        void(fleet, client, id).await;
        return false;
    }
    let (steps, calls) = (client.steps(id).await.unwrap(), ledger.log().len());
    let row = client.get(id).await.unwrap();
    fleet.thaw(0);
    tokio::time::sleep(Duration::from_millis(400)).await;
    let late = ledger.log().split_off(calls);
    assert!(late.len() <= in_flight, "at {point}, a zombie called: {late:?}");
    assert!(late.iter().all(|call| call.call.worker == frozen));
    let now = client.steps(id).await.unwrap();
    assert_eq!(now, steps, "at {point}, a zombie wrote a record");
    let now = client.get(id).await.unwrap();
    assert_eq!(now, row, "at {point}, a zombie changed the run");
    assert!(fleet.kill(1));
    let next = format!("{id}/next");
    submit(client, "linear", &next).await;
    assert_eq!(result(client, &next).await.len(), 5, "the thawed worker goes on working");
    true
}

/// The same while the new owner is in the middle of the very step that the zombie wants to record:
/// the place of the record is still free, and only the fence keeps the zombie from taking it.
async fn woken_beside_its_heir(place: &Place, ledger: &Ledger, client: &Client, id: &str) -> bool {
    let mut fleet = Fleet::new(&place.url, ledger);
    fleet.start(0, &Recipe::freezing("record.before:2"));
    submit(client, "slow", id).await;
    until("the zombie made its call", || ledger.calls(id, "slow2").len() == 1).await;
    tokio::time::sleep(2 * SLOW_FOR).await;
    fleet.start(1, &Recipe::default());
    let began = Instant::now();
    while ledger.calls(id, "slow2").len() < 2 {
        if began.elapsed() > HEIR {
            void(fleet, client, id).await;
            return false;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    fleet.thaw(0);
    let nonces = result(client, id).await;
    let given = ledger.calls(id, "slow2");
    assert_eq!(given.len(), 2, "the heir was disturbed");
    assert_eq!(Some(&nonces[1]), given[1].answer.as_ref(), "the zombie's record was taken");
    true
}

/// How long a hurried run may take: longer than the lease, much longer than its steps once it is
/// resumed, and shorter than the first call of its stalling step.
const HURRY: Duration = Duration::from_secs(4);

/// A worker is frozen in a run that another recovers, that its deadline ends, that an operator
/// resumes and that the other has again, with a new deadline. Then it goes on: it finds the old
/// deadline passed and may end nothing (R93, X14).
pub(crate) async fn overdue_zombie(place: &Place) {
    let ledger = ledger(place);
    let client = Client::connect(&place.url).await.unwrap();
    let mut void = 0;
    while !resumed_beside_its_zombie(place, &ledger, &client, &format!("hurried-{void}")).await {
        void += 1;
        assert!(void < 10, "no frost left the database free");
    }
    eprintln!("{}: {void} void", place.name());
}

/// One frost; false if it was void: nobody could end the run.
async fn resumed_beside_its_zombie(
    place: &Place,
    ledger: &Ledger,
    client: &Client,
    id: &str,
) -> bool {
    let mut fleet = Fleet::new(&place.url, ledger);
    let zombie = fleet.start(0, &Recipe::freezing("record.before:1"));
    let start = client.start_named::<Vec<String>>("hurried", &1u32).id(id).timeout(HURRY);
    start.await.unwrap();
    until("the zombie made its call", || ledger.calls(id, "slow1").len() == 1).await;
    tokio::time::sleep(2 * SLOW_FOR).await;
    let heir = fleet.start(1, &Recipe::default());
    let run = client.run::<Vec<String>>(id);
    let ended = run.result_within(HURRY + HEIR).await;
    if !ended.as_ref().is_err_and(|error| error.code() == "SF-0304") {
        eprintln!("{}: a void frost: {ended:?}", place.name());
        void(fleet, client, id).await;
        return false;
    }
    let before = ledger.log().len();
    client.resume(id).await.unwrap();
    let again = || ledger.log().split_off(before).iter().any(|call| call.call.worker == heir);
    until("the heir has the run again", again).await;
    let claimed = client.get(id).await.unwrap();
    let (calls, old) = (ledger.log().len(), claimed.epoch);
    fleet.thaw(0);
    let ended = run.result_within(HURRY + HEIR).await;
    let row = client.get(id).await.unwrap();
    let nonces = ended.unwrap_or_else(|error| panic!("{id} was ended by its zombie: {error}"));
    assert_eq!((nonces.len(), row.epoch), (4, old), "somebody else had the run");
    tokio::time::sleep(Duration::from_millis(400)).await;
    let by_zombie = ledger.log().split_off(calls).into_iter().filter(|c| c.call.worker == zombie);
    assert_eq!(by_zombie.count(), 0, "the zombie went on with the run");
    assert_eq!(client.get(id).await.unwrap(), row, "the zombie changed the run");
    true
}
