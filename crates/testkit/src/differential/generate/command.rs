//! Commands, triggers and activities: few keys and few runs, so that they meet.
//!
//! Invariants: a command's context names the command, as every caller's does; a trigger that is not
//! active is not due.

use steadfast_core::command::Context;
use steadfast_core::schedule::{Overlap, SlotStatus};
use steadfast_core::{CommandStatus, Error, Timestamp};
use steadfast_store::Op;
use steadfast_store::op::{
    ActivityRow, Advance, Backfill, CancelCommand, CommandRef, Depend, DueTriggers, GetCommand,
    Hold, Lease, Left, ListActivities, ListCommands, ListEvents, ListSlots, ListTriggers,
    LogActivity, NewSlot, Parent, PutTrigger, SettleCommands, SlotRow, Start, Submit, Supply,
    TakeBack, TaskRow, Tell, TriggerRow, TriggerState,
};

use super::{Generator, SECOND};

pub(in crate::differential) const TRIGGERS: &[&str] = &["t", "T", "t "];
const DAY: i64 = 86_400 * SECOND;

impl Generator {
    /// An operation on commands or triggers.
    pub(super) fn upper(&mut self) -> Op {
        if self.random.chance(25) {
            return self.governing();
        }
        match self.random.below(100) {
            0..38 => Op::Submit(self.submit()),
            38..44 => Op::CancelCommand(self.cancel_command()),
            44..49 => Op::SettleCommands(self.settle()),
            49 if self.random.chance(60) => Op::TakeBack(self.take_back()),
            49 => Op::Supply(self.supply()),
            50..56 => Op::Depend(self.depend()),
            56..64 => Op::PutTrigger(self.put_trigger()),
            64..76 => Op::Advance(self.advance()),
            76..82 => {
                let (trigger_id, fire) = (self.random.text(TRIGGERS), self.submit());
                let slot = SlotRow { status: SlotStatus::Fired, ..self.slot() };
                Op::Backfill(Backfill {
                    trigger_id,
                    slot,
                    fire: Box::new(Submit { after: vec![], ..fire }),
                })
            }
            82..84 => Op::LogActivity(self.log_activity()),
            84 => Op::Tell(self.tell()),
            _ => self.read_upper(),
        }
    }

    pub(super) fn command_id(&mut self) -> String {
        let most = 8 + self.random.below(40);
        format!("c{:02}", self.random.below(most))
    }

    pub(super) fn submit(&mut self) -> Submit {
        let command_id = self.command_id();
        let start = self.start();
        let r = &mut self.random;
        // Mostly a run of its own; at times one that somebody else has.
        let run_id = if r.chance(90) { format!("r-{command_id}") } else { start.run_id.clone() };
        let seed = if r.chance(50) { 7 } else { r.number(8, 200) };
        let context = Context {
            command_id: command_id.clone(),
            trace_id: "0af7651916cd43dd8448eb211c80319c".to_owned(),
            correlation_id: "x".to_owned(),
            ..Context::default()
        };
        let after = (0..r.below(3)).map(|_| self.parent()).collect();
        let hold = self.hold();
        if matches!(hold, Some(Hold::Input(_))) {
            self.lacking.push(command_id.clone());
        }
        let r = &mut self.random;
        let start = Start {
            run_id,
            seed,
            parent: String::new(),
            detached: false,
            dedupe_id: String::new(),
            context: Some(context.to_text()),
            ..start
        };
        Submit {
            command_type: if r.chance(96) { "ship" } else { "refund" }.to_owned(),
            requested_by: r.text(&["user:1", "system:scheduler"]),
            ingress: r.text(&["api_request", "scheduled_trigger"]),
            trace_id: context.trace_id,
            cancellation_mode: r.text(&["graceful", "compensate_then_stop"]),
            idempotency_key: r.maybe(60, |r| format!("k{}", r.below(20))),
            expires_at: r.maybe(30, |r| {
                Timestamp::from_micros(start.now.as_micros() + r.number(1, 200) * SECOND)
            }),
            after: if r.chance(60) { Vec::new() } else { after },
            judgement: r.maybe(40, |_| "{\"ruling\":\"allow\"}".to_owned()),
            hold,
            by_queue: r.chance(10),
            start: Box::new(start),
            command_id,
        }
    }

    fn parent(&mut self) -> Parent {
        let command_id = self.command_id();
        let r = &mut self.random;
        let required = *r.pick(&[
            &None,
            &Some(CommandStatus::Succeeded),
            &Some(CommandStatus::Succeeded),
            &Some(CommandStatus::Cancelled),
        ]);
        Parent { command_id, required, propagate: r.chance(60) }
    }

    fn cancel_command(&mut self) -> CancelCommand {
        CancelCommand {
            workspace: self.ws(),
            command_id: self.command_id(),
            reason: Error::app("enough"),
            actor: "user:2".to_owned(),
            now: self.now(),
        }
    }

    fn tell(&mut self) -> Tell {
        let command_id = if self.random.chance(50) { self.command_id() } else { String::new() };
        Tell {
            workspace: self.ws(),
            event_id: format!("evt_{command_id}_told{}", self.random.below(6)),
            command_id,
            event_type: "ingress.rejected".to_owned(),
            payload: "{}".to_owned(),
            actor: "event:shop".to_owned(),
            trace_id: String::new(),
            now: self.now(),
        }
    }

    fn supply(&mut self) -> Supply {
        let (workspace, hold, random) = (self.ws(), self.hold(), self.command_id());
        let command_id = self.one_of(|g| &g.lacking).unwrap_or(random);
        let judgement = self.random.maybe(50, |_| "{\"decisions\":[]}".to_owned());
        let (payload, actor) = ("{\"more\":1}".to_owned(), "user:2".to_owned());
        Supply { workspace, command_id, payload, judgement, hold, actor, now: self.now() }
    }

    fn take_back(&mut self) -> TakeBack {
        let (workspace, random) = (self.ws(), self.command_id());
        let known = self.one_of(|g| &g.given_up);
        let known = known.and_then(|run| run.strip_prefix("r-").map(str::to_owned));
        let command_id = known.filter(|_| self.random.chance(70)).unwrap_or(random);
        TakeBack { workspace, command_id, actor: "user:2".to_owned(), now: self.now() }
    }

    fn settle(&mut self) -> SettleCommands {
        let left = if self.random.chance(40) { Some(self.left()) } else { None };
        let limit = usize::try_from(self.random.below(5)).unwrap() + 1;
        SettleCommands { workspace: self.ws(), left, limit, now: self.now() }
    }

    /// The worker of a stopped run speaks: of the command's own, or of one that it may have had.
    fn left(&mut self) -> Left {
        let command_id = self.command_id();
        let lease = self.lease();
        let own = self.random.chance(60);
        let run_id = if own { format!("r-{command_id}") } else { lease.run_id.clone() };
        let outcomes = (0..self.random.below(3)).map(|_| self.govern(&lease)).collect();
        let now = self.now;
        let r = &mut self.random;
        let epoch = if own { r.number(0, 2) } else { lease.epoch };
        Left {
            command_id,
            lease: Lease { run_id, epoch, ..lease },
            outcomes,
            busy_until: r.maybe(30, |r| Timestamp::from_micros(now + r.number(0, 60) * SECOND)),
        }
    }

    fn depend(&mut self) -> Depend {
        let (command_id, parent) = (self.command_id(), self.parent());
        Depend { workspace: self.ws(), command_id, parent, now: self.now() }
    }

    fn version_of(&mut self, trigger_id: &str) -> i64 {
        let known = self.versions.get(trigger_id).copied().unwrap_or(0);
        if self.random.chance(90) { known } else { self.random.number(0, 5) }
    }

    fn put_trigger(&mut self) -> PutTrigger {
        let (workspace, now) = (self.ws(), self.now());
        let trigger_id = self.random.text(TRIGGERS);
        let version = self.version_of(&trigger_id);
        let r = &mut self.random;
        let state = *r.pick(&[
            &TriggerState::Active,
            &TriggerState::Active,
            &TriggerState::Active,
            &TriggerState::Paused,
            &TriggerState::Disabled,
            &TriggerState::Removed,
        ]);
        let due = r.number(-100, 100) * SECOND;
        let due_at = match state {
            TriggerState::Active => Timestamp::from_micros(self.now + due),
            _ => Timestamp::NEVER,
        };
        let trigger = TriggerRow {
            trigger_id: trigger_id.clone(),
            kind: r.text(&["cron", "event"]),
            spec: r.text(&["{}", "{\"a\":\"é\"}"]),
            revision: r.number(1, 3),
            source: "code".to_owned(),
            state,
            reason: r.text(&["", "audit "]),
            absent_from: Timestamp::from_micros(0),
            absent_until: Timestamp::from_micros(0),
            cursor_at: now,
            gap: String::new(),
            due_at,
            version,
            created_at: now,
            updated_at: now,
        };
        self.written = Some((trigger_id, version));
        PutTrigger { workspace, trigger }
    }

    fn slot(&mut self) -> SlotRow {
        let now = self.now();
        let r = &mut self.random;
        SlotRow {
            nominal_at: Timestamp::from_micros(r.number(1, 60) * DAY),
            status: *r.pick(&[&SlotStatus::Missed, &SlotStatus::Compressed]),
            reason: r.text(&["", "late"]),
            lag_us: r.number(0, 100),
            command_id: String::new(),
            into_at: r.maybe(20, |r| Timestamp::from_micros(r.number(1, 60) * DAY)),
            window_from: r.maybe(20, |r| Timestamp::from_micros(r.number(1, 60) * DAY)),
            revision: 1,
            decided_at: now,
        }
    }

    fn advance(&mut self) -> Advance {
        let trigger_id = self.random.text(TRIGGERS);
        let version = self.version_of(&trigger_id);
        let count = self.random.below(4);
        let mut slots: Vec<_> = (0..count).map(|_| self.new_slot()).collect();
        slots.sort_by_key(|new| new.slot.nominal_at);
        slots.dedup_by_key(|new| new.slot.nominal_at);
        self.written = Some((trigger_id.clone(), version));
        let r = &mut self.random;
        Advance {
            overlap: *r.pick(&[&Overlap::Allow, &Overlap::Skip, &Overlap::Wait]),
            gap: r.text(&["", "{}"]),
            // It may have been paused: then it is not due, whoever asks.
            due_at: Timestamp::NEVER,
            workspace: self.ws(),
            trigger_id,
            version,
            slots,
            cursor_at: self.now(),
            now: self.now(),
        }
    }

    fn new_slot(&mut self) -> NewSlot {
        let slot = self.slot();
        if self.random.chance(35) {
            return NewSlot { slot, fire: None, makes_up: false };
        }
        let mut fire = self.submit();
        fire.start.claim = None;
        let slot = SlotRow { status: SlotStatus::Fired, ..slot };
        let makes_up = slot.lag_us % 3 == 0;
        NewSlot { slot, fire: Some(Box::new(fire)), makes_up }
    }

    fn log_activity(&mut self) -> LogActivity {
        let (workspace, now) = (self.ws(), self.now());
        let r = &mut self.random;
        let run_id = r.text(&["u1", "u2", "u3"]);
        let tasks = (0..r.number(0, 2)).map(|idx| TaskRow {
            id: format!("task-{run_id}:mail:{idx}"),
            run_id: run_id.clone(),
            task_type: "mail".to_owned(),
            idx,
            params: "{}".to_owned(),
            status: None,
            created_at: now,
        });
        let tasks: Vec<_> = tasks.collect();
        let failed = r.chance(30);
        let run = ActivityRow {
            activity_id: r.text(&["a", "b"]),
            definition_version: 1,
            workflow_id: r.text(&["activity-a:1", "activity-a:2", "r-c01", "r-c02"]),
            trigger_type: "cron".to_owned(),
            trigger_key: "1".to_owned(),
            context_snapshot: "{}".to_owned(),
            tasks_spawned: i64::try_from(tasks.len()).unwrap(),
            scheduled_for: r.chance(50).then_some(now),
            fired_at: now,
            window: r.chance(30).then_some((Timestamp::from_micros(0), now)),
            status: if failed { CommandStatus::Failed } else { CommandStatus::Succeeded },
            error: failed.then(|| Error::invalid("SF-0603", "no such workflow")),
            started_at: now,
            finished_at: now,
            run_id,
        };
        LogActivity { workspace, run, tasks }
    }

    fn read_upper(&mut self) -> Op {
        let (workspace, now) = (self.ws(), self.now());
        let command_id = self.command_id();
        let r = &mut self.random;
        let limit = usize::try_from(r.below(6)).unwrap();
        match r.below(8) {
            0 | 1 => {
                let which = match r.below(3) {
                    0 => CommandRef::Id(command_id),
                    1 => CommandRef::Key(format!("k{}", r.below(20))),
                    _ => CommandRef::Run(format!("r-{command_id}")),
                };
                Op::GetCommand(GetCommand { workspace, which })
            }
            2 => Op::ListCommands(ListCommands {
                workspace,
                command_type: r.maybe(20, |_| "ship".to_owned()),
                status: r.maybe(30, |_| vec![CommandStatus::Queued]).unwrap_or_default(),
                after: r.maybe(30, |_| command_id),
                limit,
            }),
            3 => Op::ListEvents(ListEvents {
                workspace,
                event_type: r.maybe(30, |r| r.text(&["command.queued", "schedule.missed"])),
                after: r.maybe(30, |_| (now, format!("evt_{command_id}_000000"))),
                type_prefix: r.maybe(20, |r| r.text(&["command.", "sink.", "c"])),
                purpose: r.maybe(20, |r| r.text(&["event", "audit"])),
                since: r.maybe(20, |r| Timestamp::from_micros(now.as_micros() - r.number(0, 40))),
                until: r.maybe(20, |r| Timestamp::from_micros(now.as_micros() - r.number(0, 40))),
                command_id: r.maybe(50, |_| command_id),
                limit,
            }),
            4 => {
                let trigger_id = r.maybe(50, |r| r.text(TRIGGERS));
                let kind = r.maybe(50, |r| r.text(&["cron", "event"]));
                Op::ListTriggers(ListTriggers { workspace, trigger_id, kind })
            }
            5 => {
                let after = r.maybe(50, |r| {
                    let before = now.as_micros() - r.number(0, 3) * DAY;
                    (Timestamp::from_micros(before), r.text(TRIGGERS))
                });
                Op::DueTriggers(DueTriggers { workspace, after, limit, now })
            }
            6 => {
                let (a, b) = (r.number(0, 60) * DAY, r.number(0, 60) * DAY);
                let (from, until) = (Timestamp::from_micros(a), Timestamp::from_micros(b));
                let (trigger_id, latest) = (r.text(TRIGGERS), r.chance(50));
                Op::ListSlots(ListSlots { workspace, trigger_id, from, until, latest, limit })
            }
            _ => {
                let activity_id = r.text(&["a", "b"]);
                Op::ListActivities(ListActivities { workspace, activity_id, limit })
            }
        }
    }
}
