//! What workers report, and what queues are defined and changed to.

use std::time::Duration;

use steadfast_store::op::{DefineQueue, EndLeases, Heartbeat, PutQueue, QueueRow, TakeOver};

use super::{Generator, VERSIONS, WORKERS, workflows};

impl Generator {
    /// Mostly of a worker that has reported, and mostly of its last report.
    pub(super) fn end_leases(&mut self) -> EndLeases {
        let any = (self.places.text(WORKERS), self.now());
        let (worker, seen_at) = match self.reports.len() {
            0 => any,
            all => self.reports[usize::try_from(self.places.below(all as u64)).unwrap()].clone(),
        };
        EndLeases { workspace: self.ws(), worker, seen_at, now: self.now() }
    }

    pub(super) fn take_over(&mut self) -> TakeOver {
        let worker = self.random.text(WORKERS);
        let name = self.random.text(&["w", "W", "v", "_", "%", ""]);
        TakeOver { workspace: self.ws(), name, worker, now: self.now() }
    }

    pub(super) fn heartbeat(&mut self) -> Heartbeat {
        let (mut leases, worker) = (Vec::new(), self.random.text(WORKERS));
        for _ in 0..self.random.below(5) {
            let lease = self.lease();
            if lease.worker == worker || self.random.chance(10) {
                leases.push((lease.run_id, lease.epoch));
            }
        }
        let app_version = self.random.text(VERSIONS);
        let workflows = workflows(&mut self.random);
        let lease_until = self.lease_until();
        Heartbeat {
            workspace: self.ws(),
            worker,
            app_version,
            workflows,
            lease: Duration::from_secs(self.places.below(60) + 1),
            leases,
            lease_until,
            now: self.now(),
        }
    }

    pub(super) fn put_queue(&mut self) -> PutQueue {
        let r = &mut self.random;
        let name = r.text(&["default", "q", "q", "p", "p"]);
        let queue = QueueRow {
            concurrency: r.maybe(40, |r| r.number(0, 4)),
            worker_concurrency: r.maybe(20, |r| r.number(0, 2)),
            rate: r.maybe(30, |r| (r.number(0, 3), Duration::from_secs(r.below(30) + 1))),
            priorities: r.chance(50),
            partitioned: r.chance(if name == "p" { 85 } else { 10 }),
            paused: r.chance(8),
            name,
        };
        PutQueue { workspace: self.ws(), queue, now: self.now() }
    }

    /// Often the definition of before, as every start of a program brings it.
    pub(super) fn define_queue(&mut self, queue: QueueRow) -> DefineQueue {
        let again = self.defined.clone().filter(|_| self.places.chance(50));
        let queue = match again {
            Some(again) if self.places.chance(60) => again,
            Some(again) => QueueRow { concurrency: queue.concurrency, ..again },
            None => queue,
        };
        self.defined = Some(queue.clone());
        DefineQueue { workspace: self.ws(), queue, now: self.now() }
    }
}
