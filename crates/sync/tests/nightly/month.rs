//! A month, night after night: the objective, judged by the vendor's log and the warehouse.

use std::time::Duration;

use serde_json::json;
use steadfast::{CommandInfo, SlotStatus, Timestamp, parse_moment};
use steadfast_sync::simulator::Answer;
use steadfast_sync::{Outcome, job};

use super::plan::again;
use super::world::{VENDOR, World, everywhere, failed, fires_at, report, took};

const NIGHTS: usize = 30;
/// By when a night is done, unless the vendor is away for longer than two attempts.
const IN_TIME: Duration = Duration::from_secs(300);

/// What a night brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// The snapshot of the night before.
    Stale,
    /// These answers before the first page.
    Passing(&'static [Answer]),
    /// A refusal: the operator asks again in the morning.
    Refused(u16),
    /// The second page fails once.
    Half,
}

fn trouble(night: usize) -> Trouble {
    match night {
        3 | 11 | 24 => Trouble::Stale,
        5 => Trouble::Passing(&[Answer::Status(503)]),
        8 => Trouble::Passing(&[Answer::Status(500), Answer::Status(502)]),
        13 => Trouble::Passing(&[Answer::Status(429)]),
        16 => Trouble::Passing(&[Answer::Later(45)]),
        19 => Trouble::Passing(&[Answer::Hangup]),
        10 => Trouble::Refused(400),
        21 => Trouble::Refused(401),
        27 => Trouble::Half,
        _ => Trouble::Nothing,
    }
}

/// R54: thirty nights in a row with two schedulers, on every database: each is in the warehouse in
/// time, or found stale and not written; none twice; no 5xx without another try, no 4xx with one.
#[tokio::test(flavor = "multi_thread")]
async fn r054_thirty_nights_meet_the_objective() {
    everywhere(async |world: World| {
        let second = world.worker(|builder| job::install(builder, &world.config)).await;
        let first = parse_moment("2026-06-01").unwrap();
        let mut loads = 0;
        for night in 0..NIGHTS {
            let date = first.utc_date(i64::try_from(night).unwrap());
            let what = trouble(night);
            arrange(&world, what, &date, &first.utc_date(i64::try_from(night).unwrap() - 1));
            let info = world.night(&date).await;
            loads += usize::from(judged(&world, what, &date, info).await);
            assert_eq!(world.writes().await, loads, "{date}: {what:?}");
        }
        one_command_a_slot(&world, first).await;
        second.shutdown().await;
        world.fabric.shutdown().await;
    })
    .await;
}

fn arrange(world: &World, what: Trouble, date: &str, before: &str) {
    match what {
        Trouble::Nothing => {}
        Trouble::Stale => world.vendor.stale(date, before),
        Trouble::Passing(answers) => world.vendor.on(date, answers.iter().copied()),
        Trouble::Refused(status) => world.vendor.on(date, [Answer::Status(status)]),
        Trouble::Half => world.vendor.on_page(date, 2, Answer::Status(503)),
    }
}

/// Judges a night; gives whether it was loaded.
async fn judged(world: &World, what: Trouble, date: &str, info: CommandInfo) -> bool {
    let statuses = world.statuses(date);
    let info = match what {
        Trouble::Refused(status) => {
            failed(&info);
            assert_eq!(statuses, [status], "{date}: one request, and no other");
            assert_eq!(world.held(date).await.0, 0, "{date}");
            again(world, date, 2).await
        }
        Trouble::Passing(answers) => {
            assert_eq!(statuses.len(), answers.len() + 2, "{date}: {statuses:?}");
            info
        }
        Trouble::Half => {
            assert_eq!(statuses, [200, 503, 200], "{date}");
            info
        }
        Trouble::Nothing | Trouble::Stale => {
            assert_eq!(statuses, [200, 200], "{date}");
            info
        }
    };
    let outcome = report(&info).outcome;
    if !matches!(what, Trouble::Refused(_)) {
        assert!(took(&info, date) < IN_TIME, "{date}: {what:?} took {:?}", took(&info, date));
    }
    let events = world.events(&info.command.command_id).await;
    let audited = events.contains(&"snapshot.stale_detected".to_owned());
    if what == Trouble::Stale {
        assert_eq!((outcome, world.held(date).await.0), (Outcome::Stale, 0), "{date}");
        assert!(audited, "{date}: {events:?}");
        return false;
    }
    assert_eq!((outcome, audited), (Outcome::Loaded, false), "{date}");
    assert_eq!(world.held(date).await, world.has(date), "{date}");
    true
}

/// Two schedulers have looked at every slot: each was fired by one, in time.
async fn one_command_a_slot(world: &World, first: Timestamp) {
    let (from, until) = (first, fires_at(&first.utc_date(30)));
    let slots = world.fabric.schedule(job::schedule_id(VENDOR)).slots_between(from, until).await;
    let slots = slots.unwrap();
    assert_eq!(slots.len(), NIGHTS, "{slots:?}");
    for slot in &slots {
        assert_eq!(slot.status, SlotStatus::Fired, "{slot:?}");
        assert!(slot.lag_us < 300_000_000, "{slot:?}");
    }
    let filter = json!({ "vendor_name": VENDOR });
    let state = world.table("vendor_sync_state", filter).await;
    assert_eq!(state.len(), NIGHTS - 3, "what is known, by day");
}
