//! Splitmix64: one addition and a mix, so a draw is a single atomic step and needs no lock.
//!
//! Invariants: the n-th draw is a function of the seed and n alone.
//! Deliberately absent: anything fit for secrets.

use std::sync::atomic::{AtomicU64, Ordering};

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded source of numbers.
#[derive(Debug)]
pub struct Rng(AtomicU64);

impl Rng {
    /// The source of a seed.
    pub fn new(seed: u64) -> Self {
        // Mixed once, so that neighbouring seeds do not walk the same sequence one step apart.
        Self(AtomicU64::new(mix(seed)))
    }

    /// Sixty-four bits.
    pub fn next(&self) -> u64 {
        mix(self.0.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA))
    }

    /// A number below `n`, which must not be zero.
    pub fn below(&self, n: u64) -> u64 {
        // The high half of the product: no division, and a bias that no test can see.
        u64::try_from((u128::from(self.next()) * u128::from(n)) >> 64).unwrap_or(0)
    }
}

/// Scatters the bits of a number; a bijection.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_the_seed_and_stay_below_the_bound() {
        let draws = |seed| (0..100).map(|_| 0).scan(Rng::new(seed), |r, _: u64| Some(r.next()));
        assert!(draws(1).eq(draws(1)));
        assert!(draws(1).ne(draws(2)));
        let rng = Rng::new(3);
        assert!((0..1000).all(|_| rng.below(7) < 7));
    }
}
