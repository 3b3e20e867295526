//! Random operations over a small world: few runs, workers and queues, so that they meet each
//! other.
//!
//! Invariants: the sequence depends on the seed and on the model's replies alone; time never goes
//! back; leases are mostly good, often stale, sometimes made up.
//! Deliberately absent: requests that no caller may make, such as a claim by a worker without a
//! name, a claimed start of a run that is not ready, or a purge of the future.

pub(super) mod command;
mod govern;
mod owner;
pub(super) mod publish;
mod worker;

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_core::{Error, RunStatus, Timestamp};
use steadfast_store::op::{
    Advanced, Cancel, Claimed, Debounce, Dequeue, Fork, FreeSlot, GetEnds, GetRun, GetValue,
    InLine, InspectQueue, Lease, ListPeers, ListQueues, ListRuns, ListSteps, ListWorkers, Load,
    Purge, PutQueue, QueueRow, ReadStream, Release, Released, Resume, RunFilter, Signal, Start,
    Started, Submitted, TakeSlot, TimeOut, TriggerPut, Wake,
};
use steadfast_store::{Op, Reply};

use super::random::Random;

/// Ids that differ in case, in a trailing space, and by being a beginning of each other.
pub(super) const RUNS: &[&str] =
    &["a", "A", "a ", "b", "b1", "c", "d", "e", "k0", "k1", "k2", "f0", "f1"];
pub(super) const CHILDREN: &[&str] = &["k0", "k1", "k2", "d"];
pub(super) const QUEUES: &[&str] = &["default", "q", "p", "nowhere"];
pub(super) const PARTITIONS: &[&str] = &["", "x", "y"];
pub(super) const KEYS: &[&str] = &["k", "K"];
pub(super) const STREAMS: &[&str] = &["log", "log "];
const WORKERS: &[&str] = &["w#1", "w#2", "W#1", "v#1"];
const VERSIONS: &[&str] = &["v1", "v1", "v2"];
const SECOND: i64 = 1_000_000;

/// Makes one operation after the other, learning leases from the replies.
pub(super) struct Generator {
    random: Random,
    /// For places in line, debounced starts and repeated forks: drawn aside, so that the other
    /// sequences are what they were, with the rare replies that they lead to.
    places: Random,
    workspace: String,
    now: i64,
    /// Every lease that was ever given.
    leases: Vec<Lease>,
    /// Those that are good now.
    good: Vec<Lease>,
    /// The workers that reported, as far as was asked, and when.
    reports: Vec<(String, Timestamp)>,
    /// The queue that was defined last.
    defined: Option<QueueRow>,
    /// Queues that are made first.
    unmade: Vec<&'static str>,
    /// The versions that triggers have by now.
    versions: BTreeMap<String, i64>,
    /// The trigger that was written last, and the version it had.
    written: Option<(String, i64)>,
    /// Who takes what is to be sent, and what was taken and not settled.
    taking: Option<publish::Taking>,
    taken: Vec<publish::Taking>,
    /// Questions that were asked, and effects that were begun or lost: those are gone on with.
    asked: Vec<String>,
    begun: Vec<String>,
    lost: Vec<String>,
    /// Runs that were given up: they may be resumed, and their commands taken back.
    given_up: Vec<String>,
    /// Commands that wait for more, if they were taken.
    lacking: Vec<String>,
    /// The fork that was asked for last: it is asked for again, as it was or a little otherwise.
    forked: Option<Fork>,
}

impl Generator {
    pub(super) fn new(seed: u64, workspace: &str) -> Self {
        let mut random = Random::new(seed);
        Self {
            unmade: if random.chance(80) { vec!["q", "p"] } else { Vec::new() },
            random,
            places: Random::new(!seed),
            workspace: workspace.to_owned(),
            now: 1_700_000_000 * SECOND,
            leases: Vec::new(),
            good: Vec::new(),
            reports: Vec::new(),
            defined: None,
            versions: BTreeMap::new(),
            written: None,
            taking: None,
            taken: Vec::new(),
            asked: Vec::new(),
            begun: Vec::new(),
            lost: Vec::new(),
            given_up: Vec::new(),
            lacking: Vec::new(),
            forked: None,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    /// The next operation. `good` are the leases that hold now.
    pub(super) fn op(&mut self, good: Vec<Lease>) -> Op {
        self.good = good;
        // Most worlds begin with their queues: an unknown queue soon has nothing more to show.
        if let Some(queue) = self.unmade.pop() {
            let put = self.put_queue();
            let name = queue.to_owned();
            return Op::PutQueue(PutQueue { queue: QueueRow { name, ..put.queue }, ..put });
        }
        match self.random.below(100) {
            0..60 => {}
            60..80 => self.now += self.random.number(1, 3 * SECOND),
            80..99 => self.now += self.random.number(1, 10) * SECOND,
            _ => self.now += self.random.number(60, 400) * SECOND,
        }
        if self.random.chance(25) {
            return self.upper();
        }
        if self.random.chance(12) {
            return self.outward();
        }
        match self.random.below(100) {
            0..15 => Op::Start(self.start()),
            15..18 => Op::Debounce(self.debounce()),
            18..27 => Op::Dequeue(self.dequeue()),
            27..34 => Op::Wake(self.wake()),
            34..36 => match self.places.below(10) {
                0..3 => Op::EndLeases(self.end_leases()),
                _ => Op::TakeOver(self.take_over()),
            },
            36..39 => Op::Heartbeat(self.heartbeat()),
            39..56 => Op::Record(self.record()),
            56..60 => Op::Finish(self.finish()),
            60..64 => Op::Suspend(self.suspend()),
            64..65 => Op::TimeOut(TimeOut { lease: self.lease(), now: self.now() }),
            65..66 => {
                let what = *self.random.pick(&[&Released::Run, &Released::Hold]);
                Op::Release(Release { lease: self.lease(), what, now: self.now() })
            }
            66..68 => Op::ContinueAsNew(self.continue_as_new()),
            68..70 => Op::Cancel(self.cancel()),
            70..73 => Op::Resume(self.resume()),
            73..75 => {
                let fork = self.fork();
                self.forked = Some(fork.clone());
                Op::Fork(fork)
            }
            75..79 => Op::Signal(self.signal()),
            79..85 => Op::TakeSlot(self.take_slot()),
            85..89 => {
                let (lease, step) = (self.lease(), self.random.number(0, 2));
                Op::FreeSlot(FreeSlot { lease, step })
            }
            89..91 => {
                let PutQueue { workspace, queue, now } = self.put_queue();
                match self.places.below(10) {
                    0..5 => Op::DefineQueue(self.define_queue(queue)),
                    _ => Op::PutQueue(PutQueue { workspace, queue, now }),
                }
            }
            91..93 => Op::Purge(self.purge()),
            _ => self.read(),
        }
    }

    /// Remembers the leases that a reply gives.
    pub(super) fn learn(&mut self, reply: &Reply) {
        match reply {
            Reply::Start(Started::New(Some(lease)))
            | Reply::Submit(Submitted::New(_, Some(lease))) => self.leases.push(lease.clone()),
            Reply::PutTrigger(TriggerPut::Done) | Reply::Advance(Advanced::Done(_)) => {
                let written = self.written.take();
                self.versions.extend(written.map(|(trigger, version)| (trigger, version + 1)));
            }
            Reply::Dequeue(Claimed { runs, exhausted, .. })
            | Reply::Wake(Claimed { runs, exhausted, .. }) => {
                self.given_up.extend(exhausted.iter().cloned());
                self.leases.extend(runs.iter().map(|run| Lease {
                    workspace: self.workspace.clone(),
                    run_id: run.run_id.clone(),
                    worker: run.worker.clone(),
                    epoch: run.epoch,
                }));
            }
            Reply::ListPeers(peers) => {
                let seen = peers.0.iter().map(|peer| (peer.worker.clone(), peer.seen_at));
                self.reports = seen.collect();
            }
            reply => self.learn_outward(reply),
        }
    }

    fn ws(&self) -> String {
        self.workspace.clone()
    }

    fn run_id(&mut self) -> String {
        self.random.text(RUNS)
    }

    fn value(&mut self) -> String {
        self.random.text(&["0", "1", "\"z \"", "{\"b\":1,\"a\":[2]}", "\"\\u0000é\""])
    }

    /// Some by a clock that is ahead.
    fn lease_until(&mut self) -> Timestamp {
        let ahead = if self.places.chance(5) { 3600 } else { 0 };
        Timestamp::from_micros(self.now + (self.random.number(5, 60) + ahead) * SECOND)
    }

    fn lease(&mut self) -> Lease {
        let from = if self.random.chance(75) { &self.good } else { &self.leases };
        let known = match from.len() {
            0 => None,
            all => Some(from[usize::try_from(self.random.below(all as u64)).unwrap()].clone()),
        };
        let mut lease = match known {
            Some(lease) => lease,
            None => Lease {
                workspace: self.ws(),
                run_id: self.run_id(),
                worker: self.random.text(WORKERS),
                epoch: self.random.number(0, 2),
            },
        };
        match self.random.below(40) {
            0 => lease.epoch += 1,
            1 => lease.worker = self.random.text(WORKERS),
            2 => lease.run_id = self.run_id(),
            _ => {}
        }
        lease
    }

    fn start(&mut self) -> Start {
        let now = self.now;
        let r = &mut self.random;
        let run_id = r.text(RUNS);
        let worker = r.text(WORKERS);
        let claim = r.maybe(45, |_| worker);
        let ready = if claim.is_some() { 0 } else { r.pick(&[&0, &0, &2, &15, &100]) * SECOND };
        let start = Start {
            workspace: self.workspace.clone(),
            workflow: if r.chance(5) { "refund" } else { "ship" }.to_owned(),
            input: r.text(&["1", "1", "1", "1", "1", "1", "2"]),
            queue: r.text(&["default", "default", "q", "q", "p", "p", "p", "nowhere"]),
            partition: r.text(PARTITIONS),
            priority: r.number(-1, 2),
            dedupe_id: r.text(&["", "", "d", "D"]),
            app_version: r.text(&["", "", "", "v1", "v2"]),
            max_attempts: r.number(0, 3),
            ready_at: Timestamp::from_micros(self.now + ready),
            timeout: r.maybe(20, |r| Duration::from_secs(r.below(50) + 1)),
            deadline_at: r.maybe(10, |r| Timestamp::from_micros(now + r.number(-1, 60) * SECOND)),
            parent: r.text(&["", "", "", "a", "b"]),
            detached: r.chance(20),
            seed: if r.chance(90) { 7 } else { r.number(0, 1) },
            context: None,
            claim: None,
            rest: None,
            now: Timestamp::from_micros(self.now),
            run_id,
        };
        let until = self.lease_until();
        let rests = claim.is_some() && self.random.chance(20);
        let rest = rests.then(|| self.rest());
        Start { claim: claim.map(|worker| (worker, until)), rest, ..start }
    }

    fn debounce(&mut self) -> Debounce {
        let quiet = self.random.number(0, 10) * SECOND;
        let key = self.random.text(&["d", "D", "e"]);
        let start = Start {
            claim: None,
            dedupe_id: self.places.text(&["", "", "", "d"]),
            input: self.value(),
            ready_at: Timestamp::from_micros(self.now + quiet),
            // Few, so that some calls are taken for an earlier one that is sent again.
            seed: self.places.number(0, 30),
            ..self.start()
        };
        let start = match self.places.chance(20) {
            true => Start { workflow: "refund".to_owned(), ..start },
            false => start,
        };
        let max_wait = self.random.maybe(60, |r| Duration::from_secs(r.below(25)));
        Debounce { start, key, max_wait }
    }

    fn dequeue(&mut self) -> Dequeue {
        let (lease_until, now) = (self.lease_until(), self.now);
        let behind = self.places.maybe(30, |r| InLine {
            rank: r.number(-1, 2),
            ready_at: Timestamp::from_micros(now + r.number(-20, 0) * SECOND),
            run_id: r.text(RUNS),
        });
        let r = &mut self.random;
        Dequeue {
            workspace: self.workspace.clone(),
            queue: r.text(&["default", "default", "q", "q", "p", "p", "p", "p", "nowhere"]),
            worker: r.text(WORKERS),
            app_version: r.text(VERSIONS),
            workflows: workflows(r),
            limit: usize::try_from(r.pick(&[&0, &1, &1, &2, &2, &5, &100]).to_owned()).unwrap(),
            worker_has: PARTITIONS.iter().map(|p| ((*p).to_owned(), r.number(0, 1))).collect(),
            after_partition: r.text(&["", "", "x", "y", "z"]),
            behind,
            lease_until,
            now: Timestamp::from_micros(self.now),
        }
    }

    fn wake(&mut self) -> Wake {
        let lease_until = self.lease_until();
        let r = &mut self.random;
        let has =
            |r: &mut Random, queue: &str| (queue.to_owned(), r.text(PARTITIONS), r.number(0, 2));
        let worker_has = match r.below(4) {
            0 => vec![has(r, "q"), has(r, "q")],
            1 => vec![has(r, "default"), has(r, "p"), has(r, "p")],
            _ => Vec::new(),
        };
        Wake {
            workspace: self.workspace.clone(),
            worker: r.text(WORKERS),
            app_version: r.text(VERSIONS),
            workflows: workflows(r),
            limit: usize::try_from(r.below(6)).unwrap(),
            worker_has,
            lease_until,
            now: Timestamp::from_micros(self.now),
        }
    }

    fn cancel(&mut self) -> Cancel {
        let reason = Error::app(self.random.text(&["stop", "enough"]));
        let run_id = if self.random.chance(50) { self.lease().run_id } else { self.run_id() };
        Cancel { workspace: self.ws(), run_id, reason, now: self.now() }
    }

    fn resume(&mut self) -> Resume {
        let known = self.one_of(|g| &g.given_up);
        let run_id = match (self.random.below(6), known) {
            (0, _) => self.lease().run_id,
            (1, _) => self.run_id(),
            (2..5, Some(given_up)) => given_up,
            _ => format!("r-{}", self.command_id()),
        };
        Resume { workspace: self.ws(), run_id, now: self.now() }
    }

    fn fork(&mut self) -> Fork {
        if let Some(again) = self.forked.clone().filter(|_| self.places.chance(30)) {
            let now = self.now();
            return match self.places.below(4) {
                0 => Fork { seed: again.seed + 1, now, ..again },
                1 => Fork { from_step: again.from_step + 1, now, ..again },
                2 => Fork { input: Some("9".to_owned()), now, ..again },
                _ => Fork { now, ..again },
            };
        }
        let patches = (0..self.random.below(3).saturating_sub(1)).map(|_| self.step()).collect();
        let input = self.value();
        let source = self.run_id();
        let run_id =
            if self.random.chance(70) { self.random.text(&["f0", "f1"]) } else { self.run_id() };
        let r = &mut self.random;
        Fork {
            source,
            from_step: r.number(0, 9),
            run_id,
            input: r.maybe(20, |_| input),
            patches,
            app_version: r.maybe(20, |r| r.text(VERSIONS)),
            timeout: r.maybe(10, |_| Duration::from_secs(9)),
            seed: self.places.number(0, 1),
            workspace: self.ws(),
            now: self.now(),
        }
    }

    fn signal(&mut self) -> Signal {
        Signal {
            workspace: self.ws(),
            run_id: self.run_id(),
            name: self.random.text(&["paid", "Paid"]),
            signal_id: self.random.text(&["1", "2", "3", "4", "1 "]),
            payload: self.value(),
            now: self.now(),
        }
    }

    fn take_slot(&mut self) -> TakeSlot {
        let (lease, lease_until) = (self.lease(), self.lease_until());
        TakeSlot {
            lease,
            step: self.random.number(0, 2),
            queue: self.random.text(&["q", "q", "p", "default", "nowhere"]),
            partition: self.random.text(PARTITIONS),
            lease_until,
            now: self.now(),
        }
    }

    fn purge(&mut self) -> Purge {
        let back = self.random.number(0, 60) * SECOND;
        let limit = usize::try_from(self.random.below(6)).unwrap();
        Purge { workspace: self.ws(), before: Timestamp::from_micros(self.now - back), limit }
    }

    fn read(&mut self) -> Op {
        let (workspace, run_id, now) = (self.ws(), self.run_id(), self.now());
        match self.random.below(10) {
            8 => {
                let run_ids = CHILDREN.iter().map(|id| (*id).to_owned()).chain([run_id]).collect();
                Op::GetEnds(GetEnds { workspace, run_ids, now })
            }
            0 => Op::GetRun(GetRun { workspace, run_id, now }),
            1 => Op::ListRuns(self.list_runs()),
            2 => {
                let (from, limit) =
                    (self.random.number(0, 5), *self.random.pick(&[&0, &1, &3, &1001]));
                Op::ListSteps(ListSteps { workspace, run_id, from, limit })
            }
            3 => {
                let children = CHILDREN.iter().map(|id| (*id).to_owned()).collect();
                let names = self.random.maybe(30, |r| vec![r.text(&["paid", "Paid", "none"])]);
                let names = names.unwrap_or_default();
                Op::Load(Load { workspace, run_id, children, names, now })
            }
            4 => {
                let key = self.random.text(KEYS);
                Op::GetValue(GetValue { workspace, run_id, key })
            }
            5 => {
                let stream = self.random.text(STREAMS);
                let (from, limit) = (self.random.number(0, 2), 2);
                Op::ReadStream(ReadStream { workspace, run_id, stream, from, limit })
            }
            6 => Op::ListQueues(ListQueues { workspace }),
            7 => {
                let (queue, partition) = (self.random.text(QUEUES), self.random.text(PARTITIONS));
                Op::InspectQueue(InspectQueue { workspace, queue, partition, now })
            }
            _ if self.places.chance(50) => {
                let worker = self.places.text(WORKERS);
                let after = self.places.text(&["", "", "v#1"]);
                Op::ListPeers(ListPeers { workspace, worker, after })
            }
            _ => {
                let since = Timestamp::from_micros(self.now - 100 * SECOND);
                Op::ListWorkers(ListWorkers { workspace, since })
            }
        }
    }

    fn list_runs(&mut self) -> ListRuns {
        let workspace = self.ws();
        let r = &mut self.random;
        let now = self.now;
        let moment = |r: &mut Random| Timestamp::from_micros(now - r.number(0, 100) * SECOND);
        let filter = RunFilter {
            status: r
                .maybe(40, |r| {
                    let all = RunStatus::ALL;
                    r.pick(&[&all[..2], &all[2..], all, &all[..1], &all[5..]]).to_vec()
                })
                .unwrap_or_default(),
            workflow: r.maybe(10, |_| "ship".to_owned()),
            queue: r.maybe(20, |r| r.text(QUEUES)),
            id_prefix: r.maybe(20, |r| r.text(&["a", "b", "k", ""])),
            app_version: r.maybe(10, |r| r.text(&["", "v1"])),
            parent: r.maybe(10, |r| r.text(&["", "a"])),
            forked_from: r.maybe(10, |r| r.text(&["", "a", "b"])),
            created_from: r.maybe(20, moment),
            created_to: r.maybe(20, moment),
        };
        let after = r.maybe(30, |r| (moment(r), r.text(RUNS)));
        let limit = usize::try_from(r.below(6)).unwrap();
        ListRuns { workspace, filter, after, limit, now: Timestamp::from_micros(now) }
    }
}

/// What a worker has: mostly all there is.
fn workflows(r: &mut Random) -> Vec<String> {
    let both: &[&str] = &["ship", "refund"];
    let some = r.pick(&[both, both, both, &both[..1], &both[1..], &both[..0]]);
    some.iter().map(|name| (*name).to_owned()).collect()
}
