//! Two scheduler processes at a time, killed again and again: one command a slot, and every slot.
//!
//! Requirements shown here: R5 and R10 (two schedulers, one command), R61 (a second fire makes no
//! second execution), R93 (what a dead worker left goes on in another).
//!
//! `STEADFAST_KILL_SEED` repeats the plan of the kills, `STEADFAST_KILL_COUNT` is how often they
//! come; the processes' own timing stays their own.
//! Deliberately absent: lost time. The pauses here only let something happen; what is judged is
//! what is stored, once it is all there.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "kill/dice.rs"]
mod dice;

use std::collections::BTreeSet;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use dice::Dice;
use steadfast::{
    Client, CommandRow, CommandStatus, ListCommands, RunFilter, RunStatus, SlotStatus, Timestamp,
};
use steadfast_testkit::db::{DbKind, TestDb};

const SCHEDULERS: usize = 2;
const WORKSPACE: &str = "heart";
/// How often one or both are killed, about a second apart.
const BLOWS: u64 = 12;
/// Long enough for a busy machine; a test that needs it has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// Scheduler processes on one store. None of them outlives it.
struct Pair<'a> {
    url: &'a str,
    alive: [Option<Child>; SCHEDULERS],
    kills: u64,
}

impl Pair<'_> {
    fn start(&mut self, place: usize) {
        let mut program = Command::new(env!("CARGO_BIN_EXE_schedule_worker"));
        program.args([self.url, WORKSPACE]).stdin(Stdio::null()).stdout(Stdio::null());
        self.alive[place] = Some(program.spawn().expect("the scheduler program starts"));
    }

    /// Kills with SIGKILL.
    fn kill(&mut self, place: usize) {
        let Some(mut child) = self.alive[place].take() else { return };
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "scheduler {place} ended without being asked");
        child.kill().unwrap();
        child.wait().unwrap();
        self.kills += 1;
    }

    /// Asks with SIGTERM.
    async fn stop(&mut self, place: usize) -> ExitStatus {
        let mut child = self.alive[place].take().unwrap();
        let pid = child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().expect("the program `kill`");
        let give_up = Instant::now() + LIMIT;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > give_up {
                let _ = child.kill();
                panic!("scheduler {place} does not end");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills one or both, starts them again.
    async fn rage(&mut self, dice: &mut Dice) {
        (0..SCHEDULERS).for_each(|place| self.start(place));
        for _ in 0..number("STEADFAST_KILL_COUNT").unwrap_or(BLOWS) {
            tokio::time::sleep(Duration::from_millis(dice.between(400, 1500))).await;
            let victims = *dice.one(&[&[0usize][..], &[1], &[0, 1]]);
            victims.iter().for_each(|place| self.kill(*place));
            if dice.percent(30) {
                // An outage: some seconds have nobody.
                tokio::time::sleep(Duration::from_millis(dice.between(500, 2500))).await;
            }
            victims.iter().for_each(|place| self.start(*place));
        }
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        for mut child in self.alive.iter_mut().filter_map(Option::take) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + LIMIT;
    while !holds().await {
        assert!(Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn commands(client: &Client, status: Vec<CommandStatus>) -> Vec<CommandRow> {
    let which = ListCommands { status, limit: 1000, ..Default::default() };
    let page = client.commands(which).await.unwrap();
    assert_eq!(page.next, None, "all of them on one page");
    page.commands
}

/// A file on the disk: here the real thing is meant.
fn places() -> Vec<(DbKind, String, Box<dyn std::any::Any + Send>)> {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}", folder.path().join("store.db").display());
    let servers = [TestDb::postgres(), TestDb::mysql()].into_iter().flatten();
    let servers = servers.map(|db| (db.kind(), db.url.clone(), Box::new(db) as Box<_>));
    [(DbKind::Sqlite, file, Box::new(folder) as Box<_>)].into_iter().chain(servers).collect()
}

/// R5, R10, R61, R93
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r010_two_schedulers_that_are_killed_again_and_again_make_one_command_a_second() {
    let chosen = unix_micros() % 1_000_000;
    let seed = number("STEADFAST_KILL_SEED").unwrap_or(chosen.unsigned_abs());
    eprintln!("again: STEADFAST_KILL_SEED={seed}");
    let places = places();
    let storms = places.iter().map(|(kind, url, _)| storm(*kind, url, seed));
    futures::future::join_all(storms).await;
}

async fn storm(kind: DbKind, url: &str, seed: u64) {
    let began = Instant::now();
    let mut dice = Dice::new(seed ^ (kind as u64 + 1));
    let mut pair = Pair { url, alive: [None, None], kills: 0 };
    pair.rage(&mut dice).await;
    // One is left alone, and has to make up for everything.
    pair.kill(1);
    let client = Client::connect_to(url, WORKSPACE).await.unwrap();
    let schedule = client.schedule("beat");
    let end = Timestamp::from_micros(unix_micros());
    until("the slots have caught up", async || {
        schedule.slots(1).await.unwrap().last().is_some_and(|slot| slot.nominal_at >= end)
    })
    .await;
    schedule.pause("enough").await.unwrap();
    until("every command is over", async || {
        commands(&client, Vec::new()).await.iter().all(|command| command.status.is_terminal())
    })
    .await;
    assert!(pair.stop(0).await.success(), "{kind:?}: it leaves in order");
    let (slots, recovered) = judge(kind, &client).await;
    eprintln!(
        "{kind:?}: {} kills, {slots} slots, {recovered} runs taken over, {:.1?}",
        pair.kills,
        began.elapsed()
    );
}

fn unix_micros() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

/// Everything that is stored, seen from outside: gives the slots, and the runs that changed hands.
async fn judge(kind: DbKind, client: &Client) -> (usize, usize) {
    const SECOND: i64 = 1_000_000;
    let schedule = client.schedule("beat");
    let trigger = schedule.info().await.unwrap();
    assert_eq!(trigger.revision, 1, "{kind:?}: every process defined the same");
    let all = (Timestamp::from_micros(0), Timestamp::NEVER);
    let slots = schedule.slots_between(all.0, all.1).await.unwrap();
    let nominal: Vec<_> = slots.iter().map(|slot| slot.nominal_at.as_micros()).collect();
    let first = (trigger.created_at.as_micros() / SECOND + 1) * SECOND;
    let gapless: Vec<_> = (first..).step_by(1_000_000).take(nominal.len()).collect();
    assert_eq!(nominal, gapless, "{kind:?}: each second from the first to the last, once");
    assert!(slots.iter().all(|slot| slot.status == SlotStatus::Fired), "{kind:?}: {slots:?}");

    let commands = commands(client, Vec::new()).await;
    assert!(commands.iter().all(|command| command.status == CommandStatus::Succeeded));
    let wanted: BTreeSet<_> = slots
        .iter()
        .map(|slot| (slot.command_id.clone(), format!("activity-beat:{}", slot.nominal_at.iso())))
        .collect();
    let there: BTreeSet<_> = commands
        .iter()
        .map(|command| (command.command_id.clone(), command.workflow_id.clone()))
        .collect();
    assert_eq!(there, wanted, "{kind:?}: a command for each slot, and no other");
    assert_eq!(commands.len(), slots.len(), "{kind:?}");
    let keys: BTreeSet<_> = commands.iter().filter_map(|c| c.idempotency_key.clone()).collect();
    assert_eq!(keys.len(), commands.len(), "{kind:?}: each has a key of its own");
    for command in &commands {
        let at = command.workflow_id.trim_start_matches("activity-beat:");
        let result = command.result.as_deref().unwrap();
        assert_eq!(result, format!("\"a beat at {at}\""), "{kind:?}");
    }

    let runs = client.list(RunFilter::default(), 1000).await.unwrap().runs;
    assert_eq!(runs.len(), commands.len(), "{kind:?}: a run for each command");
    assert!(runs.iter().all(|run| run.status == RunStatus::Success), "{kind:?}: {runs:?}");
    (slots.len(), runs.iter().filter(|run| run.attempts > 1).count())
}
