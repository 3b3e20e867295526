//! One life of a schedule: years of deeds drawn from a seed, each compared with what must be.
//!
//! Invariants: the clock moves only between deeds; after each deed, or several at once, the rows
//! are what some order of them would have written, and the next deed goes on from there.

use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use steadfast::limits::SLOT_BATCH;
use steadfast::{Client, Env as _, Slot, Timestamp, TriggerInfo, TriggerState};
use steadfast_store::OpenStore;
use steadfast_testkit::suite::runtime::Clock;

use crate::chance::Chance;
use crate::dice::Dice;
use crate::policy::{ID, Verdict};
use crate::tally::Tally;
use crate::unsteady::Unsteady;
use crate::world::{Deed, Row, Said, World};

/// How long a life is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) years: i64,
    /// A schedule with many slots a day ends earlier.
    pub(crate) slots: usize,
    /// Whether schedulers die in the middle of their work. On a database, what a dead one had
    /// asked for may still happen, and these lives are told in order.
    pub(crate) deaths: bool,
}

/// A schedule that is being lived.
pub(crate) struct Life {
    pub(crate) clients: [Client; 2],
    born: Timestamp,
    pub(crate) now: Timestamp,
    /// Everything that was written, as it must be.
    pub(crate) rows: Vec<Row>,
    pub(crate) tally: Tally,
    /// What may be the case.
    worlds: Vec<World>,
    dice: Dice,
}

/// What can be seen from outside.
struct Seen {
    trigger: Option<TriggerInfo>,
    slots: Vec<Slot>,
}

/// Lives a life from its seed; gives it for the last judgement.
pub(crate) async fn live(store: OpenStore, workspace: &str, seed: u64, span: Span) -> Life {
    let clock = Clock::at("2024-01-15T10:20:30Z");
    let store: OpenStore = Arc::new(Unsteady::new(store, seed));
    let client = || Client::over(clock.clone(), store.clone(), workspace).unwrap();
    let mut life = Life {
        clients: [client(), client()],
        born: clock.now(),
        now: clock.now(),
        rows: Vec::new(),
        tally: Tally::default(),
        worlds: vec![World::empty()],
        dice: Dice::new(seed),
    };
    let mut chance = Chance::new(life.dice.next());
    let end = life.now.as_micros() + span.years * 365 * 86_400 * 1_000_000;
    while life.now.as_micros() < end && life.rows.len() < span.slots {
        let (world, now) = (&life.worlds[0], life.now);
        life.now = chance.moment(world, now);
        clock.set(life.now);
        let deeds = chance.deeds(&life.worlds[0]);
        // Much work makes it likely to be hit in the middle of it.
        let deadly = if life.worlds[0].backlog(life.now) > SLOT_BATCH { 50 } else { 5 };
        if span.deaths && life.dice.percent(deadly) {
            life.die(&deeds[0]).await;
        } else {
            life.act(&deeds).await;
        }
    }
    life.come_to_rest().await;
    life
}

impl Life {
    /// What is the case, now that nobody is left who could have done something else.
    pub(crate) fn world(&self) -> &World {
        &self.worlds[0]
    }

    /// How many days it was long.
    pub(crate) fn days(&self) -> usize {
        let length = self.born.until(self.now);
        usize::try_from(length.as_secs() / 86_400).unwrap()
    }

    /// Lets the schedule be active and everything be decided.
    async fn come_to_rest(&mut self) {
        if let Some(trigger) = self.world().trigger().cloned() {
            self.act(&[Deed::Define(Box::new(trigger))]).await;
        }
        if self.world().state == TriggerState::Paused {
            self.act(&[Deed::Resume]).await;
        }
        self.act(&[Deed::Tick]).await;
    }

    /// Does something, or several things at once.
    async fn act(&mut self, deeds: &[Deed]) {
        let work = deeds.iter().enumerate().map(|(n, deed)| perform(&self.clients[n % 2], deed));
        let said = join_all(work).await;
        let seen = self.look().await;
        let mut next = self.explain(deeds, &said, &seen, &orders(deeds.len(), 1));
        if next.is_empty() {
            // Whoever replaces a definition decides first what was due: others may come between.
            next = self.explain(deeds, &said, &seen, &orders(deeds.len(), 2));
            self.tally.add("interrupted deeds", usize::from(!next.is_empty()));
        }
        self.tally.deeds(deeds, &said);
        self.go_on(next, deeds, &format!("said {said:?}"), &seen);
    }

    /// What may be the case after deeds that were done at once, if they were done in some of these
    /// orders. A deed that comes twice is first begun and then done.
    fn explain(
        &self,
        deeds: &[Deed],
        said: &[Said],
        seen: &Seen,
        orders: &[Vec<usize>],
    ) -> Vec<World> {
        let mut next: Vec<World> = Vec::new();
        // Whoever was interrupted by the others may have stopped on the way, after some commit: of
        // what an earlier one had left, or of what he found himself.
        let count = seen.slots.len();
        let whole_or_part = |left: usize| {
            let his_own = (left..count).step_by(SLOT_BATCH);
            let parts = [count].into_iter().chain((0..left).step_by(SLOT_BATCH)).chain(his_own);
            let interrupted = if deeds.len() > 1 { usize::MAX } else { 0 };
            [usize::MAX].into_iter().chain(parts.take(interrupted))
        };
        for (world, order) in self.worlds.iter().flat_map(|w| orders.iter().map(move |o| (w, o))) {
            for written in whole_or_part(world.spoken.len()) {
                let mut world = world.clone();
                let agrees = order.iter().enumerate().all(|(at, n)| match &deeds[*n] {
                    Deed::Tick if deeds.len() > 1 => {
                        world.dies_doing(&Deed::Tick, self.now, written);
                        said[*n].is_ok()
                    }
                    deed if order[at + 1..].contains(n) => {
                        world.dies_doing(deed, self.now, written);
                        true
                    }
                    deed => world.does(deed, self.now) == said[*n],
                });
                if agrees && seen.shows(&world) && !next.iter().any(|w| w.is_like(&world)) {
                    next.push(world);
                }
            }
        }
        next
    }

    /// Begins something and dies on the way, as seen from outside: at whatever point.
    async fn die(&mut self, deed: &Deed) {
        let turns = self.dice.between(0, 14);
        let ended = dies_after(turns, perform(&self.clients[0], deed)).await;
        let seen = self.look().await;
        let mut next: Vec<World> = Vec::new();
        for world in &self.worlds {
            let (mut whole, mut part) = (world.clone(), world.clone());
            let said = whole.does(deed, self.now);
            part.dies_doing(deed, self.now, seen.slots.len());
            if ended.as_ref().is_none_or(|ended| *ended == said) && seen.shows(&whole) {
                next.push(whole);
            }
            let is_known = next.iter().any(|w| w.is_like(&part));
            if ended.is_none() && seen.shows(&part) && !is_known {
                next.push(part);
            }
        }
        self.tally.add("deaths", usize::from(ended.is_none()));
        let one = std::slice::from_ref(deed);
        self.go_on(next, one, &format!("died after {turns} turns or said {ended:?}"), &seen);
        let half = ended.is_none() && !self.world().spoken.is_empty();
        self.tally.add("half-written gaps", usize::from(half));
    }

    fn go_on(&mut self, mut next: Vec<World>, deeds: &[Deed], end: &str, seen: &Seen) {
        let now = self.now;
        assert!(!next.is_empty(), "{now}: {deeds:?} {end}\n{}", self.difference(deeds, seen));
        self.tally.add("open questions", usize::from(next.len() > 1));
        self.rows.append(&mut next[0].fresh);
        next.iter_mut().for_each(|world| world.fresh.clear());
        self.worlds = next;
    }

    /// The trigger, and the slots that were not there when we last looked.
    async fn look(&self) -> Seen {
        let schedule = self.clients[0].schedule(ID);
        let known = self.rows.last().map_or(0, |row| row.verdict.nominal.as_micros());
        let from = Timestamp::from_micros(known + 1);
        let slots = schedule.slots_between(from, Timestamp::NEVER).await.unwrap();
        Seen { trigger: schedule.info().await.ok(), slots }
    }

    /// What must be if the deeds were done as they are written here, and what is.
    fn difference(&self, deeds: &[Deed], seen: &Seen) -> String {
        let (mut world, now) = (self.worlds[0].clone(), self.now);
        let before = world.to_string();
        let said: Vec<_> = deeds.iter().map(|deed| world.does(deed, now)).collect();
        let is: Vec<_> = seen.slots.iter().map(read).collect();
        let same = is.iter().zip(&world.fresh).take_while(|(is, must)| is == must).count();
        format!(
            "among {} worlds: {before}\nafterwards: {world}, said {said:?}\nbut is: {:?}\n\
             the same: {same} rows\nmust: {} rows, {:#?}\nis: {} rows, {:#?}",
            self.worlds.len(),
            seen.trigger,
            world.fresh.len(),
            world.fresh.get(same),
            is.len(),
            is.get(same),
        )
    }
}

impl Seen {
    /// Whether it looks as it must.
    fn shows(&self, world: &World) -> bool {
        let rows = self.slots.len() == world.fresh.len()
            && self.slots.iter().zip(&world.fresh).all(|(slot, row)| read(slot) == *row);
        rows && match &self.trigger {
            None => world.trigger().is_none(),
            Some(row) => {
                let spec = serde_json::from_str(&row.spec).ok();
                row.state == world.state
                    && spec.as_ref() == world.trigger()
                    && row.revision == world.revision()
                    && world.due_at().is_none_or(|due| due == row.due_at)
            }
        }
    }
}

/// A slot as it was stored, but for its command.
pub(crate) fn read(slot: &Slot) -> Row {
    let verdict = Verdict {
        nominal: slot.nominal_at,
        status: slot.status,
        reason: slot.reason.clone(),
        into: slot.into_at,
        covers: slot.window_from,
    };
    Row { verdict, revision: slot.revision, decided_at: slot.decided_at }
}

fn perform<'a>(client: &'a Client, deed: &'a Deed) -> BoxFuture<'a, Said> {
    Box::pin(async move {
        let done = match deed {
            Deed::Tick => client.tick().await.map(|_| ()),
            Deed::Pause(why) => client.schedule(ID).pause(why).await.map(|_| ()),
            Deed::Resume => client.schedule(ID).resume().await.map(|_| ()),
            Deed::Define(trigger) => client.define(trigger).await,
            Deed::Remove => client.remove(ID).await,
        };
        done.map_err(|error| error.code().to_owned())
    })
}

/// Lets somebody work for so many turns; none if he was not done by then.
async fn dies_after<T>(turns: u64, mut work: BoxFuture<'_, T>) -> Option<T> {
    for _ in 0..turns {
        if let std::task::Poll::Ready(done) = futures::poll!(&mut work) {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Every order of so many things, each of them so many times.
fn orders(count: usize, times: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..count * times {
        let longer = |order: &Vec<usize>| {
            let left = |n: &usize| order.iter().filter(|m| *m == n).count() < times;
            let grown = |n: usize| order.iter().copied().chain([n]).collect::<Vec<_>>();
            (0..count).filter(left).map(grown).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}
