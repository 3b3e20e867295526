//! What the backends share: the job that travels to a writer, and patience with the database.
//!
//! Invariants: an operation that fails in a way that may pass is tried again until it succeeds,
//! with waits of 1 s doubling to 60 s, each times a random factor of 0.5 to 1.5; a full disk is
//! tried twice a second, so that an answer follows soon after there is room; an error that will not
//! pass is reported at once. Every operation is idempotent, so an ambiguous outcome is tried again
//! too.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures::channel::oneshot;

use crate::error::Error;
use crate::op::{Op, Reply};

/// An operation on its way to a writer.
pub(crate) struct Job {
    /// Shared with the caller, who may have to try again.
    pub(crate) op: Arc<Op>,
    pub(crate) reply: oneshot::Sender<Result<Reply, Error>>,
}

/// The waits between tries.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(60);

    pub(crate) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// The next wait, for a random number in 0.0..1.0.
    pub(crate) fn wait(&mut self, random: f64) -> Duration {
        let wait = self.next.mul_f64(0.5 + random);
        self.next = (self.next * 2).min(Self::MOST);
        wait
    }
}

/// How often a full disk is tried: a failed write costs it next to nothing, and whoever makes room
/// waits for the answer.
const FULL: Duration = Duration::from_millis(500);

/// A random number in 0.0..1.0, from the hasher's own seed: good enough to spread retries.
pub(crate) fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    let fraction = bits as f64 / (1u64 << 53) as f64;
    fraction
}

/// Has an operation carried out, unless it asks for what no database is asked for.
pub(crate) async fn carry_out<Fut>(
    op: Op,
    mut once: impl FnMut(Arc<Op>) -> Fut,
) -> Result<Reply, Error>
where
    Fut: Future<Output = Result<Reply, Error>>,
{
    op.check()?;
    let (name, op) = (op.name(), Arc::new(op));
    patiently(name, move || once(op.clone())).await
}

/// Tries until the answer is final.
pub(crate) async fn patiently<T, Fut>(
    what: &str,
    mut attempt: impl FnMut() -> Fut,
) -> Result<T, Error>
where
    Fut: Future<Output = Result<T, Error>>,
{
    let mut backoff = Backoff::new();
    loop {
        match attempt().await {
            Err(error) if error.is_retryable() => {
                let wait = match error {
                    Error::Full(_) => FULL,
                    _ => backoff.wait(random()),
                };
                tracing::warn!(%error, operation = what, ?wait, "the store will try again");
                tokio::time::sleep(wait).await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R82
    #[test]
    fn r082_waits_double_from_one_second_to_sixty_and_are_spread_by_half() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..8).map(|_| backoff.wait(0.5).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(Backoff::new().wait(0.0), Duration::from_millis(500));
        assert!(Backoff::new().wait(0.999_999) < Duration::from_millis(1500));
        let drawn: Vec<f64> = (0..100).map(|_| random()).collect();
        assert!(drawn.iter().all(|r| (0.0..1.0).contains(r)));
    }

    /// R82: however long it was full, and whatever failed before.
    #[tokio::test(start_paused = true)]
    async fn r082_a_full_disk_is_tried_twice_a_second() {
        let began = tokio::time::Instant::now();
        let (tries, room_after) = (std::cell::Cell::new(0u32), Duration::from_secs(600));
        let answer = patiently("test", || {
            tries.set(tries.get() + 1);
            let answer = match began.elapsed() {
                _ if tries.get() <= 3 => Err(Error::Transient("down".into())),
                passed if passed < room_after => Err(Error::Full("no space left".into())),
                _ => Ok(7),
            };
            async { answer }
        });
        assert_eq!(answer.await, Ok(7));
        let late = began.elapsed() - room_after;
        assert!(late <= Duration::from_millis(500), "{late:?}");
        assert!((1180..=1210).contains(&tries.get()), "{}", tries.get());
    }

    /// R82
    #[tokio::test(start_paused = true)]
    async fn r082_passing_errors_are_tried_without_limit_and_final_ones_at_once() {
        let mut left = 50;
        let answer = patiently("test", || {
            left -= 1;
            let again = left > 0;
            async move { if again { Err(Error::Transient("down".into())) } else { Ok(7) } }
        });
        assert_eq!(answer.await, Ok(7));
        let mut tries = 0;
        let refused: Result<(), _> = patiently("test", || {
            tries += 1;
            async { Err(Error::Refused("no".into())) }
        })
        .await;
        assert!(refused.is_err() && tries == 1);
    }
}
