//! A small random number generator, so that a seed means the same sequence for ever.
//!
//! Deliberately absent: quality beyond what choosing test operations needs.

/// Splitmix64: one 64-bit word of state.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    pub(super) fn number(&mut self, from: i64, to: i64) -> i64 {
        let width = u64::try_from(to - from + 1).unwrap();
        from + i64::try_from(self.below(width)).unwrap()
    }

    /// True in so many of a hundred cases.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    pub(super) fn text(&mut self, from: &[&str]) -> String {
        self.pick(from).to_owned()
    }

    /// One of several, or nothing, in so many of a hundred cases.
    pub(super) fn maybe<T>(
        &mut self,
        percent: u64,
        make: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        self.chance(percent).then(|| make(self))
    }
}
