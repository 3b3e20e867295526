//! Our side: the fabric on a node, the nights one after another, and the judgement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use steadfast::{
    CommandStatus, Env, Error, Queue, Result, Retry, SlotStatus, Steadfast, Timestamp, parse_moment,
};
use steadfast_store::{Store, StoreExt as _, op};
use steadfast_sync::job::{self, COMMAND, Jobs};
use steadfast_sync::{Config, Outcome, Report, sync_vendor_sales};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::SimEnv;

use super::vendor::{Seen, Vendor};
use super::warehouse::Warehouse;

/// How long after 03:00 a night has begun at the latest.
const IN_TIME: Duration = Duration::from_secs(300);
/// How often somebody looks whether a night has been fired.
const GLANCE: Duration = Duration::from_secs(5);
/// How long before a night is due its worker comes up.
const EARLY: Duration = Duration::from_secs(2);

const CONFIG: &str = r#"
[store]
url = "given"
[warehouse]
url = "sqlite://warehouse.db"
[[vendor]]
name = "acme_sales"
base_url = "http://vendor.example"
pagination = { style = "cursor", param = "cursor", next = "next" }
[vendor.fields]
sku = { key = true }
revenue = { type = "decimal" }
[vendor.totals]
column = "revenue"
"#;

fn config() -> Config {
    Config::parse(CONFIG, "simulated.toml").unwrap()
}

/// A node that is up for the nights alone: from a moment before each is due until it is over. So
/// the days cost nothing, and a month has thirty starts. It goes by the true time: its own clock
/// jumps. `over` counts the nights. It comes up once before the first, hours early: a schedule that
/// is made after 03:00 does not fire for that night.
pub(crate) async fn boot(
    env: Arc<SimEnv>,
    store: Arc<dyn Store>,
    vendor: Vendor,
    at: Warehouse,
    over: Arc<AtomicU64>,
) {
    let config = config();
    let dates = vendor.dates();
    if over.load(Ordering::Relaxed) == 0 {
        let made = fabric(&config, env.clone(), store.clone(), vendor.clone(), at.clone()).await;
        let Ok(made) = made else { return env.die() };
        made.shutdown().await;
    }
    while let Some(date) = dates.get(usize::try_from(over.load(Ordering::Relaxed)).unwrap()) {
        env.sleep(env.sim().now().until(fires_at(date).before(EARLY))).await;
        let fabric = fabric(&config, env.clone(), store.clone(), vendor.clone(), at.clone()).await;
        let Ok(fabric) = fabric else { return env.die() };
        while !night(&fabric, &env, &config, date).await.is_ok_and(|ended| ended) {
            env.sleep(GLANCE).await;
        }
        over.fetch_add(1, Ordering::Relaxed);
        fabric.shutdown().await;
    }
}

/// The fabric with its schedule.
async fn fabric(
    config: &Config,
    env: Arc<SimEnv>,
    store: Arc<dyn Store>,
    vendor: Vendor,
    at: Warehouse,
) -> Result<Steadfast> {
    Steadfast::open("given")
        .store(store)
        .env(env)
        .worker_name("worker")
        // A night waits for ten minutes at a time, and nobody else brings work.
        .poll(Duration::from_millis(50), Duration::from_secs(30))
        .state(Jobs::new(config))
        .command(sync_vendor_sales, job::contract(config))
        .govern(job::governance(config))
        .queue(Queue::new("connector_calls"))
        .queue(Queue::new("scheduled_maintenance"))
        .connector(vendor)
        .connector(at)
        .schedule(job::schedule(config, &config.vendors[0]))
        .start()
        .await
}

/// Whether a night is over. One that was not fired in time is asked for by hand, and every night is
/// asked for a second time: both give the night's one command.
async fn night(fabric: &Steadfast, env: &SimEnv, config: &Config, date: &str) -> Result<bool> {
    let nominal = fires_at(date);
    env.sleep(env.sim().now().until(nominal)).await;
    let vendor = &config.vendors[0];
    let schedule = fabric.schedule(job::schedule_id(vendor.name.as_str()));
    let Some(slot) = schedule.slots_between(nominal, nominal).await?.pop() else {
        return Ok(false);
    };
    if !matches!(slot.status, SlotStatus::Fired | SlotStatus::Missed) {
        return Err(Error::app(format!("{date}: {}", slot.status)));
    }
    let call = fabric.submit_named::<Report>(COMMAND, &job::order(vendor, date));
    let command = call.requested_by("system:scheduler").await?;
    command.ended().await?;
    Ok(true)
}

/// 03:00 of the day after.
fn fires_at(date: &str) -> Timestamp {
    parse_moment(date).unwrap().after(Duration::from_secs(27 * 3600))
}

/// What is on record: the commands by day, and the slots by nominal time.
struct Books {
    commands: BTreeMap<String, op::CommandRow>,
    slots: BTreeMap<Timestamp, op::SlotRow>,
}

impl Books {
    fn read(model: &ModelStore) -> Result<Self, String> {
        let workspace = "default".to_owned();
        let list =
            op::ListCommands { workspace: workspace.clone(), limit: 1000, ..Default::default() };
        let found = model.ask(list).now_or_never().unwrap().unwrap().commands;
        let mut commands = BTreeMap::new();
        for row in found {
            let key = row.idempotency_key.clone().unwrap();
            let date = key.rsplit(':').next().unwrap().to_owned();
            if let Some(other) = commands.insert(date, row) {
                return Err(format!("{key}: a second command beside {}", other.command_id));
            }
        }
        let list = op::ListSlots {
            workspace,
            trigger_id: job::schedule_id("acme_sales"),
            from: Timestamp::from_micros(0),
            until: Timestamp::NEVER,
            latest: false,
            limit: 1000,
        };
        let slots = model.ask(list).now_or_never().unwrap().unwrap().0.into_iter();
        Ok(Self { commands, slots: slots.map(|slot| (slot.nominal_at, slot)).collect() })
    }

    /// The command of a night that is over. The schedule has fired it in time, unless it was our
    /// own crashes that kept it.
    fn night(&self, date: &str, faults: u64) -> Result<&op::CommandRow, String> {
        let ended = self.commands.get(date).filter(|row| row.completed_at.is_some());
        let row = ended.ok_or_else(|| format!("{date}: no command of it has ended"))?;
        let slot = self.slots.get(&fires_at(date)).ok_or_else(|| format!("{date}: no slot"))?;
        let fired = slot.status == SlotStatus::Fired && slot.command_id == row.command_id;
        let missed = slot.status == SlotStatus::Missed && slot.command_id.is_empty();
        // A clock of ours that jumps may do so between the slot's time and its command's.
        let lag = match faults {
            0 => slot.nominal_at.until(row.created_at),
            _ => Duration::from_micros(slot.lag_us.unsigned_abs()),
        };
        let late = lag > IN_TIME;
        match () {
            () if fired && !late => Ok(row),
            () if missed && faults > 0 => Ok(row),
            () => Err(format!("{date}: {slot:?}, created at {}", row.created_at)),
        }
    }
}

/// What must be true of the world outside, whatever crashed.
pub(crate) fn judge(
    model: &ModelStore,
    vendor: &Vendor,
    at: &Warehouse,
    faults: u64,
) -> Result<(), String> {
    let books = Books::read(model)?;
    let mut faults_before = 0;
    for date in vendor.dates() {
        let row = books.night(&date, faults)?;
        let seen = vendor.seen(&date);
        let wrong = |why: &str| Err(format!("{date}: {why}: {:?} {seen:?}", row.error));
        requests(&seen, faults_before).or_else(|why| wrong(&why))?;
        faults_before = seen.last().map_or(faults_before, |seen| seen.faults);
        let last = seen.last().map_or(0, |seen| seen.status);
        if row.status == CommandStatus::Failed {
            let tried_out = at.unanswered(&date) >= attempts();
            if !tried_out && (last == 200 || at.commits(&date) > 0) {
                return wrong("failed without a reason");
            }
            continue;
        }
        if row.status != CommandStatus::Succeeded {
            return wrong(&format!("ended as {}", row.status));
        }
        let report: Report = serde_json::from_str(row.result.as_deref().unwrap()).unwrap();
        let (_, rows, total) = vendor.day(&date);
        match report.outcome {
            Outcome::Stale if at.commits(&date) > 0 => return wrong("stale, and written"),
            Outcome::Stale => {}
            Outcome::Loaded if at.commits(&date) != 1 => {
                return wrong(&format!("written {} times", at.commits(&date)));
            }
            Outcome::Loaded if at.partition(&date) != Some((rows, total.to_string())) => {
                return wrong("the partition is not the vendor's");
            }
            Outcome::Loaded if at.known(&date).is_none() => return wrong("nothing is known of it"),
            Outcome::Loaded => {}
        }
    }
    Ok(())
}

/// How often anything is tried.
fn attempts() -> u32 {
    Retry::listed([Duration::ZERO; 3]).max_attempts()
}

/// No 4xx is tried again, and no 5xx is given up early. In a night with faults of our own an answer
/// may never have been heard: then the request is made again.
fn requests(seen: &[Seen], faults_before: u64) -> Result<(), String> {
    for (at, request) in seen.iter().enumerate() {
        let after = seen.get(at + 1);
        let refused = (400..500).contains(&request.status) && request.status != 429;
        if refused && after.is_some_and(|next| next.faults == faults_before) {
            return Err(format!("{} was tried again", request.status));
        }
        let passing = !refused && request.status != 200;
        let before = seen[..at].iter().filter(|s| s.page == request.page).count();
        if passing && after.is_none() && before + 1 < attempts() as usize {
            return Err(format!("{} was given up after {}", request.status, before + 1));
        }
    }
    Ok(())
}
