//! The books of the executor: tasks, nodes, what is ready and what is due.
//!
//! Invariants: nothing in here polls, wakes or drops a future or a waker. Those run foreign code,
//! which may come back to these books; so they are handed out, and the caller acts after unlocking.
//! Deliberately absent: priorities. Every ready task is equally likely to be next.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use futures::future::BoxFuture;

use super::rng::Rng;
use super::trace::{Trace, What, stem};

/// A task: its place, and how often the place was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TaskId {
    index: u32,
    generation: u32,
}

/// What a task runs.
pub(super) type Future = BoxFuture<'static, ()>;

/// Tasks that were woken since the executor last looked.
pub(super) type Woken = Mutex<Vec<TaskId>>;

/// Puts its task on the list, once until it is polled.
pub(super) struct TaskWaker {
    id: TaskId,
    queued: AtomicBool,
    woken: Arc<Woken>,
}

impl TaskWaker {
    /// From now on a wake-up means another poll.
    pub(super) fn rearm(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.woken.lock().unwrap().push(self.id);
        }
    }
}

struct Slot {
    generation: u32,
    task: Option<Task>,
}

struct Task {
    node: u32,
    name: &'static str,
    stem: u64,
    /// Absent while the task is being polled.
    future: Option<Future>,
    gate: Arc<TaskWaker>,
    waker: Waker,
}

/// One life of a node, from its start to its crash.
#[derive(Default)]
pub(super) struct Life {
    pub(super) dead: AtomicBool,
    pub(super) watchers: Mutex<Vec<Waker>>,
}

pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) life: Arc<Life>,
    /// What this node's clock is ahead, in microseconds. Survives a crash, as a host's clock does.
    pub(super) skew_us: Arc<AtomicI64>,
    paused_until: i64,
    /// Ready tasks that wait for the end of the pause.
    held: Vec<TaskId>,
}

/// What is due at some time.
pub(super) enum Alarm {
    Wake(Waker),
    Unpause(u32),
}

/// When an alarm is due; the second part is drawn, and decides between equal times.
pub(super) type AlarmKey = (i64, u64);

/// A task that is about to be polled.
pub(super) struct Turn {
    pub(super) id: TaskId,
    pub(super) node: u32,
    pub(super) future: Future,
    pub(super) gate: Arc<TaskWaker>,
    pub(super) waker: Waker,
}

#[derive(Default)]
pub(super) struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: Vec<TaskId>,
    alarms: BTreeMap<AlarmKey, Alarm>,
    pub(super) nodes: Vec<Node>,
    /// Futures of crashed nodes, to be dropped when no task is being polled.
    pub(super) graveyard: Vec<Future>,
    pub(super) trace: Trace,
    pub(super) closed: bool,
}

impl State {
    /// The node of this name, alive: a crashed one begins a new life.
    pub(super) fn node(&mut self, name: &str, now: i64) -> u32 {
        let index = match self.find(name) {
            Some(index) => {
                let node = &mut self.nodes[index as usize];
                if !node.life.dead.load(Ordering::Acquire) {
                    return index;
                }
                node.life = Arc::default();
                index
            }
            None => {
                self.nodes.push(Node {
                    name: name.into(),
                    life: Arc::default(),
                    skew_us: Arc::default(),
                    paused_until: i64::MIN,
                    held: Vec::new(),
                });
                small(self.nodes.len() - 1)
            }
        };
        self.note(now, index, What::Started, "");
        index
    }

    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.nodes.iter().position(|node| &*node.name == name).map(small)
    }

    /// Adds something to the trace.
    pub(super) fn note(&mut self, now: i64, node: u32, what: What, text: &str) {
        let name = &self.nodes[node as usize].name;
        self.trace.add(now, (node, name), what, (text, stem(text)));
    }

    pub(super) fn spawn(
        &mut self,
        now: i64,
        node: u32,
        name: &'static str,
        future: Future,
        woken: &Arc<Woken>,
    ) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, task: None });
            small(self.slots.len() - 1)
        });
        let slot = &mut self.slots[index as usize];
        let id = TaskId { index, generation: slot.generation };
        let queued = AtomicBool::new(true);
        let gate = Arc::new(TaskWaker { id, queued, woken: woken.clone() });
        let waker = Waker::from(gate.clone());
        let stem = stem(name);
        slot.task = Some(Task { node, name, stem, future: Some(future), gate, waker });
        self.ready.push(id);
        let place = (node, &self.nodes[node as usize].name);
        self.trace.add(now, place, What::Spawned, (name, stem));
    }

    pub(super) fn enqueue(&mut self, woken: &mut Vec<TaskId>) {
        self.ready.append(woken);
    }

    /// Draws the next task to poll, if any is ready on a node that is not paused.
    pub(super) fn next(&mut self, now: i64, rng: &Rng) -> Option<Turn> {
        loop {
            let id = match self.ready.len() {
                0 => return None,
                1 => self.ready.pop()?,
                n => {
                    let at = rng.below(n as u64);
                    self.ready.swap_remove(usize::try_from(at).unwrap_or(0))
                }
            };
            let slot = &mut self.slots[id.index as usize];
            let Some(task) = slot.task.as_mut().filter(|_| slot.generation == id.generation) else {
                continue;
            };
            let node = &mut self.nodes[task.node as usize];
            if node.paused_until > now {
                node.held.push(id);
                continue;
            }
            let Some(future) = task.future.take() else {
                continue;
            };
            let what = (task.name, task.stem);
            self.trace.add(now, (task.node, &node.name), What::Polled, what);
            let (gate, waker) = (task.gate.clone(), task.waker.clone());
            return Some(Turn { id, node: task.node, future, gate, waker });
        }
    }

    /// Takes a polled future back. Returned is one that is to be dropped.
    pub(super) fn put_back(&mut self, id: TaskId, future: Future) -> Option<Future> {
        match self.task_mut(id) {
            Some(task) => {
                task.future = Some(future);
                None
            }
            None => Some(future),
        }
    }

    /// Forgets a task that ended.
    pub(super) fn end(&mut self, id: TaskId, now: i64) {
        let Some(task) = self.task_mut(id) else {
            return;
        };
        let (node, name, stem) = (task.node, task.name, task.stem);
        let place = (node, &self.nodes[node as usize].name);
        self.trace.add(now, place, What::Ended, (name, stem));
        self.remove(id.index);
    }

    fn task_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        let slot = &mut self.slots[id.index as usize];
        if slot.generation == id.generation { slot.task.as_mut() } else { None }
    }

    fn remove(&mut self, index: u32) -> Option<Task> {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        slot.task.take()
    }

    /// Ends a node's life; its futures go to the graveyard. Returned are the watchers to wake.
    pub(super) fn crash(&mut self, node: u32, now: i64) -> Vec<Waker> {
        let entry = &mut self.nodes[node as usize];
        if entry.life.dead.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        entry.paused_until = i64::MIN;
        entry.held.clear();
        let watchers = std::mem::take(&mut *entry.life.watchers.lock().unwrap());
        for index in 0..small(self.slots.len()) {
            let mine = |task: &Task| task.node == node;
            if self.slots[index as usize].task.as_ref().is_some_and(mine)
                && let Some(task) = self.remove(index)
            {
                self.graveyard.extend(task.future);
            }
        }
        self.note(now, node, What::Crashed, "");
        watchers
    }

    pub(super) fn pause(&mut self, node: u32, now: i64, until: i64, rng: &Rng) {
        let entry = &mut self.nodes[node as usize];
        entry.paused_until = entry.paused_until.max(until);
        let until = entry.paused_until;
        self.set_alarm(until, Alarm::Unpause(node), rng);
        self.note(now, node, What::Paused, "");
    }

    pub(super) fn set_alarm(&mut self, at: i64, alarm: Alarm, rng: &Rng) -> AlarmKey {
        let mut key = (at, rng.next());
        while self.alarms.contains_key(&key) {
            key.1 = rng.next();
        }
        self.alarms.insert(key, alarm);
        key
    }

    /// Replaces who is woken by an alarm; the former is returned, to be dropped outside.
    pub(super) fn rewire(&mut self, key: AlarmKey, waker: &Waker) -> Option<Alarm> {
        let alarm = self.alarms.get_mut(&key)?;
        match alarm {
            Alarm::Wake(old) if old.will_wake(waker) => None,
            _ => Some(std::mem::replace(alarm, Alarm::Wake(waker.clone()))),
        }
    }

    pub(super) fn cancel_alarm(&mut self, key: AlarmKey) -> Option<Alarm> {
        self.alarms.remove(&key)
    }

    pub(super) fn next_alarm_at(&self) -> Option<i64> {
        self.alarms.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes what is due at this time: ends pauses, and returns whom to wake.
    pub(super) fn ring(&mut self, at: i64, wake: &mut Vec<Waker>) {
        while let Some(first) = self.alarms.first_entry() {
            if first.key().0 > at {
                break;
            }
            match first.remove() {
                Alarm::Wake(waker) => wake.push(waker),
                Alarm::Unpause(node) => {
                    let node = &mut self.nodes[node as usize];
                    if node.paused_until <= at {
                        self.ready.append(&mut node.held);
                    }
                }
            }
        }
    }

    /// The tasks that live, as node and name.
    pub(super) fn tasks(&self) -> Vec<(String, &'static str)> {
        self.slots
            .iter()
            .filter_map(|slot| slot.task.as_ref())
            .map(|task| (self.nodes[task.node as usize].name.to_string(), task.name))
            .collect()
    }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("invariant: fewer than four billion tasks")
}
