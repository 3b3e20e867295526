//! Commands that stop while an effect is under way: cancelled, outrun by another branch, given up
//! after too many crashes, blocked, or stopped above their children.
//!
//! Invariants: the receiver's own books decide. Whatever it booked for a command that was stopped,
//! it was asked to take back, once; nothing was taken back that was not booked; the ledger leaves
//! nothing open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::connector::{Connector, Inbound, Operation, Outbound, Probe};
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    CancellationMode, Client, Compensation, Contract, Cx, Effect, EffectType, Error, ErrorClass,
    Result, Retry, Steadfast, Truth, Undo,
};
use steadfast_core::env::Env as _;
use steadfast_core::{CommandStatus, EffectStatus};
use steadfast_store::{Store, StoreExt as _, op};
use steadfast_testkit::faults::{Explore, Faults, Options, Outcome, Plan, Rates};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::{Handle, Sim, SimEnv};

use super::nodes::{self, CRASHES, STOPS};
use super::office::peek;

const WORKSPACE: &str = "travel";
const FLIGHT: &str = "POST /flights";
/// More crashes than a run is recovered from.
const TOO_MANY: u32 = 101;

/// What stops the command while its flight is being booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// Somebody cancels it.
    Cancel,
    /// Another branch of the same code fails.
    Branch,
    /// The worker dies again and again.
    Exhaust,
    /// It waits for a person, and somebody cancels it.
    Blocked,
    /// Somebody cancels it; a child is at it.
    Child,
    /// It fails; a child is at it.
    Orphan,
    /// It fails; a child that outlives it got no answer, may not try again, and goes on for long.
    Detached,
    /// None of its attempts to book gets an answer.
    Lost,
    /// Its first attempt gets no answer, and all others a no.
    Denied,
}

impl Stop {
    /// Who stops it: somebody, or the code itself.
    fn is_cancelled(self) -> bool {
        matches!(self, Self::Cancel | Self::Blocked | Self::Child)
    }
}

/// How the airline knows what it was asked before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// It honours keys.
    Keyed,
    /// It can be asked.
    Asked,
    /// Not at all: only people can look at its books.
    None,
    /// It can be asked, and is never there for it.
    Deaf,
}

/// Each way to stop with each memory that lets it come to that.
const SHAPES: [(Stop, Memory); 20] = [
    (Stop::Cancel, Memory::Keyed),
    (Stop::Cancel, Memory::Asked),
    (Stop::Cancel, Memory::None),
    (Stop::Branch, Memory::Keyed),
    (Stop::Branch, Memory::Asked),
    (Stop::Branch, Memory::None),
    (Stop::Blocked, Memory::None),
    (Stop::Blocked, Memory::Deaf),
    (Stop::Branch, Memory::Deaf),
    (Stop::Child, Memory::Keyed),
    (Stop::Child, Memory::Asked),
    (Stop::Child, Memory::None),
    (Stop::Orphan, Memory::Keyed),
    (Stop::Orphan, Memory::Asked),
    (Stop::Orphan, Memory::None),
    (Stop::Detached, Memory::Keyed),
    (Stop::Detached, Memory::Asked),
    (Stop::Detached, Memory::None),
    (Stop::Lost, Memory::Keyed),
    (Stop::Denied, Memory::Keyed),
];

/// The other side: hotels at once, flights slowly.
#[derive(Clone)]
struct Airline {
    stop: Stop,
    memory: Memory,
    env: Arc<SimEnv>,
    handle: Handle,
    /// Who calls.
    node: String,
    scope: Arc<Vec<Operation>>,
    books: Arc<Mutex<Books>>,
}

#[derive(Default)]
struct Books {
    /// How often each key was booked, and taken back.
    booked: BTreeMap<String, u32>,
    returned: BTreeMap<String, u32>,
    /// How often a flight was asked for.
    flights: u32,
    /// Whether the traveller was told that it was too late to cancel.
    too_late: bool,
}

impl Airline {
    fn new(stop: Stop, memory: Memory, handle: Handle) -> Self {
        let flight = Operation::write(FLIGHT);
        let flight = if memory == Memory::Keyed { flight.keyed() } else { flight };
        let hotel = Operation::write("POST /hotels").keyed();
        let back = Operation::write("DELETE /bookings").keyed();
        let scope = Arc::new(vec![flight, hotel, back]);
        let env = handle.node("airline");
        let node = String::new();
        Self { stop, memory, env, handle, node, scope, books: Arc::default() }
    }

    fn flights(&self) -> u32 {
        self.books.lock().unwrap().flights
    }

    fn has(&self, key: &str) -> bool {
        self.books.lock().unwrap().booked.contains_key(key)
    }

    /// What arrives is done, whatever has become of who sent it.
    fn work(&self, request: &Outbound) {
        let mut books = self.books.lock().unwrap();
        let key = request.key.clone().unwrap_or_default();
        let keyed = request.operation != FLIGHT || self.memory == Memory::Keyed;
        let page = match request.operation.as_str() {
            "DELETE /bookings" => &mut books.returned,
            _ => &mut books.booked,
        };
        let of = match request.input["of"].as_str() {
            Some(of) => of.to_owned(),
            None => key,
        };
        let times = page.entry(of).or_default();
        if !keyed || *times == 0 {
            *times += 1;
        }
    }

    async fn serve(self, request: Outbound, answer: oneshot::Sender<Result<Inbound>>) {
        let flight = request.operation == FLIGHT;
        if flight {
            self.books.lock().unwrap().flights += 1;
        }
        self.env.sleep(Duration::from_millis(100)).await;
        if flight && self.stop == Stop::Denied && self.flights() > 1 {
            let no = Error::new(ErrorClass::PermanentConnectorError, "SF-0001", "403");
            return drop(answer.send(Err(no)));
        }
        self.work(&request);
        if flight && self.stop == Stop::Exhaust && self.flights() <= TOO_MANY {
            return self.handle.crash(&self.node);
        }
        let silent = match self.stop {
            Stop::Blocked | Stop::Denied => true,
            Stop::Lost => self.flights() <= self.retry().max_attempts(),
            _ => false,
        };
        if flight && silent {
            let lost = Error::new(ErrorClass::Timeout, "SF-0001", "no answer");
            return drop(answer.send(Err(lost)));
        }
        if flight {
            self.env.sleep(Duration::from_secs(4)).await;
        }
        if flight && self.stop == Stop::Detached && self.flights() == 1 {
            let lost = Error::new(ErrorClass::Timeout, "SF-0001", "no answer");
            return drop(answer.send(Err(lost)));
        }
        let done = Inbound::new(json!({ "ok": true }), request.operation, "200");
        let _ = answer.send(Ok(done));
    }

    /// Every booking was made once and, if the trip did not take place, taken back once.
    fn judge(&self, stays: bool) -> Result<(), String> {
        let books = self.books.lock().unwrap();
        let back = if stays { &BTreeMap::new() } else { &books.booked };
        match books.returned == *back && books.booked.values().all(|times| *times == 1) {
            true => Ok(()),
            false => Err(format!("booked {:?}, returned {:?}", books.booked, books.returned)),
        }
    }
}

impl Connector for Airline {
    fn name(&self) -> &str {
        "airline"
    }

    fn scope(&self) -> &[Operation] {
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        let (answer, answered) = oneshot::channel();
        self.env.spawn("request", Box::pin(self.clone().serve(request.clone(), answer)));
        Box::pin(async move {
            let cut = || Err(Error::new(ErrorClass::TransientConnectorError, "SF-0001", "cut"));
            answered.await.unwrap_or_else(|_| cut())
        })
    }

    fn probe<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Probe>> {
        let done = self.has(request.key.as_deref().unwrap_or_default());
        let answer = match self.memory {
            Memory::Asked if done => {
                Probe::Done(Inbound::new(json!({ "ok": true }), &request.operation, "200"))
            }
            Memory::Asked => Probe::NotDone,
            Memory::Keyed | Memory::None => Probe::CannotTell,
            Memory::Deaf => {
                let away = Error::new(ErrorClass::TransientConnectorError, "SF-0001", "away");
                return Box::pin(std::future::ready(Err(away)));
            }
        };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn retry(&self) -> Retry {
        Retry::exponential(6, Duration::from_secs(1), 1.0)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Trip {
    stop: String,
}

async fn fly(cx: Cx, _: ()) -> Result<Value> {
    let request = Outbound::new(FLIGHT, json!({}));
    cx.effect_via(Effect::of("flight.book"), "airline", request).await
}

async fn fly_and_stay(cx: Cx, _: ()) -> Result<()> {
    let _ = fly(cx.clone(), ()).await;
    cx.sleep(Duration::from_secs(86_400)).await
}

async fn travel(cx: Cx, trip: Trip) -> Result<String> {
    let hotel = Outbound::new("POST /hotels", json!({}));
    let _: Value = cx.effect_via(Effect::of("hotel.book"), "airline", hotel).await?;
    let fails = || Error::new(ErrorClass::Application, "SF-0001", "no visa").permanent();
    match trip.stop.as_str() {
        "Child" => drop(cx.child(fly, ()).await?),
        "Orphan" => {
            let _child = cx.spawn(fly, ()).await?;
            cx.sleep(Duration::from_secs(2)).await?;
            return Err(fails());
        }
        "Detached" => {
            let _child = cx.spawn(fly_and_stay, ()).detached().await?;
            cx.sleep(Duration::from_secs(2)).await?;
            return Err(fails());
        }
        "Branch" => {
            let flight = fly(cx.clone(), ());
            let visa = async {
                cx.sleep(Duration::from_secs(2)).await?;
                Err::<(), _>(fails())
            };
            futures::try_join!(flight, visa)?;
        }
        _ => drop(fly(cx.clone(), ()).await?),
    }
    Ok("there".to_owned())
}

async fn give_back(cx: Cx, undo: Undo) -> Result<()> {
    let effect = Effect::keyed("booking.return", format!("return {}", undo.key));
    let request = Outbound::new("DELETE /bookings", json!({ "of": undo.key }));
    let _: Value = cx.effect_via(effect, "airline", request).await?;
    Ok(())
}

fn contract() -> Contract {
    let classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);
    let made = |name: &str| EffectType::new(name).classes(classes);
    Contract::new()
        .key("travel:{stop}")
        .effect(made("hotel.book").undone_by("give_back"))
        .effect(made("flight.book").undone_by("give_back"))
        .effect(made("booking.return").not_undone("it takes back"))
        .compensation(Compensation::new("give_back", ["booking.return"]), give_back)
        .on_cancel(CancellationMode::CompensateThenStop)
}

async fn boot(env: Arc<SimEnv>, store: Arc<dyn Store>, airline: Airline) {
    let trip = Trip { stop: format!("{:?}", airline.stop) };
    let fabric = Steadfast::open("given")
        .store(store)
        .env(env)
        .workspace(WORKSPACE)
        .worker_name(airline.node.clone())
        // Shorter than a flight takes.
        .lease(Duration::from_secs(3))
        .workflow(fly)
        .workflow(fly_and_stay)
        .command(travel, contract())
        .connector(airline)
        .start()
        .await;
    let Ok(fabric) = fabric else { return };
    let _ = fabric.submit(travel, trip).requested_by("user:1").await;
    // A node has its program until it dies: the last handle would end it.
    std::future::pending::<()>().await;
}

fn command(model: &ModelStore) -> Option<op::CommandRow> {
    let workspace = WORKSPACE.to_owned();
    let list = op::ListCommands { workspace, limit: 10, ..op::ListCommands::default() };
    peek(model, list).commands.into_iter().next()
}

fn effects(model: &ModelStore) -> Vec<op::EffectRow> {
    let workspace = WORKSPACE.to_owned();
    peek(model, op::ListEffects { workspace, limit: 100, ..op::ListEffects::default() }).0
}

/// Cancels a second after the flight was asked for.
async fn traveller(env: Arc<SimEnv>, model: Arc<ModelStore>, airline: Airline) {
    loop {
        env.sleep(Duration::from_millis(500)).await;
        let Some(row) = command(&model) else { continue };
        let ready = match airline.stop {
            Stop::Blocked => row.status == CommandStatus::Blocked,
            _ => airline.flights() > 0,
        };
        if !ready {
            continue;
        }
        env.sleep(Duration::from_millis(500)).await;
        let cancel = op::CancelCommand {
            workspace: WORKSPACE.to_owned(),
            command_id: row.command_id,
            reason: Error::app("changed our mind"),
            actor: "user:1".to_owned(),
            now: env.now(),
        };
        let told = model.ask(cancel).await;
        let too_late = matches!(told, Ok(op::CommandCancelled::AlreadyOver(_)));
        airline.books.lock().unwrap().too_late = too_late;
        return;
    }
}

/// Looks into the airline's books for those who ask, when nothing is on its way any more. A blocked
/// trip is looked at only once it is cancelled.
async fn clerk(env: Arc<SimEnv>, model: Arc<ModelStore>, airline: Airline) {
    let client = Client::over(env.clone(), model.clone(), WORKSPACE).unwrap();
    loop {
        env.sleep(Duration::from_secs(3)).await;
        let status = command(&model).map(|row| row.status);
        if airline.stop == Stop::Blocked && status == Some(CommandStatus::Blocked) {
            continue;
        }
        for row in effects(&model) {
            let quiet = row.updated_at.after(Duration::from_secs(5)) < env.now();
            if row.status != EffectStatus::Unknown || !quiet {
                continue;
            }
            let truth = match airline.has(&row.idempotency_key) {
                true => Truth::Done("{\"ok\":true}".to_owned()),
                false => Truth::NotDone,
            };
            let _ = client.resolve_effect(&row.effect_id, truth, "user:clerk", "the books").await;
        }
    }
}

fn world(stop: Stop, memory: Memory, nodes: usize, plan: Plan) -> Outcome {
    let sim = Sim::new(plan.seed());
    let model = Arc::new(ModelStore::new());
    let faults = Faults::new(&sim.handle(), plan, Options::default());
    sim.set_chaos(faults.clone());
    let airline = Airline::new(stop, memory, sim.handle());
    let booked = airline.clone();
    nodes::raise(nodes, &sim, &faults, &model, move |env, store| {
        let airline = Airline { node: env.name().to_owned(), ..booked.clone() };
        Box::pin(boot(env, store, airline))
    });
    let desk = sim.node("desk");
    desk.spawn("clerk", Box::pin(clerk(desk.clone(), model.clone(), airline.clone())));
    if stop.is_cancelled() {
        let task = traveller(desk.clone(), model.clone(), airline.clone());
        desk.spawn("traveller", Box::pin(task));
    }
    let watched = model.clone();
    let over = move || {
        let row = command(&watched);
        let ended = |row: &op::CommandRow| row.completed_at.is_some();
        row.as_ref().is_some_and(ended)
    };
    if let Err(stuck) = sim.run_until(over, Duration::from_secs(7200)) {
        let why = format!("it does not end: {stuck}; {:?}", effects(&model));
        return faults.outcome(Err(why));
    }
    let outcome = faults.outcome(Ok(()));
    // Whoever is still at it has time to do harm.
    sim.run_for(Duration::from_secs(30));
    Outcome { verdict: judge(stop, &airline, &model), ..outcome }
}

fn judge(stop: Stop, airline: &Airline, model: &ModelStore) -> Result<(), String> {
    let row = command(model).expect("invariant: it has ended");
    // Where the flight was never asked for, nobody cancels: it fails.
    let cancelled = row.status == CommandStatus::Cancelled && stop.is_cancelled();
    let failed = row.status == CommandStatus::Compensated
        && (!stop.is_cancelled() || airline.flights() == 0);
    // A crash in the middle of the last attempt is worth one more, and that is answered.
    let lucky = stop == Stop::Lost || airline.books.lock().unwrap().too_late;
    let lucky = lucky && row.status == CommandStatus::Succeeded;
    if !cancelled && !failed && !lucky {
        return Err(format!("it ended as {}: {:?}", row.status, row.error));
    }
    let open =
        |row: &op::EffectRow| matches!(row.status, EffectStatus::Executing | EffectStatus::Unknown);
    if let Some(open) = effects(model).into_iter().find(open) {
        return Err(format!("left open: {open:?}"));
    }
    airline.judge(lucky).map_err(|why| format!("{why}; the ledger has {:?}", effects(model)))
}

/// R110, R111, X3: nothing that was under way is forgotten when its command stops.
#[test]
fn what_was_under_way_is_taken_back() {
    for (stop, memory) in SHAPES.into_iter().chain([(Stop::Exhaust, Memory::Keyed)]) {
        if let Err(why) = world(stop, memory, 1, Plan::none()).verdict {
            panic!("{stop:?} with {memory:?}: {why}");
        }
    }
}

/// The same with a crash before and after every commit and inside every call.
#[test]
fn what_was_under_way_is_taken_back_through_crashes() {
    for (stop, memory) in SHAPES {
        let report = Explore::new(&format!("{stop:?} {memory:?}")).depth(1).faults(CRASHES);
        report.run(|plan| world(stop, memory, 1, plan)).check();
    }
}

/// The same with a second node, and one that stands still for longer than its lease and goes on.
#[test]
fn what_was_under_way_is_taken_back_beside_a_node_that_stops_and_continues() {
    for (stop, memory) in SHAPES {
        let report = Explore::new(&format!("{stop:?} {memory:?}")).depth(1).faults(STOPS);
        report.budget(30).run(|plan| world(stop, memory, 2, plan)).check();
    }
}

/// The same over seeds of many faults.
#[test]
fn what_was_under_way_is_taken_back_over_seeds_of_faults() {
    for seed in 0..260 {
        let (stop, memory) = SHAPES[usize::try_from(seed).unwrap() % SHAPES.len()];
        let outcome = world(stop, memory, 2, Plan::random(seed, Rates::swarm(seed)));
        if let Err(why) = &outcome.verdict {
            panic!("seed {seed} ({stop:?} with {memory:?}): {why}");
        }
    }
}
