//! A clock that skips the waiting: time passes as it does, and leaps when it is told to.
//!
//! Invariants: time never goes back; whoever sleeps until a moment that a leap has passed wakes up
//! at once, so a wait of ten minutes is over in a millisecond and still is one of ten minutes.
//! For demonstrations and tests; a leap in production would end every lease.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast::{Client, CommandInfo, Env, Result, Rule, Timestamp, TokioEnv};
use tokio::sync::watch;

/// How often it is looked whether anything has happened.
const GLANCE: Duration = Duration::from_millis(2);

/// [`Env`] on tokio, ahead of its clock by as much as was leapt.
pub struct LeapEnv {
    world: TokioEnv,
    ahead_us: watch::Sender<i64>,
}

impl LeapEnv {
    /// Begins at a moment, which may have passed.
    pub fn at(begin: Timestamp) -> Arc<Self> {
        Self::ahead_by(begin.as_micros() - TokioEnv::current().now().as_micros())
    }

    /// Begins so many microseconds ahead of the real clock, or behind it.
    pub fn ahead_by(us: i64) -> Arc<Self> {
        Arc::new(Self { world: TokioEnv::current(), ahead_us: watch::Sender::new(us) })
    }

    /// By how many microseconds it is ahead.
    pub fn ahead_us(&self) -> i64 {
        *self.ahead_us.borrow()
    }

    /// Is ahead by so much from now on, unless it is already by more.
    pub fn set_ahead_us(&self, us: i64) {
        self.ahead_us.send_if_modified(|ahead| {
            let more = us > *ahead;
            *ahead = us.max(*ahead);
            more
        });
    }

    /// Leaps to a moment; one that has passed is no matter.
    pub fn leap_to(&self, at: Timestamp) {
        self.set_ahead_us(at.as_micros() - self.world.now().as_micros());
    }

    /// Until when a command's run waits for nothing but time.
    pub async fn waits_until(&self, client: &Client, info: &CommandInfo) -> Option<Timestamp> {
        let why = client.explain(&info.command.workflow_id).await.ok()?;
        let until = why.until.filter(|_| why.rule == Rule::Waiting)?;
        (until != Timestamp::NEVER && until > self.now()).then_some(until)
    }

    /// Waits until a command is as wanted, leaping over its waits.
    pub async fn see_until(
        &self,
        client: &Client,
        command_id: &str,
        wanted: impl Fn(&CommandInfo) -> bool,
    ) -> Result<CommandInfo> {
        loop {
            let info = client.command::<serde_json::Value>(command_id).info().await?;
            if wanted(&info) {
                return Ok(info);
            }
            if let Some(until) = self.waits_until(client, &info).await {
                self.leap_to(until);
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Waits for a command to end, leaping over its waits.
    pub async fn see_through(&self, client: &Client, command_id: &str) -> Result<CommandInfo> {
        self.see_until(client, command_id, |info| info.command.completed_at.is_some()).await
    }
}

impl Env for LeapEnv {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.world.now().as_micros() + self.ahead_us())
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        let (world, mut ahead) = (self.world.clone(), self.ahead_us.subscribe());
        let until = self.now().after(d);
        Box::pin(async move {
            loop {
                let now = world.now().as_micros() + *ahead.borrow_and_update();
                let left = Timestamp::from_micros(now).until(until);
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = world.sleep(left) => {}
                    leapt = ahead.changed() => if leapt.is_err() { world.sleep(left).await },
                }
            }
        })
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.world.spawn(name, task);
    }

    fn random(&self) -> u64 {
        self.world.random()
    }
}
