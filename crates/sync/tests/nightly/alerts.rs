//! On-call hears of it.

use std::time::Duration;

use serde_json::Value;
use steadfast::{ErrorClass, SlotStatus, Steadfast};
use steadfast_sync::job;
use steadfast_sync::simulator::{Answer, PAGER, Simulator};
use tempfile::TempDir;

use super::world::{VENDOR, World, failed, fires_at, report};

/// Somebody's pager, behind HTTP.
struct Pager {
    at: Simulator,
    /// The lines of the file that lead to it.
    lines: String,
    _dir: TempDir,
}

impl Pager {
    async fn new() -> Self {
        let at = Simulator::new();
        let url = at.listen().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, "routing-key-of-on-call\n").unwrap();
        let lines = format!(
            "[alerts.pagerduty]\nurl = \"{url}/pager\"\nrouting_key = \"file:{}\"",
            key.display()
        );
        Self { at, lines, _dir: dir }
    }

    /// Waits until it has gone off so often; gives what it said.
    async fn said(&self, world: &World, fabric: &Steadfast, times: usize) -> Vec<Value> {
        let enough = async || {
            fabric.publish().await.unwrap();
            self.at.pages() >= times
        };
        world.until("on-call is paged", enough).await;
        let log = self.at.log();
        assert!(log.iter().all(|seen| seen.operation == PAGER));
        log.iter().map(|seen| serde_json::from_str(&seen.body).unwrap()).collect()
    }
}

/// R52: an answer of 401 or 403 fails the command and pages on-call, once each; so does a 400.
#[tokio::test(flavor = "multi_thread")]
async fn r052_no_access_pages_on_call() {
    let pager = Pager::new().await;
    let world = World::with(&pager.lines).await;
    for (date, status) in [("2026-06-01", 401), ("2026-06-02", 403), ("2026-06-03", 400)] {
        world.vendor.on(date, [Answer::Status(status)]);
        let class = match status {
            400 => ErrorClass::ValidationError,
            _ => ErrorClass::PermanentConnectorError,
        };
        assert_eq!(failed(&world.night(date).await), class);
        assert_eq!(world.statuses(date), [status]);
    }
    // The night after is fine, and nobody is woken for it.
    world.night("2026-06-04").await;
    pager.said(&world, &world.fabric, 3).await;
    world.fabric.shutdown().await;
    assert_eq!(pager.at.pages(), 3);
}

/// R55: a night that nobody fired pages on-call, who fills it by hand.
#[tokio::test(flavor = "multi_thread")]
async fn r055_a_missed_night_pages_on_call() {
    let pager = Pager::new().await;
    let world = World::with(&pager.lines).await;
    report(&world.night("2026-06-01").await);
    assert_eq!(pager.at.pages(), 0);
    // Nothing runs when the next one is due, nor for some hours after.
    world.fabric.shutdown().await;
    world.clock.leap_to(fires_at("2026-06-02").after(Duration::from_secs(6 * 3600)));
    let fabric = world.worker(|builder| job::install(builder, &world.config)).await;
    let said = pager.said(&world, &fabric, 1).await;
    let payload = &said[0]["payload"];
    assert_eq!(said[0]["routing_key"], "routing-key-of-on-call");
    assert!(payload["summary"].as_str().unwrap().contains("did not fire in time"), "{payload}");
    assert!(said[0].to_string().contains(&job::schedule_id(VENDOR)), "{said:?}");
    let (schedule, at) = (fabric.schedule(job::schedule_id(VENDOR)), fires_at("2026-06-02"));
    let slots = schedule.slots_between(at, at.after(Duration::from_secs(1))).await.unwrap();
    let slots: Vec<_> = slots.into_iter().map(|slot| slot.status).collect();
    assert_eq!(slots, [SlotStatus::Missed]);
    assert!(world.requests("2026-06-02").is_empty(), "it is not made up by itself");
    let (vendor, by) = (&world.config.vendors[0], "user:on-call");
    let asking = job::ask(&fabric, &world.config, (vendor, "2026-06-02"), job::Asking::Once, by);
    let command = asking.await.unwrap();
    report(&world.clock.see_through(&fabric, command.id()).await.unwrap());
    assert_eq!(world.held("2026-06-02").await, world.has("2026-06-02"));
    fabric.shutdown().await;
    assert_eq!(pager.at.pages(), 1, "told once");
}
