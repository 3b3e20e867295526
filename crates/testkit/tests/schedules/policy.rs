//! What becomes of slots that are due: the misfire policies, written down the long way.
//!
//! Invariants: all slots in question are in hand, oldest first; nothing is searched for, nothing is
//! estimated. Deliberately absent: everything that makes the product quick.

use std::time::Duration;

use steadfast::{Calendar, Cron, Misfire, SlotStatus, Timestamp};

/// The trigger under test: its share of the jitter follows from it.
pub(crate) const ID: &str = "life";

/// What is to become of a slot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) nominal: Timestamp,
    pub(crate) status: SlotStatus,
    pub(crate) reason: String,
    /// The slot that covers it.
    pub(crate) into: Option<Timestamp>,
    /// The first slot that it covers.
    pub(crate) covers: Option<Timestamp>,
}

impl Verdict {
    fn fire(nominal: Timestamp) -> Self {
        let (status, reason) = (SlotStatus::Fired, String::new());
        Self { nominal, status, reason, into: None, covers: None }
    }

    pub(crate) fn miss(nominal: Timestamp, reason: String) -> Self {
        Self { status: SlotStatus::Missed, reason, ..Self::fire(nominal) }
    }

    fn compress(nominal: Timestamp, into: Timestamp) -> Self {
        let (status, reason) =
            (SlotStatus::Compressed, format!("covered by the slot of {}", into.iso()));
        Self { status, reason, into: Some(into), ..Self::fire(nominal) }
    }
}

/// The verdicts on slots that somebody looks at now. Why a slot came to be missed is not decided
/// here, only why it is not made up for.
pub(crate) fn judge(calendar: &Calendar, slots: &[Timestamp], now: Timestamp) -> Vec<Verdict> {
    let cron = calendar.schedule();
    let in_time =
        |slot: &Timestamp| calendar.due(ID, *slot).after(seconds(cron.grace_seconds)) >= now;
    // The first one in time ends what was missed; whatever is behind it is newer still.
    let late = slots.iter().position(in_time).unwrap_or(slots.len());
    let young = |slot: &Timestamp| match cron.catchup_window_seconds {
        Some(window) => *slot >= now.before(Duration::from_secs(window)),
        None => true,
    };
    let missed = |slot: &Timestamp| Verdict::miss(*slot, why(cron, young(slot)));
    let (gone, kept) = slots.split_at(first_kept(cron, slots, late, young));
    let compressed = cron.misfire_policy == Misfire::Compress && late > 0;
    let mut verdicts: Vec<_> = gone.iter().map(missed).collect();
    match kept {
        [covered @ .., last] if compressed => {
            verdicts.extend(covered.iter().map(|slot| Verdict::compress(*slot, *last)));
            let covers = covered.first().copied();
            verdicts.push(Verdict { covers, ..Verdict::fire(*last) });
        }
        _ => verdicts.extend(kept.iter().map(|slot| Verdict::fire(*slot))),
    }
    verdicts
}

/// Which slot is the first that is not missed, where so many are late.
fn first_kept(
    cron: &Cron,
    slots: &[Timestamp],
    late: usize,
    young: impl Fn(&Timestamp) -> bool,
) -> usize {
    let wanted = slots[..late].iter().filter(|slot| young(slot)).count();
    match cron.misfire_policy {
        Misfire::Skip => late,
        Misfire::Catchup => late - wanted.min(cron.catchup_limit as usize),
        Misfire::Compress => late - wanted,
    }
}

fn why(cron: &Cron, young: bool) -> String {
    match (cron.misfire_policy, young) {
        (Misfire::Skip, _) => String::new(),
        (_, false) => "; older than the catch-up window".to_owned(),
        (_, true) => format!("; beyond the catch-up limit of {}", cron.catchup_limit),
    }
}

fn seconds(n: u32) -> Duration {
    Duration::from_secs(n.into())
}
