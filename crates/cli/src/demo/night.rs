//! One night: what goes wrong in it, and how it is played.

use std::time::Duration;

use steadfast::{CommandInfo, CommandStatus, Env as _, Timestamp};
use steadfast_sync::job;
use steadfast_sync::simulator::Answer;
use steadfast_sync::status::Mark;
use steadfast_sync::{Outcome, Report};

use super::stage::{Stage, fires_at};

/// How often it is looked whether something has happened.
const GLANCE: Duration = Duration::from_millis(2);
/// Longest time, by the real clock, that anything here may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happens in a night.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Nothing,
    Stale,
    Down,
    DownLater,
    Busy,
    Cut,
    BadRequest,
    Forbidden,
    Twice,
    Cancel,
    Kill,
}

impl Event {
    fn told(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Stale => "the vendor has nothing new: still the day before's",
            Self::Down => "503, 503, then an answer",
            Self::DownLater => "503 on the second page",
            Self::Busy => "429, come again in 40 s",
            Self::Cut => "the connection is cut",
            Self::BadRequest => "400: failed, on-call paged; run again by an operator",
            Self::Forbidden => "401: failed, on-call paged; run again with access",
            Self::Twice => "the schedule fires twice: one command",
            Self::Cancel => "cancelled while fetching; an operator runs it again",
            Self::Kill => "kill -9 of the worker while fetching",
        }
    }
}

pub(super) struct Plan {
    date: String,
    before: Option<String>,
    event: Event,
}

/// What became of a night.
pub(super) struct Night {
    pub(super) date: String,
    /// The command that ended it.
    pub(super) command_id: String,
    pub(super) event: &'static str,
    /// Whether the schedule fired twice.
    pub(super) twice: bool,
    pub(super) mark: Mark,
    pub(super) fired_at: Timestamp,
    pub(super) ended_at: Timestamp,
    pub(super) report: Option<Report>,
}

/// Thirty nights, each day's trouble far from the next.
pub(super) fn plans(dates: &[String]) -> Vec<Plan> {
    let event = |night: usize| match night {
        2 => Event::Down,
        4 | 18 | 27 => Event::Stale,
        6 => Event::Busy,
        8 => Event::Twice,
        11 => Event::BadRequest,
        13 => Event::Kill,
        15 => Event::DownLater,
        20 => Event::Forbidden,
        22 => Event::Cut,
        24 => Event::Cancel,
        _ => Event::Nothing,
    };
    let plan = |(night, date): (usize, &String)| Plan {
        date: date.clone(),
        before: night.checked_sub(1).map(|before| dates[before].clone()),
        event: event(night),
    };
    dates.iter().enumerate().map(plan).collect()
}

/// Plays a night to its end.
pub(super) async fn play(stage: &mut Stage, plan: Plan) -> anyhow::Result<Night> {
    let Plan { date, before, event } = plan;
    let answers = match event {
        Event::Down => vec![Answer::Status(503), Answer::Status(503)],
        Event::Busy => vec![Answer::Later(40)],
        Event::Cut => vec![Answer::Hangup],
        Event::BadRequest => vec![Answer::Status(400)],
        Event::Forbidden => vec![Answer::Status(401)],
        Event::Cancel | Event::Kill => vec![Answer::Held],
        Event::Nothing | Event::Stale | Event::DownLater | Event::Twice => Vec::new(),
    };
    stage.vendor.on(&date, answers);
    match (event, before) {
        (Event::Stale, Some(before)) => stage.vendor.stale(&date, &before),
        (Event::DownLater, _) => stage.vendor.on_page(&date, 2, Answer::Status(503)),
        _ => {}
    }
    let fired_at = fires_at(&date)?;
    stage.leap_to(fired_at.after(Duration::from_millis(20))).await?;
    let info = tokio::time::timeout(PATIENCE, through(stage, &date, event)).await;
    let info = info.map_err(|_| anyhow::anyhow!("the night of {date} does not end"))??;
    let row = info.command;
    let report: Option<Report> =
        row.result.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let mark = match (row.status, report.as_ref().map(|report| report.outcome)) {
        (CommandStatus::Succeeded, Some(Outcome::Stale)) => Mark::Stale,
        (CommandStatus::Succeeded, _) => Mark::Loaded,
        _ => Mark::Failed,
    };
    let ended_at = row.completed_at.unwrap_or(Timestamp::NEVER);
    let (command_id, twice) = (row.command_id, event == Event::Twice);
    Ok(Night { date, command_id, event: event.told(), twice, mark, fired_at, ended_at, report })
}

async fn through(stage: &mut Stage, date: &str, event: Event) -> anyhow::Result<CommandInfo> {
    let first = revision(stage, date, 1).await?;
    let id = first.command.command_id.clone();
    match event {
        Event::Twice => stage.tell(&format!("fire {date}")).await?,
        Event::Cancel => {
            asked(stage, date).await;
            let command = stage.client.command::<Report>(&id);
            command.cancel("not tonight", "user:operator").await?;
            stage.vendor.release();
        }
        Event::Kill => {
            asked(stage, date).await;
            stage.kill_worker().await?;
            stage.vendor.release();
            stage.start_worker().await?;
        }
        _ => {}
    }
    let ended = ended(stage, &id).await?;
    if ended.command.status == CommandStatus::Succeeded {
        return Ok(ended);
    }
    // On-call was told, and somebody has seen to it two minutes later.
    let then = stage.clock.now().after(Duration::from_secs(120));
    stage.leap_to(then).await?;
    stage.tell(&format!("again {date}")).await?;
    let again = revision(stage, date, 2).await?;
    self::ended(stage, &again.command.command_id).await
}

/// Waits for the command of a day.
async fn revision(stage: &Stage, date: &str, number: u32) -> anyhow::Result<CommandInfo> {
    let config = stage.config();
    let key = job::key(config, config.vendors[0].name.as_str(), date);
    loop {
        let found = stage.client.command_by_key(&job::revision(&key, number)).await?;
        match found {
            Some(info) => return Ok(info),
            None => tokio::time::sleep(GLANCE).await,
        }
    }
}

/// Waits for a command's end, leaping over its waits.
async fn ended(stage: &mut Stage, id: &str) -> anyhow::Result<CommandInfo> {
    loop {
        let info = stage.client.command::<Report>(id).info().await?;
        if info.command.completed_at.is_some() {
            return Ok(info);
        }
        if let Some(until) = stage.clock.waits_until(&stage.client, &info).await {
            stage.leap_to(until).await?;
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// Waits until the vendor was asked.
async fn asked(stage: &Stage, date: &str) {
    while !stage.vendor.log().iter().any(|seen| seen.date == date) {
        tokio::time::sleep(GLANCE).await;
    }
}
