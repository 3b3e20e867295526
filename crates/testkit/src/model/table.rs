//! A table of the model: a sorted map that remembers what it replaced, so that an operation can be
//! taken back.
//!
//! Invariants: between [`Table::keep`] or [`Table::take_back`] and the next of them, every change
//! is remembered once per write, newest last. Deliberately absent: indexes; a model may scan.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// A sorted map with one level of undo.
#[derive(Debug, Clone)]
pub(super) struct Table<K, V> {
    rows: BTreeMap<K, V>,
    replaced: Vec<(K, Option<V>)>,
}

// Not derived: a derived one would ask for `K: Default`.
impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), replaced: Vec::new() }
    }
}

impl<K: Ord + Clone, V: Clone> Table<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key)
    }

    pub(super) fn has(&self, key: &K) -> bool {
        self.rows.contains_key(key)
    }

    pub(super) fn put(&mut self, key: K, value: V) {
        let before = self.rows.insert(key.clone(), value);
        self.replaced.push((key, before));
    }

    pub(super) fn remove(&mut self, key: &K) -> bool {
        let before = self.rows.remove(key);
        let was = before.is_some();
        if was {
            self.replaced.push((key.clone(), before));
        }
        was
    }

    /// Changes a row in place; false if there is none.
    pub(super) fn edit(&mut self, key: &K, change: impl FnOnce(&mut V)) -> bool {
        let Some(row) = self.rows.get_mut(key) else {
            return false;
        };
        self.replaced.push((key.clone(), Some(row.clone())));
        change(row);
        true
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.rows.iter()
    }

    pub(super) fn range(
        &self,
        range: impl RangeBounds<K>,
    ) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.rows.range(range)
    }

    /// Removes every row of a range.
    pub(super) fn clear(&mut self, range: impl RangeBounds<K>) {
        let keys: Vec<K> = self.rows.range(range).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.remove(key);
        }
    }

    /// What was written since the last call stays; how many writes that were.
    pub(super) fn keep(&mut self) -> usize {
        let writes = self.replaced.len();
        self.replaced.clear();
        writes
    }

    /// What was written since the last call never happened.
    pub(super) fn take_back(&mut self) {
        while let Some((key, before)) = self.replaced.pop() {
            match before {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
    }
}
