//! A night that would cost too much patience: people are asked.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::{ApprovalRow, ApprovalStatus, Env as _, ErrorClass, Vote};
use steadfast_sync::simulator::Answer;
use steadfast_sync::{Outcome, Report};

use super::world::{VENDOR, World, failed, report};

/// A world in which a night may be tried again twice, of all its operations together.
async fn world() -> World {
    World::with("[policy]\nretries_per_command = 2").await
}

/// Waits until people are asked about a command, leaping over its waits; gives the question.
async fn asked(world: &World, id: &str) -> ApprovalRow {
    let question = async || {
        let all = world.fabric.pending_approvals().await.unwrap();
        all.into_iter().find(|row| row.command_id == id)
    };
    let is_asked = async || {
        // Looked for first: a leap must not take the time that people have to answer.
        if question().await.is_some() {
            return true;
        }
        let info = world.fabric.command::<Report>(id).info().await.unwrap();
        if let Some(until) = world.clock.waits_until(&world.fabric, &info).await {
            world.clock.leap_to(until);
        }
        false
    };
    world.until("people are asked", is_asked).await;
    question().await.unwrap()
}

/// What the audit says of caps that were reached by a command.
async fn caps(world: &World, id: &str) -> Vec<Value> {
    let events = world.fabric.command::<Report>(id).events().await.unwrap();
    let told = events.into_iter().filter(|event| event.event_type == "cost.cap_reached");
    told.map(|event| {
        assert_eq!(event.purpose, "audit");
        serde_json::from_str(&event.payload).unwrap()
    })
    .collect()
}

/// R17: a vendor that stays down is asked three times; the third retry is not sent before people
/// have said yes, and they say no.
#[tokio::test(flavor = "multi_thread")]
async fn r017_a_night_beyond_its_retries_asks_people_and_sends_nothing() {
    let world = world().await;
    let date = "2026-06-01";
    world.vendor.on(date, std::iter::repeat_n(Answer::Status(503), 20));
    let id = world.fire(date).await;
    let question = asked(&world, &id).await.asked;
    assert_eq!(question.reason, "2 of 2 retries of this command are spent");
    assert_eq!(question.action, format!("{VENDOR} GET /sales/daily"));
    assert_eq!(question.approvers, 2);
    assert_eq!(world.statuses(date), [503; 3], "the first and two retries");
    let told = caps(&world, &id).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["operation"], json!("fetch_vendor_snapshot"));
    assert_eq!((&told[0]["bound"], &told[0]["cap"]), (&json!("soft"), &json!(2)));
    // It waits for people and not for time.
    world.clock.leap_to(world.clock.now().after(Duration::from_secs(6 * 3600)));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let info = world.fabric.command::<Report>(&id).info().await.unwrap();
    assert_eq!(info.command.completed_at, None, "{}", info.command.status);
    assert_eq!(world.statuses(date).len(), 3);
    let no = world.fabric.decide(&question.approval_id, "lead:1", Vote::Rejected, "enough").await;
    assert_eq!(no.unwrap(), ApprovalStatus::Rejected);
    assert_eq!(failed(&world.end(&id).await), ErrorClass::ApprovalRejected);
    assert_eq!(world.statuses(date).len(), 3, "the third retry is never sent");
    assert_eq!(world.writes().await, 0);
    assert_eq!(caps(&world, &id).await.len(), 1, "told once");
    world.fabric.shutdown().await;
}

/// R17: people say yes, and the night is loaded.
#[tokio::test(flavor = "multi_thread")]
async fn r017_a_night_beyond_its_retries_goes_on_when_people_say_yes() {
    let world = world().await;
    let date = "2026-06-01";
    world.vendor.on(date, std::iter::repeat_n(Answer::Status(503), 3));
    let id = world.fire(date).await;
    let question = asked(&world, &id).await.asked;
    assert_eq!(world.statuses(date), [503; 3]);
    let say = async |who: &str| {
        let said = world.fabric.decide(&question.approval_id, who, Vote::Approved, "once more");
        said.await.unwrap()
    };
    assert_eq!(say("lead:1").await, ApprovalStatus::Pending, "one of two");
    assert_eq!(say("lead:2").await, ApprovalStatus::Approved);
    assert_eq!(report(&world.end(&id).await).outcome, Outcome::Loaded);
    assert_eq!(world.statuses(date), [503, 503, 503, 200, 200]);
    assert_eq!(world.held(date).await, world.has(date));
    world.fabric.shutdown().await;
}

/// R17: within its retries nobody is asked, and nothing is told.
#[tokio::test(flavor = "multi_thread")]
async fn r017_a_night_within_its_retries_asks_nobody() {
    let world = world().await;
    let date = "2026-06-01";
    world.vendor.on(date, [Answer::Status(503)]);
    world.vendor.on_page(date, 2, Answer::Status(502));
    let info = world.night(date).await;
    assert_eq!(report(&info).outcome, Outcome::Loaded);
    assert_eq!(world.statuses(date), [503, 200, 502, 200]);
    assert!(world.fabric.pending_approvals().await.unwrap().is_empty());
    assert!(caps(&world, &info.command.command_id).await.is_empty());
    world.fabric.shutdown().await;
}
