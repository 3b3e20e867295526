//! Seeded chance: what is killed, when and how is drawn from one number that a failure prints.
//!
//! Deliberately absent: a promise that the same seed gives the same history. The plan is the same;
//! the processes' own timing is not.

/// A seeded source of numbers (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, n: u64) -> bool {
        self.next() % 100 < n
    }

    /// One of several.
    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let at = self.between(0, of.len() as u64 - 1);
        &of[usize::try_from(at).expect("invariant: an index")]
    }
}
