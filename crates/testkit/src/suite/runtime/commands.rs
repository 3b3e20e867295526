//! Commands: one per key, one life, one commit with their run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Capability, Command, CommandStatus, Contract, Cx, Error, ErrorClass, ExecutionRuntime, Ingress,
    ListCommands, Parent, Result, RetryPolicy, RunStatus,
};
use steadfast_core::env::Env;
use steadfast_core::runtime::StartWorkflow;
use steadfast_store::StoreExt;
use steadfast_store::op::{CommandRef, GetCommand, SettleCommands, Settled};
use tokio::sync::{Notify, Semaphore};

use super::{Fixture, SOON, case_table, until};

case_table![
    a_command_passes_its_statuses_and_leaves_its_events,
    r005_the_same_key_is_the_same_command_and_another_payload_is_a_conflict,
    r006_commands_without_a_key_never_meet,
    r007_the_row_holds_who_what_and_whence,
    r056_workspaces_never_collide,
    x2_a_command_waits_for_others_and_falls_with_them,
    x2_the_next_command_begins_with_the_end_of_the_one_before,
    x2_nobody_waits_in_a_circle,
    a_cancel_lets_the_step_under_way_end_and_begins_nothing_more,
    a_cancel_waits_for_a_step_that_is_longer_than_the_lease,
    a_command_that_has_not_begun_in_time_expires,
    r104_the_trace_reaches_the_code_and_its_children,
    r101_a_runtime_starts_signals_cancels_and_tells,
    bad_submissions_are_refused_and_change_nothing,
];

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Sync {
    vendor_name: String,
    target_date: String,
}

fn sync(date: &str) -> Sync {
    Sync { vendor_name: "acme_sales".to_owned(), target_date: date.to_owned() }
}

async fn sync_vendor_sales(cx: Cx, input: Sync) -> Result<String> {
    let date = input.target_date.clone();
    if date == "bad" {
        return Err(Error::new(ErrorClass::ValidationError, "SF-0001", "no such day"));
    }
    cx.step("fetch", move || async move { Ok::<_, Error>(1) }).await?;
    Ok(input.target_date)
}

fn contract() -> Contract {
    Contract::new().key("sync_vendor_sales:{vendor_name}:{target_date}")
}

async fn types(command: &Command<String>) -> Vec<String> {
    command.events().await.unwrap().into_iter().map(|event| event.event_type).collect()
}

/// R8, R9
async fn a_command_passes_its_statuses_and_leaves_its_events(f: Fixture) {
    let fabric = f.fabric().command(sync_vendor_sales, contract()).start().await.unwrap();
    let done = fabric.submit(sync_vendor_sales, sync("2026-06-01")).await.unwrap();
    assert_eq!(done.result().await.unwrap(), "2026-06-01");
    let path = ["created", "validated", "queued", "running", "succeeded"];
    assert_eq!(types(&done).await, path.map(|status| format!("command.{status}")));
    let failed = fabric.submit(sync_vendor_sales, sync("bad")).await.unwrap();
    assert_eq!(failed.result().await.unwrap_err().class(), ErrorClass::ValidationError);
    let info = failed.info().await.unwrap().command;
    assert_eq!(info.status, CommandStatus::Failed);
    assert!(info.completed_at.is_some() && info.error.is_some());
    // Cancelled after its end: the loser is told.
    let late = done.cancel("too late", "user:1").await.unwrap_err();
    assert_eq!(late.code(), "SF-0513");
    let page =
        ListCommands { status: vec![CommandStatus::Failed], limit: 10, ..Default::default() };
    assert_eq!(fabric.commands(page).await.unwrap().commands.len(), 1);
    fabric.shutdown().await;
}

/// R5, R61: also at the same moment, also from different processes.
async fn r005_the_same_key_is_the_same_command_and_another_payload_is_a_conflict(f: Fixture) {
    let one = f.fabric().command(sync_vendor_sales, contract()).start().await.unwrap();
    let two = f.fabric().command(sync_vendor_sales, contract()).start().await.unwrap();
    let calls = (0..20).map(|n| {
        let fabric = if n % 2 == 0 { &one } else { &two };
        let call = fabric.submit(sync_vendor_sales, sync("2026-06-01"));
        call.requested_by(format!("user:{n}")).into_future()
    });
    let commands: Vec<_> = futures::future::join_all(calls).await;
    let commands: Vec<_> = commands.into_iter().map(|command| command.unwrap()).collect();
    assert_eq!(commands.iter().filter(|command| command.is_new()).count(), 1);
    assert!(commands.iter().all(|command| command.id() == commands[0].id()));
    commands[0].result().await.unwrap();
    let info = commands[0].info().await.unwrap();
    assert_eq!(info.command.collapsed, 19, "repetitions are counted");
    assert_eq!(info.duplicates.len(), 19, "and listed");
    let all = one.commands(ListCommands { limit: 100, ..Default::default() }).await.unwrap();
    assert_eq!(all.commands.len(), 1);
    // The key of something else.
    let key = format!("{}/sync_vendor_sales:acme_sales:2026-06-01", f.workspace);
    let other = one.submit(sync_vendor_sales, sync("2026-06-02")).key(key).await.err().unwrap();
    assert_eq!((other.code(), other.class()), ("SF-0501", ErrorClass::Conflict));
    assert!(other.message().contains("another payload"), "{other}");
    assert_eq!(commands[0].info().await.unwrap().command.collapsed, 19, "a conflict is no repeat");
    one.shutdown().await;
    two.shutdown().await;
}

/// R6
async fn r006_commands_without_a_key_never_meet(f: Fixture) {
    let fabric = f.fabric().command(sync_vendor_sales, Contract::new()).start().await.unwrap();
    for _ in 0..3 {
        let one = fabric.submit(sync_vendor_sales, sync("2026-06-01")).await.unwrap();
        assert!(one.is_new());
        assert_eq!(one.info().await.unwrap().command.idempotency_key, None);
    }
    let all = fabric.commands(ListCommands { limit: 100, ..Default::default() }).await.unwrap();
    assert_eq!(all.commands.len(), 3);
    fabric.shutdown().await;
}

/// R3, R7
async fn r007_the_row_holds_who_what_and_whence(f: Fixture) {
    let fabric = f.fabric().command(sync_vendor_sales, contract()).start().await.unwrap();
    let call = fabric.submit(sync_vendor_sales, sync("2026-06-01"));
    let call = call.requested_by("system:scheduler").ingress(Ingress::ScheduledTrigger);
    let command = call.correlation_id("night-1").await.unwrap();
    let row = command.info().await.unwrap().command;
    assert_eq!(row.command_type, "sync_vendor_sales");
    assert_eq!(
        (row.requested_by.as_str(), row.ingress.as_str()),
        ("system:scheduler", "scheduled_trigger")
    );
    assert_eq!(row.payload, r#"{"target_date":"2026-06-01","vendor_name":"acme_sales"}"#);
    assert_eq!(row.cancellation_mode, "graceful");
    assert!(row.idempotency_key.unwrap().ends_with("sync_vendor_sales:acme_sales:2026-06-01"));
    let context: serde_json::Value = serde_json::from_str(&row.context).unwrap();
    assert_eq!(context["correlation_id"], "night-1");
    assert_eq!(context["trace_id"].as_str().unwrap().len(), 32);
    let run = fabric.get(&row.workflow_id).await.unwrap();
    assert_eq!(run.workflow, "sync_vendor_sales", "the runtime's own id leads to the run");
    assert_eq!(command.id().len(), 36, "a UUID");
    fabric.shutdown().await;
}

/// R56, R60
async fn r056_workspaces_never_collide(f: Fixture) {
    let other = Fixture { workspace: format!("{}-b", f.workspace), ..f.clone() };
    let mut keys = Vec::new();
    for fixture in [f, other] {
        let fabric = fixture.fabric().command(sync_vendor_sales, contract()).start().await.unwrap();
        let command = fabric.submit(sync_vendor_sales, sync("2026-06-01")).await.unwrap();
        assert!(command.is_new());
        keys.push(command.info().await.unwrap().command.idempotency_key.unwrap());
        fabric.shutdown().await;
    }
    assert_ne!(keys[0], keys[1], "the key holds the workspace");
}

/// Holds every step of `gated` until it is let through.
#[derive(Clone)]
struct Gate {
    open: Arc<Notify>,
    /// A permit for each step that has begun.
    begun: Arc<Semaphore>,
    /// How many steps have run to their end.
    passed: Arc<AtomicU32>,
}

impl Gate {
    fn new() -> Self {
        Self {
            open: Arc::new(Notify::new()),
            begun: Arc::new(Semaphore::new(0)),
            passed: Arc::default(),
        }
    }

    /// Waits for the next step to begin: a run that is claimed has not begun its step yet.
    async fn begins(&self) {
        let begun = tokio::time::timeout(SOON, self.begun.acquire()).await;
        begun.expect("a step begins in time").unwrap().forget();
    }

    fn passed(&self) -> u32 {
        self.passed.load(Ordering::SeqCst)
    }
}

async fn gated(cx: Cx, name: String) -> Result<String> {
    let gate = cx.state::<Gate>()?;
    cx.step("pass", {
        let (gate, name) = (gate.clone(), name.clone());
        move || {
            let (gate, fails) = (gate.clone(), name.starts_with("fail"));
            async move {
                gate.begun.add_permits(1);
                gate.open.notified().await;
                gate.passed.fetch_add(1, Ordering::SeqCst);
                if fails { Err(Error::app("no")) } else { Ok(()) }
            }
        }
    })
    .await?;
    Ok(name)
}

/// X2
async fn x2_the_next_command_begins_with_the_end_of_the_one_before(f: Fixture) {
    let (gate, rare) = (Gate::new(), SOON * 10);
    let fabric = f.fabric().lease(rare).poll(rare, rare).state(gate.clone());
    let fabric = fabric.command(gated, Contract::new()).start().await.unwrap();
    let first = fabric.submit(gated, "first".to_owned()).await.unwrap();
    let second = fabric.submit(gated, "second".to_owned()).after(first.id()).await.unwrap();
    let third = fabric.submit(gated, "third".to_owned()).after(second.id()).await.unwrap();
    for _ in 0..3 {
        // The first was claimed with its submission, the others come by their queue.
        tokio::time::timeout(SOON, gate.begun.acquire()).await.unwrap().unwrap().forget();
        gate.open.notify_one();
    }
    assert_eq!(third.result().await.unwrap(), "third");
    fabric.shutdown().await;
}

/// X2
async fn x2_a_command_waits_for_others_and_falls_with_them(f: Fixture) {
    let gate = Gate::new();
    let fabric =
        f.patient().state(gate.clone()).command(gated, Contract::new()).start().await.unwrap();
    let first = fabric.submit(gated, "first".to_owned()).await.unwrap();
    let second = fabric.submit(gated, "second".to_owned()).after(first.id()).await.unwrap();
    let third = fabric.submit(gated, "third".to_owned()).after(second.id()).await.unwrap();
    assert_eq!(second.status().await.unwrap(), CommandStatus::Validated);
    gate.open.notify_one();
    assert_eq!(first.result().await.unwrap(), "first");
    until("the second runs", async || second.status().await.unwrap() == CommandStatus::Running)
        .await;
    assert_eq!(third.status().await.unwrap(), CommandStatus::Validated);
    second.cancel("enough", "user:1").await.unwrap();
    gate.open.notify_one();
    let ended = third.ended().await.unwrap().command;
    assert_eq!(ended.status, CommandStatus::Cancelled, "what it waits for can no longer come");
    assert_eq!(ended.error.unwrap().code(), "SF-0507");
    // Without propagation it fails instead, and whoever waits for any end goes on.
    let bad = fabric.submit(gated, "fail".to_owned()).await.unwrap();
    let on = |required, propagate| Parent { command_id: bad.id().to_owned(), required, propagate };
    let strict = fabric.submit(gated, "strict".to_owned());
    let strict = strict.after_with(on(Some(CommandStatus::Succeeded), false)).await.unwrap();
    let any = fabric.submit(gated, "any".to_owned()).after_with(on(None, true)).await.unwrap();
    gate.open.notify_one();
    assert_eq!(strict.ended().await.unwrap().command.status, CommandStatus::Failed);
    gate.open.notify_one();
    assert_eq!(any.result().await.unwrap(), "any");
    // Submitted when it is too late already.
    let stillborn = fabric.submit(gated, "late".to_owned()).after(bad.id()).await.unwrap();
    assert_eq!(stillborn.status().await.unwrap(), CommandStatus::Cancelled);
    let nobody = fabric.submit(gated, "x".to_owned()).after("nobody").await.err().unwrap();
    assert_eq!(nobody.code(), "SF-0506");
    let moment = on(Some(CommandStatus::Running), true);
    let moment = fabric.submit(gated, "x".to_owned()).after_with(moment).await.err().unwrap();
    assert_eq!(moment.code(), "SF-0517");
    fabric.shutdown().await;
}

/// X2
async fn x2_nobody_waits_in_a_circle(f: Fixture) {
    let gate = Gate::new();
    let fabric =
        f.patient().state(gate.clone()).command(gated, Contract::new()).start().await.unwrap();
    let root = fabric.submit(gated, "root".to_owned()).await.unwrap();
    let one = fabric.submit(gated, "one".to_owned()).after(root.id()).await.unwrap();
    let two = fabric.submit(gated, "two".to_owned()).after(one.id()).await.unwrap();
    let on = |id: &str| Parent { command_id: id.to_owned(), required: None, propagate: true };
    let circle = fabric.depend(one.id(), on(two.id())).await.unwrap_err();
    assert_eq!(circle.code(), "SF-0515");
    assert!(circle.message().contains(one.id()) && circle.message().contains(two.id()));
    assert_eq!(fabric.depend(one.id(), on(one.id())).await.unwrap_err().code(), "SF-0515");
    assert_eq!(fabric.depend(root.id(), on("gone")).await.unwrap_err().code(), "SF-0505");
    let begun = fabric.submit(gated, "other".to_owned()).await.unwrap();
    assert_eq!(fabric.depend(begun.id(), on(root.id())).await.unwrap_err().code(), "SF-0516");
    fabric.depend(two.id(), on(root.id())).await.unwrap();
    assert_eq!(two.info().await.unwrap().after.len(), 2);
    for _ in 0..4 {
        gate.open.notify_one();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fabric.shutdown().await;
}

/// R34, R35, R36, R37, R38
async fn a_cancel_lets_the_step_under_way_end_and_begins_nothing_more(f: Fixture) {
    let gate = Gate::new();
    let fabric =
        f.patient().state(gate.clone()).command(gated, Contract::new()).start().await.unwrap();
    let command = fabric.submit(gated, "x".to_owned()).await.unwrap();
    let run = command.run().await.unwrap();
    gate.begins().await;
    // From another process, which holds no gate.
    let elsewhere = f.client();
    let status = elsewhere.command::<String>(command.id()).cancel("stop", "user:7").await.unwrap();
    assert_eq!(status, CommandStatus::Cancelling);
    assert_eq!(command.status().await.unwrap(), CommandStatus::Cancelling);
    gate.open.notify_one();
    let ended = command.ended().await.unwrap().command;
    assert_eq!(ended.status, CommandStatus::Cancelled);
    let path = types(&command).await;
    assert_eq!(path[path.len() - 2..], ["command.cancelling", "command.cancelled"]);
    assert_eq!(command.events().await.unwrap()[path.len() - 2].actor, "user:7");
    assert_eq!(gate.passed(), 1, "the step ran to its end");
    assert_eq!(fabric.steps(run.id()).await.unwrap(), [], "and its result was discarded");
    // A command that nobody executes is cancelled at once, and its run cannot be resumed.
    let waits =
        fabric.submit(gated, "y".to_owned()).after(fabric_blocker(&fabric).await).await.unwrap();
    assert_eq!(waits.cancel("", "user:7").await.unwrap(), CommandStatus::Cancelled);
    assert_eq!(fabric.resume(run.id()).await.unwrap_err().class(), ErrorClass::Conflict);
    gate.open.notify_one();
    fabric.shutdown().await;
}

/// R37: nobody says that it is over while it is not.
async fn a_cancel_waits_for_a_step_that_is_longer_than_the_lease(f: Fixture) {
    const LEASE: Duration = Duration::from_secs(4);
    let gate = Gate::new();
    let fabric = f.fabric().lease(LEASE).state(gate.clone()).command(gated, Contract::new());
    let fabric = fabric.start().await.unwrap();
    let command = fabric.submit(gated, "x".to_owned()).await.unwrap();
    gate.begins().await;
    assert_eq!(command.cancel("stop", "user:7").await.unwrap(), CommandStatus::Cancelling);
    // Whoever looks for commands whose time is up leaves it alone, also after the lease.
    let asked = tokio::time::Instant::now();
    while asked.elapsed() < LEASE * 3 / 2 {
        tokio::time::sleep(LEASE / 16).await;
        let (workspace, now) = (f.workspace.clone(), steadfast::TokioEnv::current().now());
        let look = SettleCommands { workspace, left: None, limit: 10, now };
        assert_eq!(f.store.ask(look).await.unwrap(), Settled(vec![]));
        assert_eq!(command.status().await.unwrap(), CommandStatus::Cancelling);
    }
    assert_eq!(gate.passed(), 0);
    gate.open.notify_one();
    assert_eq!(command.ended().await.unwrap().command.status, CommandStatus::Cancelled);
    assert_eq!(gate.passed(), 1, "the step ran to its end");
    fabric.shutdown().await;
}

async fn fabric_blocker(fabric: &steadfast::Steadfast) -> String {
    fabric.submit(gated, "blocker".to_owned()).await.unwrap().id().to_owned()
}

async fn a_command_that_has_not_begun_in_time_expires(f: Fixture) {
    let gate = Gate::new();
    let short = Contract::new().expires_after(Duration::from_millis(50));
    let fabric = f.patient().state(gate.clone()).command(gated, short).start().await.unwrap();
    let begun = fabric.submit(gated, "begun".to_owned()).await.unwrap();
    let waits = fabric.submit(gated, "waits".to_owned()).after(begun.id()).await.unwrap();
    let ended = waits.ended().await.unwrap().command;
    assert_eq!(ended.status, CommandStatus::Cancelled);
    assert_eq!(ended.error.unwrap().code(), "SF-0510");
    gate.open.notify_one();
    assert_eq!(begun.result().await.unwrap(), "begun", "what has begun is let end");
    // Nobody was there in time: whoever takes it from its queue ends it instead.
    let past = steadfast::Timestamp::from_micros(1);
    let late = fabric.submit(gated, "late".to_owned()).expires_at(past).await.unwrap();
    let ended = late.ended().await.unwrap().command;
    assert_eq!(ended.error.unwrap().code(), "SF-0510");
    assert!(!types(&late).await.contains(&"command.running".to_owned()));
    fabric.shutdown().await;
}

async fn leaf(cx: Cx, _: ()) -> Result<(String, String, String)> {
    let context = cx.context();
    Ok((context.trace_id.clone(), context.correlation_id.clone(), context.command_id.clone()))
}

async fn trunk(cx: Cx, _: ()) -> Result<Vec<(String, String, String)>> {
    let own = cx.context().clone();
    let child = cx.child(leaf, ()).await?;
    Ok(vec![(own.trace_id, own.correlation_id, own.command_id), child])
}

/// R104
async fn r104_the_trace_reaches_the_code_and_its_children(f: Fixture) {
    let fabric = f.fabric().command(trunk, Contract::new()).workflow(leaf).start().await.unwrap();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let call = fabric.submit(trunk, ()).trace_id(trace).correlation_id("night-1");
    let command = call.await.unwrap();
    let wanted = (trace.to_owned(), "night-1".to_owned(), command.id().to_owned());
    assert_eq!(command.result().await.unwrap(), [wanted.clone(), wanted]);
    let events = command.events().await.unwrap();
    assert!(events.iter().all(|event| event.trace_id == trace));
    fabric.shutdown().await;
}

/// R101, R103
async fn r101_a_runtime_starts_signals_cancels_and_tells(f: Fixture) {
    async fn waits(cx: Cx, _: ()) -> Result<String> {
        cx.wait_signal::<String>("go").await
    }
    let fabric = f.fabric().workflow(waits).start().await.unwrap();
    let client = steadfast_runtime_native::Client::new(
        Arc::new(steadfast::TokioEnv::current()),
        f.store.clone(),
        &f.workspace,
    );
    let runtime: Box<dyn ExecutionRuntime> = Box::new(client.unwrap());
    let start = |key: &str| StartWorkflow {
        workflow_name: "waits".to_owned(),
        input: "null".to_owned(),
        idempotency_key: key.to_owned(),
        correlation_id: "c-1".to_owned(),
        trace_id: None,
    };
    assert_eq!(runtime.start(start("")).await.unwrap_err().code(), "SF-0512");
    let first = runtime.start(start("w1")).await.unwrap();
    let again = runtime.start(start("w1")).await.unwrap();
    assert_eq!((first.workflow_id.as_str(), first.already_existed), ("w1", false));
    assert_eq!((again.workflow_id.as_str(), again.already_existed), ("w1", true));
    runtime.signal("w1", "go", "\"now\"".to_owned()).await.unwrap();
    assert_eq!(fabric.run::<String>("w1").result().await.unwrap(), "now");
    let state = runtime.get("w1").await.unwrap();
    assert_eq!((state.status, state.correlation_id.as_str()), (RunStatus::Success, "c-1"));
    assert_eq!((state.name.as_str(), state.outcome), ("waits", Some(Ok("\"now\"".to_owned()))));
    runtime.start(start("w2")).await.unwrap();
    runtime.cancel("w2", "enough").await.unwrap();
    assert_eq!(runtime.get("w2").await.unwrap().status, RunStatus::Cancelled);
    assert!(runtime.capabilities().contains(&Capability::DurableWorkflows));
    fabric.shutdown().await;
}

/// R40, R42
async fn bad_submissions_are_refused_and_change_nothing(f: Fixture) {
    let twice = f.fabric().command(sync_vendor_sales, contract());
    let twice = twice.command(sync_vendor_sales, contract()).start().await;
    assert_eq!(twice.err().unwrap().code(), "SF-0108");
    let needy = Contract::new().needs([Capability::SagaCompensationNative]);
    let needy = f.fabric().command(sync_vendor_sales, needy).start().await.err().unwrap();
    assert_eq!(needy.code(), "SF-0511");
    assert!(needy.message().contains("saga_compensation_native"), "{needy}");
    let wrong = f.fabric().command(sync_vendor_sales, Contract::new().key("{vendor}"));
    let wrong = wrong.start().await.err().unwrap();
    assert_eq!(wrong.code(), "SF-0502");
    assert!(wrong.message().contains("key_template"), "{wrong}");
    let fetch = RetryPolicy::on([ErrorClass::Timeout]).attempts(4);
    let fabric = f.fabric().command(sync_vendor_sales, contract().retry("fetch", fetch));
    let fabric = fabric.start().await.unwrap();
    assert_eq!(fabric.compile_policy("sync_vendor_sales", "fetch").unwrap().max_attempts(), 4);
    assert_eq!(fabric.compile_policy("sync_vendor_sales", "x").unwrap_err().code(), "SF-0509");
    let payload = serde_json::json!({ "vendor_name": 7 });
    let unfit = fabric.submit_named::<String>("sync_vendor_sales", &payload).await.err().unwrap();
    assert_eq!(unfit.code(), "SF-0514");
    assert!(unfit.message().contains("expected a string"), "{unfit}");
    let unknown = fabric.submit_named::<String>("sync", &payload).await.err().unwrap();
    assert_eq!(unknown.code(), "SF-0503");
    let long = fabric.submit(sync_vendor_sales, sync(&"9".repeat(300))).await.err().unwrap();
    assert_eq!(long.code(), "SF-0105");
    let all = fabric.commands(ListCommands { limit: 10, ..Default::default() }).await.unwrap();
    assert_eq!(all.commands, [], "nothing was changed");
    let which = CommandRef::Key("sync_vendor_sales:acme_sales:1".to_owned());
    let get = GetCommand { workspace: f.workspace.clone(), which };
    assert_eq!(f.store.ask(get).await.unwrap().0, None);
    fabric.shutdown().await;
}
