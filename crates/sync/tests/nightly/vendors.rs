//! A second vendor is a second section of the file, whatever it speaks like.

use std::path::Path;

use steadfast_sync::simulator::{Answer, Shape, Simulator};
use steadfast_sync::{Decimal, Outcome};

use super::world::{VENDOR, World, report};

const OTHER: &str = "globex_sales";

/// A vendor with another path, other parameters, other pages, another way in and other words.
fn section(url: &str, key: &Path) -> String {
    format!(
        r#"
[[vendor]]
name = "{OTHER}"
base_url = "{url}"
allow_private = true
path = "/v2/reports/sales"
query = {{ day = "{{target_date}}", format = "full" }}
auth = {{ header = "x-api-key", secret = "file:{}", form = "{{}}" }}
pagination = {{ style = "page", param = "page" }}
rows = "result.items"
snapshot_id = "result.meta.snapshot"
date = "result.meta.day"
[vendor.fields]
sku = {{ from = "article.code", key = true }}
region = {{ from = "area", key = true }}
quantity = {{ from = "units", type = "integer" }}
revenue = {{ from = "amount", type = "decimal" }}
[vendor.totals]
rows = "result.meta.count"
revenue = "result.meta.sum"
column = "revenue"
tolerance = "0.01"
"#,
        key.display()
    )
}

/// What a simulator has of a day, in the form of [`World::held`].
fn has(vendor: &Simulator, date: &str) -> (usize, Decimal) {
    let day = vendor.day(date);
    (day.rows.len(), day.total)
}

/// R47: two vendors that have nothing in common but the table, and no line of Rust for either.
#[tokio::test(flavor = "multi_thread")]
async fn r047_a_second_vendor_needs_no_rust() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "key-of-globex\n").unwrap();
    let other = Simulator::new().shape(Shape::Numbered).token("key-of-globex").size(90, 20);
    let url = other.listen().await.unwrap();
    let world = World::with(&section(&url, &key)).await;
    let date = "2026-06-01";
    other.on_page(date, 2, Answer::Status(503));
    let (one, two) = (world.fire(date).await, world.fire_of(OTHER, date).await);
    assert_ne!(one, two);
    for id in [&one, &two] {
        assert_eq!(report(&world.end(id).await).outcome, Outcome::Loaded);
    }
    assert_eq!(world.held(date).await, world.has(date));
    assert_eq!(world.held_of(OTHER, date).await, has(&other, date));
    assert_ne!(world.held(date).await, world.held_of(OTHER, date).await);
    assert_eq!(world.writes().await, 2);
    // Every page by its number, the one that failed again, and an empty one at the end.
    let rows = u64::try_from(other.day(date).rows.len()).unwrap();
    let mut wanted: Vec<u64> = (1..=rows.div_ceil(20) + 1).collect();
    wanted.insert(1, 2);
    let log = other.log();
    assert!(log.iter().all(|seen| seen.operation == "GET /v2/reports/sales"), "{log:?}");
    assert_eq!(log.iter().map(|seen| seen.page).collect::<Vec<_>>(), wanted);
    assert!(log.iter().all(|seen| seen.date == date));
    world.fabric.shutdown().await;
}

/// R48: what is stale for one vendor is fresh for the other.
#[tokio::test(flavor = "multi_thread")]
async fn r048_vendors_do_not_share_what_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "key-of-globex\n").unwrap();
    let other = Simulator::new().shape(Shape::Numbered).token("key-of-globex");
    let url = other.listen().await.unwrap();
    let world = World::with(&section(&url, &key)).await;
    // The same rows under the same names: nothing but the vendor tells them apart.
    other.stale("2026-06-02", "2026-06-01");
    let outcome = async |vendor: &str, date: &str| {
        let id = world.fire_of(vendor, date).await;
        report(&world.end(&id).await).outcome
    };
    for (date, others) in [("2026-06-01", Outcome::Loaded), ("2026-06-02", Outcome::Stale)] {
        assert_eq!(outcome(VENDOR, date).await, Outcome::Loaded, "{date}");
        assert_eq!(outcome(OTHER, date).await, others, "{date}");
    }
    assert_eq!(world.held_of(OTHER, "2026-06-02").await.0, 0);
    assert_eq!(world.held("2026-06-02").await, world.has("2026-06-02"));
    world.fabric.shutdown().await;
}
