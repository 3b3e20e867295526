//! A snapshot: the pages of one answer put together, their hash, and whether it is stale.
//!
//! Invariants: all pages are of one snapshot of the vendor's; the hash is over the vendor's name
//! for it, and the number of rows with their sum is the second signal, so that neither a forgotten
//! nor a needless new name goes unnoticed; nor does a change of what becomes of the rows. Pure:
//! nothing here reads a clock or a socket.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_core::decimal::Decimal;
use steadfast_core::error::{Error, Result};
use steadfast_core::json;

use crate::canon;
use crate::config::Staleness;

/// One page, as the vendor's connector tells of it. Its rows are in the spool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// The spool's name for its rows.
    pub name: String,
    /// How many they are.
    pub rows: u64,
    /// Their sum, where a column is summed.
    pub sum: Decimal,
    /// The vendor's name for the snapshot.
    pub snapshot_id: Value,
    /// How the next page is asked for.
    pub next: Option<String>,
    /// How many rows the vendor says there are in all.
    pub reported_rows: Option<u64>,
    /// What the vendor says they come to.
    pub reported_sum: Option<Decimal>,
    /// The columns of its rows, in their order.
    pub columns: Vec<String>,
    /// How the rows differ from what was agreed.
    #[serde(default)]
    pub drift: BTreeSet<String>,
}

/// The pages put together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The vendor's name for it.
    pub snapshot_id: Value,
    /// The pages, by name and number of rows.
    pub pages: Vec<(String, u64)>,
    /// All rows.
    pub rows: u64,
    /// Their sum.
    pub sum: Decimal,
    /// What the vendor says.
    pub reported_rows: Option<u64>,
    /// What the vendor says.
    pub reported_sum: Option<Decimal>,
    /// The columns of all rows, in their order.
    pub columns: Vec<String>,
    /// How the rows differ from what was agreed.
    pub drift: BTreeSet<String>,
}

impl Snapshot {
    /// Begins with the first page.
    pub fn of(page: Page) -> Self {
        let mut whole = Self {
            snapshot_id: page.snapshot_id.clone(),
            pages: Vec::new(),
            rows: 0,
            sum: Decimal::default(),
            reported_rows: None,
            reported_sum: None,
            columns: page.columns.clone(),
            drift: BTreeSet::new(),
        };
        whole.take(page);
        whole
    }

    /// Adds a page. False if it is of another snapshot, or was read by another version of the file:
    /// then all must be fetched again.
    pub fn add(&mut self, page: Page) -> bool {
        let same = page.snapshot_id == self.snapshot_id && page.columns == self.columns;
        if same {
            self.take(page);
        }
        same
    }

    fn take(&mut self, page: Page) {
        self.pages.push((page.name, page.rows));
        self.rows += page.rows;
        self.sum = self.sum + page.sum;
        self.reported_rows = page.reported_rows.or(self.reported_rows);
        self.reported_sum = page.reported_sum.or(self.reported_sum);
        self.drift.extend(page.drift);
    }

    /// Refuses a snapshot that is not what its vendor says it is.
    pub fn check(&self, tolerance: Decimal) -> Result<()> {
        let wrong = |what: &str, says: String, has: String| {
            let text = format!("the vendor says {what} {says}, and its rows come to {has}");
            Err(Error::invalid("SF-1003", text))
        };
        if let Some(says) = self.reported_rows.filter(|says| *says != self.rows) {
            return wrong("a row count of", says.to_string(), self.rows.to_string());
        }
        match self.reported_sum {
            Some(says) if (says - self.sum).abs() > tolerance => {
                wrong("a total of", says.to_string(), self.sum.to_string())
            }
            _ => Ok(()),
        }
    }

    /// SHA-256 over the vendor's name for it, whatever its whitespace and order of members.
    pub fn hash(&self) -> Result<String> {
        compute_snapshot_hash(&self.snapshot_id)
    }

    /// The second signal: what else must be the same for it to be stale. All pages count, and how
    /// their rows are written.
    pub fn signal(&self, staleness: Staleness, mapping: &str) -> String {
        let totals = || format!("{} rows, {}, ", self.rows, self.sum);
        let own = match staleness {
            Staleness::SnapshotId => String::new(),
            Staleness::Totals => totals(),
            Staleness::Content => {
                // A page's name ends with the digest of its rows.
                let of_rows =
                    |(name, _): &(String, u64)| name.rsplit('-').next().map(str::to_owned);
                let digests: Vec<String> = self.pages.iter().filter_map(of_rows).collect();
                format!("{}{}, ", totals(), json::digest(digests.join("\n")))
            }
        };
        format!("{own}fields {mapping}")
    }
}

/// The hash of a vendor's name for a snapshot.
pub fn compute_snapshot_hash(snapshot_id: &Value) -> Result<String> {
    canon::digest(snapshot_id)
}

/// Whether nothing has changed: both hashes are there, and their bytes are equal.
pub fn is_stale(current: &str, last: Option<&str>) -> bool {
    last == Some(current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page(id: Value, rows: u64, sum: &str) -> Page {
        Page {
            name: format!("{rows}"),
            rows,
            sum: sum.parse().unwrap(),
            snapshot_id: id,
            next: None,
            reported_rows: Some(5),
            reported_sum: Some("10".parse().unwrap()),
            columns: vec!["sku".to_owned()],
            drift: BTreeSet::new(),
        }
    }

    /// R22
    #[test]
    fn r022_the_hash_is_over_the_snapshot_id_alone() {
        let hash = |text: &str| compute_snapshot_hash(&serde_json::from_str(text).unwrap());
        let one = hash(r#"{"day": "2026-06-01", "n": 7}"#).unwrap();
        assert_eq!(hash("{\n  \"n\":7, \"day\":\"2026-06-01\"}").unwrap(), one);
        assert_ne!(hash(r#"{"day": "2026-06-01", "n": 8}"#).unwrap(), one);
        // What `printf '"snap-1"' | sha256sum` says.
        assert_eq!(
            hash("\"snap-1\"").unwrap(),
            "sha256:fd3a8900cfbb5bcb7cac77ba16fbc82c90a6b54f99b8cd63d5e51dc4becccddb"
        );
    }

    /// R23
    #[test]
    fn r023_stale_is_equal_bytes_and_nothing_else() {
        assert!(is_stale("sha256:a", Some("sha256:a")));
        assert!(!is_stale("sha256:a", Some("sha256:A")));
        assert!(!is_stale("sha256:a", Some("")));
        assert!(!is_stale("sha256:a", None));
    }

    /// R57
    #[test]
    fn r057_rows_and_revenue_are_a_second_signal() {
        let mut whole = Snapshot::of(page(json!("s"), 2, "4.50"));
        assert!(whole.add(page(json!("s"), 3, "5.5")));
        assert_eq!(whole.signal(Staleness::Totals, "m"), "5 rows, 10, fields m");
        assert_eq!(whole.signal(Staleness::SnapshotId, "m"), "fields m");
        let content = whole.signal(Staleness::Content, "m");
        whole.pages[1].0 = "other".to_owned();
        assert_ne!(whole.signal(Staleness::Content, "m"), content, "every page counts");
        assert!(whole.check(Decimal::default()).is_ok());
    }

    #[test]
    fn pages_of_two_snapshots_do_not_mix() {
        let mut whole = Snapshot::of(page(json!("s"), 2, "4.50"));
        assert!(!whole.add(page(json!("t"), 3, "5.5")));
        let other = Page { columns: vec!["brand".to_owned()], ..page(json!("s"), 3, "5.5") };
        assert!(!whole.add(other), "the file has changed between two pages");
        assert_eq!(whole.rows, 2);
    }

    #[test]
    fn a_vendor_that_contradicts_itself_is_not_believed() {
        let whole = Snapshot::of(page(json!("s"), 4, "10"));
        assert!(whole.check(Decimal::default()).unwrap_err().message().contains("row count of 5"));
        let whole = Snapshot::of(page(json!("s"), 5, "9.98"));
        let error = whole.check("0.01".parse().unwrap()).unwrap_err();
        assert_eq!(error.code(), "SF-1003");
        assert!(whole.check("0.02".parse().unwrap()).is_ok());
    }
}
