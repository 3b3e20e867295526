//! Activities: what a trigger starts, and the record of it.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::{
    Activity, CommandStatus, Cron, Cx, EventMatch, Ingress, Misfire, Result, RunStatus, Steadfast,
};

use super::events::paid;
use super::schedules::at;
use super::{Clock, Fixture, case_table, until};

case_table![
    r069_an_activity_starts_its_tasks_and_notes_them_once,
    r064_an_activity_notes_the_time_it_is_for_and_the_window_it_covers,
    an_activity_that_is_disabled_starts_nothing,
];

async fn remind(_: Cx, input: Value) -> Result<Value> {
    Ok(input)
}

/// R69, R70, R71, R72
async fn r069_an_activity_starts_its_tasks_and_notes_them_once(f: Fixture) {
    let activity = "550e8400-e29b-41d4-a716-446655440000";
    let paid_orders = EventMatch { event_type: "order.paid".to_owned(), filter: None };
    let build = || {
        let orders = Activity::on_event(activity, paid_orders.clone())
            .version(3)
            .context(json!({ "total": "{event.payload.total}" }))
            .task("mail", "remind", json!({ "to": "{event.subject}" }))
            .task("mail", "remind", json!({ "to": "desk" }))
            .task("call", "remind", json!({ "to": "desk" }));
        let nightly = Activity::scheduled("nightly", Cron::cron("0 3 1 1 *"));
        f.fabric().workflow(remind).activity(orders).activity(nightly)
    };
    let fabric = build().start().await.unwrap();
    let event = paid("evt_abc123", 7);
    let routed = fabric.deliver(&event, Ingress::SystemEvent).await.unwrap();
    let (_, id, _) = &routed.commands[0].clone();
    fabric.command::<Value>(id.clone()).result().await.unwrap();
    // Redelivered, and after a restart: one execution, one set of tasks.
    fabric.deliver(&event, Ingress::SystemEvent).await.unwrap();
    fabric.shutdown().await;
    let fabric = build().start().await.unwrap();
    fabric.deliver(&event, Ingress::SystemEvent).await.unwrap();
    let runs = fabric.activity_runs(activity, 10).await.unwrap();
    assert_eq!(runs.len(), 1);
    let (run, tasks) = &runs[0];
    assert_eq!(run.workflow_id, format!("activity-{activity}:evt_abc123"));
    assert_eq!((run.trigger_type.as_str(), run.trigger_key.as_str()), ("event", "evt_abc123"));
    assert_eq!((run.definition_version, run.tasks_spawned), (3, 3));
    assert_eq!(run.context_snapshot, r#"{"total":7}"#);
    assert_eq!(run.run_id.len(), 36, "a UUID");
    assert_eq!((run.status, run.scheduled_for, run.window), (CommandStatus::Succeeded, None, None));
    let command = fabric.command::<Value>(id.clone()).info().await.unwrap();
    assert_eq!(run.fired_at, command.command.created_at);
    assert!(run.fired_at <= run.started_at && run.started_at <= run.finished_at, "{run:?}");
    let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
    let task = |rest: &str| format!("task-{}:{rest}", run.run_id);
    assert_eq!(ids, [task("call:0"), task("mail:0"), task("mail:1")]);
    for task in tasks {
        let child = fabric.run::<Value>(task.id.clone());
        let params: Value = serde_json::from_str(&task.params).unwrap();
        until("the task is done", async || child.result().await.is_ok()).await;
        assert_eq!(child.result().await.unwrap(), params);
    }
    let (_, tasks) = &fabric.activity_runs(activity, 10).await.unwrap()[0];
    assert!(tasks.iter().all(|task| task.status == Some(RunStatus::Success)), "{tasks:?}");
    fabric.shutdown().await;
}

fn nightly(enabled: bool) -> Activity {
    let mut cron = Cron::cron("0 3 * * *");
    cron.misfire_policy = Misfire::Compress;
    cron.dedupe_key_strategy = Misfire::Compress;
    Activity::scheduled("nightly", cron)
        .enabled(enabled)
        .context(json!({ "day": "{target_date}" }))
        .task("mail", "remind", json!({ "day": "{target_date}" }))
}

async fn noted(fabric: &Steadfast, many: usize) {
    let runs = async || fabric.activity_runs("nightly", 10).await.unwrap().len() == many;
    until("the executions are noted", runs).await;
}

/// R58, R64, R71: five nights of downtime are one execution, whose record says what it covers.
async fn r064_an_activity_notes_the_time_it_is_for_and_the_window_it_covers(f: Fixture) {
    let clock = Clock::at("2026-05-31T12:00:00Z");
    let build = || f.fabric().env(clock.clone()).workflow(remind).activity(nightly(true));
    let fabric = build().start().await.unwrap();
    clock.go("2026-06-01T03:00:10Z");
    noted(&fabric, 1).await;
    fabric.shutdown().await;
    clock.go("2026-06-06T12:00:00Z");
    let fabric = build().start().await.unwrap();
    noted(&fabric, 2).await;
    let runs = fabric.activity_runs("nightly", 10).await.unwrap();
    let (first, later) = (&runs[0].0, &runs[1].0);
    assert_eq!((first.scheduled_for, first.window), (Some(at("2026-06-01T03:00:00Z")), None));
    let late = at("2026-06-01T03:00:10Z").until(first.fired_at);
    assert!(late < Duration::from_secs(5), "when it fired, not when it was to: {late:?}");
    let (from, until) = (at("2026-06-02T03:00:00Z"), at("2026-06-06T03:00:00Z"));
    assert_eq!((later.scheduled_for, later.window), (Some(until), Some((from, until))));
    assert_eq!(later.workflow_id, "activity-nightly:2026-06-06T03:00:00+00:00");
    assert_eq!(later.context_snapshot, r#"{"day":"2026-06-05"}"#, "by the nominal time");
    fabric.shutdown().await;
}

/// What it would have started meanwhile is accounted for when it is enabled again.
async fn an_activity_that_is_disabled_starts_nothing(f: Fixture) {
    let clock = Clock::at("2026-05-31T12:00:00Z");
    let build = |enabled| f.fabric().env(clock.clone()).workflow(remind).activity(nightly(enabled));
    let fabric = build(false).start().await.unwrap();
    clock.go("2026-06-03T12:00:00Z");
    assert_eq!(fabric.tick().await.unwrap(), 0);
    assert!(fabric.activity_runs("nightly", 10).await.unwrap().is_empty());
    fabric.shutdown().await;
    let fabric = build(true).start().await.unwrap();
    noted(&fabric, 1).await;
    let (run, _) = &fabric.activity_runs("nightly", 10).await.unwrap()[0];
    let (from, until) = (at("2026-06-01T03:00:00Z"), at("2026-06-03T03:00:00Z"));
    assert_eq!(run.window, Some((from, until)));
    fabric.shutdown().await;
}
