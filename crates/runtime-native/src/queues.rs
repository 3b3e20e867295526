//! What a worker knows of the limits of queues, as they were last listed.
//!
//! Invariants: it spares questions and hints, and decides nothing else: whether a run may be
//! claimed is the store's to say, by the limits of that moment. Who waits because of a limit that
//! has changed since is rung for at the next list.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use steadfast_store::op::QueueRow;

/// From so many places on, a claim is for half of them at most. If all were claimed together, they
/// would be executed and ended together, too, with nothing to claim meanwhile.
const MANY: usize = 16;

/// The limits of one queue.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Limits {
    /// Whether each worker is limited.
    is_for_each: bool,
    /// How many runs that is, unless it is for each partition.
    places: Option<usize>,
    /// Whether all workers together are limited.
    is_shared: bool,
}

impl Limits {
    fn of(queue: &QueueRow) -> Self {
        let places = queue.worker_concurrency.filter(|_| !queue.partitioned);
        Self {
            is_for_each: queue.worker_concurrency.is_some(),
            places: places.map(|places| usize::try_from(places).unwrap_or(0)),
            is_shared: queue.concurrency.is_some(),
        }
    }
}

/// By name; nothing before the first list.
#[derive(Default)]
pub(crate) struct Queues(Mutex<Option<BTreeMap<String, Limits>>>);

impl Queues {
    fn known(&self) -> MutexGuard<'_, Option<BTreeMap<String, Limits>>> {
        self.0.lock().expect("invariant: not poisoned")
    }

    /// Takes note of all queues there are; gives those that were known otherwise.
    pub(crate) fn list(&self, queues: &[QueueRow]) -> Vec<String> {
        let limits = |queue: &QueueRow| (queue.name.clone(), Limits::of(queue));
        let listed: BTreeMap<_, _> = queues.iter().map(limits).collect();
        let before = self.known().replace(listed.clone()).unwrap_or_default();
        let changed = |(name, was): &(String, Limits)| listed.get(name) != Some(was);
        before.into_iter().filter(changed).map(|(name, _)| name).collect()
    }

    /// The limits of a queue; `None` if no queue is known yet.
    fn limits(&self, queue: &str) -> Option<Limits> {
        self.known().as_ref().map(|listed| listed.get(queue).copied().unwrap_or_default())
    }

    /// Whether a queue limits each worker.
    pub(crate) fn limits_each(&self, queue: &str) -> bool {
        self.limits(queue).is_some_and(|limits| limits.is_for_each)
    }

    /// How many runs of a queue a worker may have, if that is limited for all of it together.
    fn places(&self, queue: &str) -> Option<usize> {
        self.limits(queue)?.places
    }

    /// How many runs of a queue a worker must lose until half of its places are free; none, and
    /// nobody counts what it has, where places are not counted.
    pub(crate) fn to_half(&self, queue: &str, has: impl FnOnce() -> usize) -> u64 {
        self.places(queue).map_or(0, |places| has().saturating_sub(places / 2) as u64)
    }

    /// Whether a worker that has so many runs of a queue has no place for another.
    pub(crate) fn is_full(&self, queue: &str, has: usize) -> bool {
        self.places(queue).is_some_and(|places| has >= places)
    }

    /// How many runs of a queue are claimed at once, at most.
    pub(crate) fn most_at_once(&self, queue: &str) -> usize {
        match self.places(queue) {
            Some(places) if places >= MANY => places.div_ceil(2),
            _ => usize::MAX,
        }
    }

    /// Whether a place on a queue may be another worker's once it is free.
    pub(crate) fn is_shared(&self, queue: &str) -> bool {
        self.limits(queue).is_none_or(|limits| limits.is_shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, concurrency: Option<i64>, worker_concurrency: Option<i64>) -> QueueRow {
        let name = name.to_owned();
        QueueRow { name, concurrency, worker_concurrency, ..QueueRow::default() }
    }

    #[test]
    fn places_are_filled_in_halves_where_there_are_many() {
        let queues = Queues::default();
        let most = |places| {
            queues.list(&[queue("q", None, Some(places))]);
            queues.most_at_once("q")
        };
        assert_eq!([1, 15, 16, 17, 100].map(most), [usize::MAX, usize::MAX, 8, 9, 50]);
    }

    #[test]
    fn a_worker_knows_when_it_is_full_and_whose_places_are_shared() {
        let queues = Queues::default();
        assert!(!queues.is_full("q", 1000) && queues.is_shared("q"), "nothing is known yet");
        let split = QueueRow { partitioned: true, ..queue("split", None, Some(2)) };
        queues.list(&[queue("q", None, Some(2)), queue("all", Some(2), None), split]);
        assert!(queues.is_full("q", 2) && !queues.is_full("q", 1));
        assert!(!queues.is_full("all", 2) && !queues.is_full("split", 2));
        assert!(queues.limits_each("split") && !queues.limits_each("all"));
        assert_eq!([0, 1, 2].map(|has| queues.to_half("q", || has)), [0, 0, 1]);
        assert_eq!(["all", "split"].map(|q| queues.to_half(q, || 9)), [0, 0]);
        assert_eq!(["q", "all", "other"].map(|q| queues.is_shared(q)), [false, true, false]);
    }

    #[test]
    fn whoever_was_told_otherwise_is_named() {
        let queues = Queues::default();
        assert!(queues.list(&[queue("q", None, Some(2)), queue("r", None, None)]).is_empty());
        assert_eq!(queues.list(&[queue("q", None, Some(3)), queue("r", None, None)]), ["q"]);
        assert_eq!(queues.list(&[queue("q", None, Some(3))]), ["r"]);
    }
}
