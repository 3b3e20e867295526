//! On-call hears of it.

use super::world::{World, failed};
use steadfast::ErrorClass;
use steadfast_sync::simulator::{Answer, PAGER};

/// R52: an answer of 401 or 403 fails the command and pages on-call, once each; so does a 400.
#[tokio::test(flavor = "multi_thread")]
async fn r052_no_access_pages_on_call() {
    let pager = steadfast_sync::simulator::Simulator::new();
    let url = pager.listen().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "routing-key-of-on-call\n").unwrap();
    let more = format!(
        "[alerts.pagerduty]\nurl = \"{url}/pager\"\nrouting_key = \"file:{}\"",
        key.display()
    );
    let world = World::small(&more, |vendor| vendor).await;
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
    world.fabric.publish().await.unwrap();
    let paged = async {
        while pager.pages() < 3 {
            world.fabric.publish().await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), paged).await.unwrap();
    world.fabric.shutdown().await;
    let seen: Vec<_> = pager.log().into_iter().map(|seen| seen.operation).collect();
    assert_eq!(seen, [PAGER; 3]);
}
