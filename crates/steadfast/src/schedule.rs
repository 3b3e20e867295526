//! A schedule as operators see it: its next times, its slots, a pause, a run now, a backfill.

use steadfast_core::command::Ingress;
use steadfast_core::schedule::{Calendar, SlotStatus};
use steadfast_core::trigger::Trigger;
use steadfast_core::{Error, Result, Timestamp, limits};
use steadfast_store::op;

use crate::client::Client;
use crate::flow::scheduler::{self, Origin, slot_row};
use crate::flow::sync::{self, Change};

/// Backfilled commands go behind fresh ones, on queues with priorities.
const BACKFILL_PRIORITY: i64 = limits::BACKGROUND_PRIORITY;
/// Most slots one backfill may name: beyond it, a mistake is more likely than a wish.
const BACKFILL_SLOTS: usize = 10_000;

/// A trigger as it is stored.
pub type TriggerInfo = op::TriggerRow;
/// One nominal time of a schedule, and what became of it.
pub type Slot = op::SlotRow;

/// Which slots to make commands for.
#[derive(Debug, Clone)]
pub struct Backfill {
    /// The first nominal time.
    pub from: Timestamp,
    /// The last one.
    pub until: Timestamp,
    /// Leaves alone what has fired.
    pub only_missing: bool,
    /// Changes nothing.
    pub dry_run: bool,
}

/// What a backfill did, or would do, with one slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Filled {
    /// The nominal time.
    pub nominal: Timestamp,
    /// What the slot was before; none if it has no row.
    pub before: Option<SlotStatus>,
    /// The command: its id, and whether it is new. None in a dry run, and where nothing is done.
    pub command: Option<(String, bool)>,
    /// Why nothing was done, where it was not.
    pub note: String,
}

/// A handle to one schedule.
#[derive(Clone)]
pub struct ScheduleHandle {
    client: Client,
    id: String,
}

impl Client {
    /// A handle to a schedule by its id.
    pub fn schedule(&self, id: impl Into<String>) -> ScheduleHandle {
        ScheduleHandle { client: self.clone(), id: id.into() }
    }

    /// Every trigger that is defined, by id.
    pub async fn triggers(&self) -> Result<Vec<TriggerInfo>> {
        let workspace = self.inner.workspace().to_owned();
        let all = self.inner.ask(op::ListTriggers::all(workspace)).await?.0;
        Ok(all.into_iter().filter(|row| row.state != op::TriggerState::Removed).collect())
    }

    /// Creates a trigger, or makes the existing one what the definition says. It belongs to source
    /// `api`: no start of an application removes it.
    pub async fn define(&self, trigger: &Trigger) -> Result<()> {
        crate::flow::router::check_filter(trigger)?;
        self.router.forget();
        sync::define(&self.scheduler, &self.inner, "api", trigger).await
    }

    /// Removes a trigger. What it did is kept.
    pub async fn remove(&self, trigger_id: &str) -> Result<()> {
        self.router.forget();
        sync::steer(&self.scheduler, &self.inner, trigger_id, &Change::Remove).await.map(|_| ())
    }

    /// Decides every slot that is due now. The fabric does this by itself, each second.
    pub async fn tick(&self) -> Result<usize> {
        self.scheduler.tick().await
    }
}

impl ScheduleHandle {
    /// The schedule as it is stored.
    pub async fn info(&self) -> Result<TriggerInfo> {
        scheduler::find(&self.client.inner, &self.id).await
    }

    /// Its calendar.
    pub async fn calendar(&self) -> Result<Calendar> {
        Ok(self.client.scheduler.planner(&self.info().await?)?.calendar.clone())
    }

    /// Its next nominal times: 1 to [`limits::PAGE_ROWS`].
    pub async fn next(&self, count: usize) -> Result<Vec<Timestamp>> {
        if !(1..=limits::PAGE_ROWS).contains(&count) {
            let most = limits::PAGE_ROWS;
            let why = format!("{count} nominal times; 1 to {most} may be asked for at a time");
            return Err(Error::invalid("SF-0124", why));
        }
        let calendar = self.calendar().await?;
        let now = self.client.inner.now();
        Ok(calendar.between(now, Timestamp::NEVER).take(count).collect())
    }

    /// What became of its latest nominal times, oldest first.
    pub async fn slots(&self, most: usize) -> Result<Vec<Slot>> {
        let range = (Timestamp::from_micros(0), Timestamp::NEVER);
        self.list_slots(range, true, most).await
    }

    /// What became of the nominal times of a range, oldest first.
    pub async fn slots_between(&self, from: Timestamp, until: Timestamp) -> Result<Vec<Slot>> {
        let (mut all, mut from) = (Vec::new(), from);
        loop {
            let page = self.list_slots((from, until), false, limits::PAGE_ROWS).await?;
            let more = page.len() == limits::PAGE_ROWS;
            all.extend(page);
            match all.last() {
                Some(last) if more => {
                    from = Timestamp::from_micros(last.nominal_at.as_micros() + 1)
                }
                _ => return Ok(all),
            }
        }
    }

    async fn list_slots(
        &self,
        (from, until): (Timestamp, Timestamp),
        latest: bool,
        limit: usize,
    ) -> Result<Vec<Slot>> {
        let workspace = self.client.inner.workspace().to_owned();
        let trigger_id = self.id.clone();
        let list = op::ListSlots { workspace, trigger_id, from, until, latest, limit };
        Ok(self.client.inner.ask(list).await?.0)
    }

    /// Stops it from firing, for a reason that its missed slots will tell.
    pub async fn pause(&self, reason: &str) -> Result<TriggerInfo> {
        self.steer(Change::Pause(reason.to_owned())).await
    }

    /// Lets it fire again. What it missed is decided by its misfire policy.
    pub async fn resume(&self) -> Result<TriggerInfo> {
        self.steer(Change::Resume).await
    }

    async fn steer(&self, change: Change) -> Result<TriggerInfo> {
        let client = &self.client;
        client.router.forget();
        sync::steer(&client.scheduler, &client.inner, &self.id, &change).await
    }

    /// Fires it now, whatever its state; gives the command's id, and whether it is new. Its own
    /// slots are not touched.
    pub async fn trigger(&self, requested_by: &str) -> Result<(String, bool)> {
        let row = self.info().await?;
        self.still_there(&row)?;
        let planner = self.client.scheduler.planner(&row)?;
        // A whole second, so that its id reads like the others.
        let now = self.client.inner.now().as_micros();
        let nominal = Timestamp::from_micros(now - now.rem_euclid(1_000_000));
        let origin = Origin { requested_by, ingress: Ingress::UserRequest, priority: 0 };
        let fire = self.client.scheduler.fire(&planner, nominal, None, &origin)?;
        self.client.carry_out(fire).await
    }

    /// Refuses one that was removed: what it did is on record, and it does nothing more.
    fn still_there(&self, row: &TriggerInfo) -> Result<()> {
        if row.state != op::TriggerState::Removed {
            return Ok(());
        }
        let text = format!("trigger \"{}\" was removed", self.id);
        Err(Error::new(steadfast_core::ErrorClass::Conflict, "SF-0610", text))
    }

    /// Whether a slot has its command: its own, or that of the slot that covers it.
    async fn is_done(&self, slot: &Slot, known: &[Slot]) -> Result<bool> {
        let fired = |slot: &Slot| matches!(slot.status, SlotStatus::Fired | SlotStatus::Collapsed);
        let (SlotStatus::Compressed, Some(into)) = (slot.status, slot.into_at) else {
            return Ok(fired(slot));
        };
        if let Some(cover) = known.iter().find(|slot| slot.nominal_at == into) {
            return Ok(fired(cover));
        }
        Ok(self.list_slots((into, into), false, 1).await?.iter().any(fired))
    }

    /// Makes the commands of past slots, behind fresh ones, oldest first.
    pub async fn backfill(&self, which: &Backfill, requested_by: &str) -> Result<Vec<Filled>> {
        let row = self.info().await?;
        let planner = self.client.scheduler.planner(&row)?;
        let now = self.client.inner.now();
        if which.from > which.until {
            return Err(Error::invalid("SF-0612", "the backfill ends before it begins"));
        }
        if which.from > now {
            return Err(Error::invalid("SF-0612", "the backfill is all in the future"));
        }
        self.still_there(&row)?;
        let before_first = Timestamp::from_micros(which.from.as_micros() - 1);
        let until = which.until.min(now);
        let wanted: Vec<_> =
            planner.calendar.between(before_first, until).take(BACKFILL_SLOTS + 1).collect();
        if wanted.len() > BACKFILL_SLOTS {
            let text = format!("the backfill names more than {BACKFILL_SLOTS} slots; narrow it");
            return Err(Error::invalid("SF-0612", text));
        }
        let known = self.slots_between(which.from, until).await?;
        let (ingress, priority) = (Ingress::ScheduledTrigger, BACKFILL_PRIORITY);
        let origin = Origin { requested_by, ingress, priority };
        let mut filled = Vec::new();
        for nominal in wanted {
            let slot = known.iter().find(|slot| slot.nominal_at == nominal);
            let before = slot.map(|slot| slot.status);
            let done = match slot {
                Some(slot) => self.is_done(slot, &known).await?,
                None => false,
            };
            let mut line = Filled { nominal, before, command: None, note: String::new() };
            if done && which.only_missing {
                line.note = "has its command".to_owned();
                filled.push(line);
                continue;
            }
            let fire = self.client.scheduler.fire(&planner, nominal, None, &origin);
            if which.dry_run {
                // Also what would be in its way.
                line.note = fire.err().map_or_else(String::new, |refusal| refusal.to_string());
            } else {
                let fire = fire?;
                let mut slot = slot_row(&row, nominal, now);
                slot.reason = format!("backfilled by {requested_by}");
                let (trigger_id, made) = (self.id.clone(), Box::new(fire.clone()));
                let fill = op::Backfill { trigger_id, slot, fire: made };
                let reply = self.client.inner.ask(fill).await?;
                match self.client.inner.submitted(&fire, reply.submitted) {
                    Ok((id, new, _)) => line.command = Some((id, new)),
                    // The other slots are not to blame.
                    Err(refusal) => line.note = refusal.to_string(),
                }
            }
            filled.push(line);
        }
        Ok(filled)
    }
}
