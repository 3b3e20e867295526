//! What is measured, on what, beside whom: the table.

/// A database of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Store {
    Sqlite,
    Postgres,
    Mysql,
}

impl Store {
    pub(super) const ALL: [Store; 3] = [Store::Sqlite, Store::Postgres, Store::Mysql];

    pub(super) fn word(self) -> &'static str {
        match self {
            Store::Sqlite => "sqlite",
            Store::Postgres => "postgres",
            Store::Mysql => "mysql",
        }
    }
}

/// Whose driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Engine {
    Ours,
    Ceiling,
    Dbos,
    Durare,
    Duroxide,
    Restate,
}

impl Engine {
    pub(super) const PEERS: [Engine; 5] =
        [Engine::Ceiling, Engine::Dbos, Engine::Durare, Engine::Duroxide, Engine::Restate];

    pub(super) fn word(self) -> &'static str {
        match self {
            Engine::Ours => "ours",
            Engine::Ceiling => "ceiling",
            Engine::Dbos => "dbos",
            Engine::Durare => "durare",
            Engine::Duroxide => "duroxide",
            Engine::Restate => "restate",
        }
    }

    /// Whether it can do this at all, and in a time worth waiting for.
    pub(super) fn can(self, case: &Case, store: Store) -> bool {
        let database = match self {
            Engine::Ours | Engine::Ceiling | Engine::Dbos | Engine::Restate => true,
            Engine::Durare => store != Store::Mysql,
            Engine::Duroxide => store == Store::Sqlite,
        };
        database && case.engines.contains(&self)
    }

    /// Whether it brings a store of its own, so that ours makes no difference. Dbos knows Postgres
    /// only, and stands beside our SQLite all the same.
    pub(super) fn ignores_store(self) -> bool {
        matches!(self, Engine::Dbos | Engine::Restate)
    }
}

/// Whether more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// One workload in one size.
pub(super) struct Case {
    pub(super) workload: &'static str,
    pub(super) variant: &'static str,
    /// What the driver is called with.
    pub(super) word: &'static str,
    /// How many runs or steps: for us, for peers, and in a quick look.
    pub(super) n: [usize; 3],
    pub(super) conc: usize,
    /// Finished runs that are in the tables before.
    pub(super) history: usize,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) engines: &'static [Engine],
    pub(super) on: &'static [Store],
    /// Left out of a quick look.
    pub(super) slow: bool,
}

use Engine::{Ceiling, Dbos, Durare, Duroxide, Ours, Restate};

const PLAIN: Case = Case {
    workload: "",
    variant: "",
    word: "",
    n: [0; 3],
    conc: 64,
    history: 0,
    unit: "runs/s",
    better: Better::Higher,
    engines: &[Ours, Ceiling, Dbos, Durare, Duroxide, Restate],
    on: &Store::ALL,
    slow: false,
};

/// Duroxide needs minutes for what others do in a second; it is measured where it is fastest.
const ALL_BUT_CEILING: &[Engine] = &[Ours, Dbos, Durare, Restate];

pub(super) const CASES: &[Case] = &[
    Case {
        workload: "W1",
        variant: "five strict steps",
        word: "w1",
        n: [1_000, 400, 400],
        unit: "ms",
        better: Better::Lower,
        ..PLAIN
    },
    Case { workload: "W2", variant: "64 concurrent", word: "w2", ..PLAIN },
    Case {
        workload: "W2",
        variant: "256 concurrent",
        word: "w2",
        conc: 256,
        engines: &[Ours, Ceiling, Dbos, Durare, Restate],
        ..PLAIN
    },
    Case {
        workload: "W3",
        variant: "10,000 queued",
        word: "w3",
        n: [10_000, 10_000, 2_000],
        engines: &[Ours, Ceiling, Dbos, Durare, Restate],
        ..PLAIN
    },
    Case {
        workload: "W4",
        variant: "starts that suspend",
        word: "w4",
        n: [100_000, 5_000, 5_000],
        engines: ALL_BUT_CEILING,
        ..PLAIN
    },
    Case {
        workload: "W5",
        variant: "10,000 runs in flight",
        word: "w5",
        n: [10_000, 10_000, 1_000],
        unit: "s",
        better: Better::Lower,
        engines: ALL_BUT_CEILING,
        ..PLAIN
    },
    Case {
        workload: "W6",
        variant: "1,000 steps",
        word: "w6",
        n: [1_000, 1_000, 1_000],
        unit: "steps/s",
        engines: &[Ours, Ceiling, Dbos, Durare, Restate],
        ..PLAIN
    },
    Case {
        workload: "W6",
        variant: "10,000 steps",
        word: "w6",
        n: [10_000, 10_000, 10_000],
        unit: "steps/s",
        engines: &[Ours, Ceiling, Dbos, Durare, Restate],
        slow: true,
        ..PLAIN
    },
    Case {
        workload: "W7",
        variant: "enqueue to result, idle",
        word: "w7",
        n: [20, 10, 5],
        unit: "ms",
        better: Better::Lower,
        engines: ALL_BUT_CEILING,
        ..PLAIN
    },
    Case { variant: "1 process", conc: 1, ..FLEET },
    Case { variant: "4 processes", conc: 4, ..FLEET },
    Case { variant: "W2 after 10,000 runs", history: 10_000, ..GROWN },
    Case { variant: "W2 after 100,000 runs", history: 100_000, slow: true, ..GROWN },
    Case { variant: "W2 after 1,000,000 runs", history: 1_000_000, slow: true, ..GROWN },
    Case { variant: "W3 after 10,000 runs", history: 10_000, ..GROWN_QUEUE },
    Case { variant: "W3 after 1,000,000 runs", history: 1_000_000, slow: true, ..GROWN_QUEUE },
    TICK,
];

const TICK: Case = Case {
    workload: "S1",
    variant: "a tick, 1,000 of 100,000 schedules due",
    word: "s1",
    n: [100_000, 0, 100_000],
    conc: 100,
    unit: "ms of CPU",
    better: Better::Lower,
    engines: &[Ours],
    ..PLAIN
};
const FLEET: Case = Case {
    workload: "W8",
    word: "w8",
    n: [10_000, 0, 2_000],
    engines: &[Ours],
    on: &[Store::Postgres],
    ..PLAIN
};
const GROWN: Case = Case { workload: "W9", word: "w2", conc: 256, engines: &[Ours], ..PLAIN };
const GROWN_QUEUE: Case =
    Case { workload: "W9", word: "w3", n: [10_000, 0, 2_000], engines: &[Ours], ..PLAIN };
