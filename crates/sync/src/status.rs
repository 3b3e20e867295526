//! What became of the last nights, one mark a night.
//!
//! Invariants: a night's mark follows from its slot and its command, never from the warehouse: what
//! is shown is what the fabric has on record.

use std::fmt;
use std::time::Duration;

use steadfast::{
    Client, CommandStatus, ErrorClass, Result, ScheduleHandle, Slot, SlotStatus, Timestamp,
    TriggerState,
};

use crate::config::{Config, Vendor};
use crate::job;
use crate::workflow::{Outcome, Report};

/// How a night ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The partition was loaded in time.
    Loaded,
    /// Nothing new, nothing written.
    Stale,
    /// Loaded, but later than agreed.
    Late,
    /// It failed.
    Failed,
    /// Somebody stopped it.
    Cancelled,
    /// It has not ended yet.
    Running,
    /// Nobody fired it.
    Missed,
    /// A later command covers it.
    Compressed,
    /// The schedule's own rules said no.
    Skipped,
}

impl Mark {
    /// One character for a strip.
    pub const fn sign(self) -> char {
        match self {
            Self::Loaded => '#',
            Self::Stale => '=',
            Self::Late => '~',
            Self::Failed => 'X',
            Self::Cancelled => 'c',
            Self::Running => '>',
            Self::Missed => 'o',
            Self::Compressed => '/',
            Self::Skipped => '-',
        }
    }

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Stale => "stale",
            Self::Late => "late",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Running => "running",
            Self::Missed => "missed",
            Self::Compressed => "compressed",
            Self::Skipped => "skipped",
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One night.
#[derive(Debug, Clone)]
pub struct Night {
    /// The day whose sales were asked for.
    pub target_date: String,
    /// How it ended.
    pub mark: Mark,
    /// The command, if there was one.
    pub command_id: Option<String>,
    /// What it came to.
    pub report: Option<Report>,
    /// Why it failed, or was missed.
    pub reason: String,
    /// How often another fire wanted the same.
    pub collapsed: i64,
    /// Which attempt at the day this is.
    pub revision: u32,
}

/// The nights of a vendor whose fires lie between two moments, oldest first.
pub async fn nights(
    client: &Client,
    config: &Config,
    vendor: &Vendor,
    (from, until): (Timestamp, Timestamp),
) -> Result<Vec<Night>> {
    let schedule = client.schedule(job::schedule_id(vendor.name.as_str()));
    let mut fires: Vec<Fire> =
        schedule.slots_between(from, until).await?.into_iter().map(Fire::of).collect();
    fires.extend(undecided(&schedule, from, until).await?);
    let mut nights = Vec::new();
    for fire in fires {
        nights.push(night(client, config, vendor, fire).await?);
    }
    Ok(nights)
}

/// One nominal time of the schedule, and what is known of it without its command.
struct Fire {
    nominal: Timestamp,
    mark: Mark,
    reason: String,
    command_id: String,
}

impl Fire {
    fn of(slot: Slot) -> Self {
        let mark = of_slot(&slot);
        let Slot { nominal_at: nominal, reason, command_id, .. } = slot;
        Self { nominal, mark, reason, command_id }
    }
}

/// The fires that nobody has decided on, because no scheduler runs or the schedule is paused: who
/// looks in the morning must see them, and not when somebody repairs it.
async fn undecided(
    schedule: &ScheduleHandle,
    from: Timestamp,
    until: Timestamp,
) -> Result<Vec<Fire>> {
    let row = match schedule.info().await {
        Ok(row) if row.state != TriggerState::Removed => row,
        Ok(_) => return Ok(Vec::new()),
        Err(error) if error.class() == ErrorClass::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let calendar = schedule.calendar().await?;
    let reason = match row.state {
        TriggerState::Active => "no scheduler has looked at it yet".to_owned(),
        _ => row.reason.clone(),
    };
    let patience = Duration::from_secs(u64::from(calendar.schedule().grace_seconds));
    let (mut fires, mut at) = (Vec::new(), row.cursor_at.max(from));
    while let Some(nominal) = calendar.after(at).filter(|next| next.after(patience) < until) {
        let (reason, command_id) = (reason.clone(), String::new());
        fires.push(Fire { nominal, mark: Mark::Missed, reason, command_id });
        at = nominal;
    }
    Ok(fires)
}

async fn night(client: &Client, config: &Config, vendor: &Vendor, fire: Fire) -> Result<Night> {
    let target_date = fire.nominal.utc_date(-1);
    let key = job::key(config, vendor.name.as_str(), &target_date);
    let mut command = job::telling(client, &key).await?;
    if command.is_none() && !fire.command_id.is_empty() {
        // One that was denied has left the day's key to those who may.
        command = Some((1, client.command::<Report>(&fire.command_id).info().await?));
    }
    let Fire { nominal, mark, reason, .. } = fire;
    let mut night = Night {
        target_date,
        mark,
        command_id: None,
        report: None,
        reason,
        collapsed: 0,
        revision: 1,
    };
    if let Some((revision, info)) = command {
        let row = info.command;
        night.report = row.result.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let limit = Duration::from_secs(config.schedule.late_after_minutes * 60);
        let in_time = row.completed_at.is_some_and(|at| at <= nominal.after(limit));
        night.mark = of_command(row.status, night.report.as_ref(), in_time);
        night.reason = row.error.map(|error| error.to_string()).unwrap_or_default();
        night.collapsed = row.collapsed;
        night.revision = revision;
        night.command_id = Some(row.command_id);
    }
    Ok(night)
}

fn of_slot(slot: &Slot) -> Mark {
    match slot.status {
        SlotStatus::Fired | SlotStatus::Collapsed => Mark::Running,
        SlotStatus::Skipped => Mark::Skipped,
        SlotStatus::Compressed => Mark::Compressed,
        SlotStatus::Missed => Mark::Missed,
    }
}

fn of_command(status: CommandStatus, report: Option<&Report>, in_time: bool) -> Mark {
    match (status, report.map(|report| report.outcome)) {
        (CommandStatus::Succeeded, Some(Outcome::Stale)) => Mark::Stale,
        (CommandStatus::Succeeded, _) if in_time => Mark::Loaded,
        (CommandStatus::Succeeded, _) => Mark::Late,
        (CommandStatus::Failed | CommandStatus::Expired | CommandStatus::Compensated, _) => {
            Mark::Failed
        }
        (CommandStatus::Cancelled, _) => Mark::Cancelled,
        _ => Mark::Running,
    }
}
