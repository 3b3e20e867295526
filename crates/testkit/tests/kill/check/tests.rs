//! The judge sees what it is there for: a storm that is passed means something.

use steadfast::{RunInfo, Timestamp};
use steadfast_testkit::ledger::Call;

use super::*;

const MS: u64 = 1000;

/// A run of five steps, one every 10 ms, that `heir` carried out from 100 ms on, while `zombie` was
/// frozen from 20 ms to 1,500 ms.
struct Storm {
    log: Vec<Arrival>,
    lives: BTreeMap<String, Life>,
    runs: BTreeMap<String, Watched>,
    acked: BTreeMap<String, &'static Shape>,
}

const RUN: &str = "linear-1";

impl Storm {
    fn new() -> Self {
        let shape = &shapes::SHAPES[0];
        let frozen = Life { frozen_us: vec![(20 * MS, Some(1500 * MS))], dead_us: None };
        let lives = [("zombie".to_owned(), frozen), ("heir".to_owned(), Life::default())].into();
        let (runs, acked) = (BTreeMap::new(), [(RUN.to_owned(), shape)].into());
        let mut storm = Self { log: Vec::new(), lives, runs, acked };
        let mut nonces = Vec::new();
        let mut records = BTreeMap::new();
        for (n, step) in (0..).zip(shape.steps) {
            let nonce = storm.call("heir", step, 100 + 10 * n);
            let recorded = Recorded {
                name: (*step).to_owned(),
                kind: StepKind::Step,
                outcome: Ok(format!("\"{nonce}\"")),
                seen_us: (105 + 10 * n) * MS,
            };
            records.insert(n, recorded);
            nonces.push(nonce);
        }
        let row = ended(serde_json::to_string(&nonces).unwrap());
        storm.runs.insert(RUN.to_owned(), Watched { row, records });
        storm
    }

    /// A call that the ledger answered, with a nonce of its own.
    fn call(&mut self, worker: &str, step: &str, at_ms: u64) -> String {
        let number = self.log.len() as u64 + 1;
        let nonce = format!("n-{number}");
        let call = Call {
            run: RUN.to_owned(),
            step: step.to_owned(),
            nonce: String::new(),
            key: String::new(),
            worker: worker.to_owned(),
        };
        let (at_us, answer) = (at_ms * MS, Some(nonce.clone()));
        self.log.push(Arrival { call, number, at_us, answer });
        self.log.sort_by_key(|arrival| arrival.at_us);
        nonce
    }

    fn faults(&self) -> Vec<String> {
        let Self { log, lives, runs, acked } = self;
        check(&History { log, lives, runs, acked })
    }
}

fn ended(output: String) -> RunInfo {
    let now = Timestamp::default();
    RunInfo {
        run_id: RUN.to_owned(),
        workflow: "linear".to_owned(),
        status: RunStatus::Success,
        input: "1".to_owned(),
        output: Some(output),
        error: None,
        queue: "default".to_owned(),
        partition: String::new(),
        priority: 0,
        dedupe_id: String::new(),
        app_version: String::new(),
        worker: String::new(),
        epoch: 2,
        attempts: 2,
        max_attempts: 100,
        created_at: now,
        updated_at: now,
        started_at: Some(now),
        finished_at: Some(now),
        ready_at: now,
        wake_at: Timestamp::NEVER,
        parked: false,
        waits: String::new(),
        timeout: None,
        deadline_at: None,
        forked_from: String::new(),
        parent: String::new(),
        detached: false,
        generation: 0,
        seed: 0,
        inbox: 0,
        context: None,
    }
}

#[test]
fn a_call_that_was_under_way_when_its_caller_was_frozen_is_believed() {
    let mut storm = Storm::new();
    assert_eq!(storm.faults(), Vec::<String>::new());
    storm.call("zombie", "one", 1510);
    assert_eq!(storm.faults(), Vec::<String>::new());
}

#[test]
fn a_zombie_that_goes_on_with_the_next_step_is_seen_however_soon_it_does() {
    let mut storm = Storm::new();
    storm.call("zombie", "one", 1501);
    storm.call("zombie", "two", 1502);
    let faults = storm.faults();
    assert!(faults.len() == 1 && faults[0].contains("then called"), "{faults:?}");
}

#[test]
fn a_zombie_that_calls_later_than_anything_can_have_been_on_its_way_is_seen() {
    let mut storm = Storm::new();
    storm.call("zombie", "one", 1500 + IN_FLIGHT_US / MS + 1);
    let faults = storm.faults();
    assert!(faults.len() == 1 && faults[0].contains("known to be recorded"), "{faults:?}");
}

#[test]
fn a_record_that_a_zombie_wrote_over_its_heir_is_seen() {
    let mut storm = Storm::new();
    // The zombie had called the first step before the frost; the heir called it as well, and what
    // is on record is the zombie's.
    let stale = storm.call("zombie", "one", 15);
    let run = storm.runs.get_mut(RUN).unwrap();
    run.records.get_mut(&0).unwrap().outcome = Ok(format!("\"{stale}\""));
    let nonces: Vec<String> = run.records.values().map(value).collect();
    run.row.output = Some(serde_json::to_string(&nonces).unwrap());
    let faults = storm.faults();
    assert!(faults.len() == 1 && faults[0].contains("that zombie wrote"), "{faults:?}");
}

/// Its lease ended while the call was on its way: the writer had the run after it.
#[test]
fn a_record_beside_a_late_call_of_an_earlier_owner_is_believed() {
    let mut storm = Storm::new();
    storm.call("heir", "one", 10);
    let record = storm.call("zombie", "one", 15);
    let run = storm.runs.get_mut(RUN).unwrap();
    run.records.get_mut(&0).unwrap().outcome = Ok(format!("\"{record}\""));
    let nonces: Vec<String> = run.records.values().map(value).collect();
    run.row.output = Some(serde_json::to_string(&nonces).unwrap());
    assert_eq!(storm.faults(), Vec::<String>::new());
}
