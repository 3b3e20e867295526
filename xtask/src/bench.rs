//! The benchmark: the same workloads for us and for peers, in one run, as ratios.
//!
//! Invariants: every driver run gets a database nobody used before, on servers that wait for the
//! disk; engines take turns, so that a slow minute of the machine hits all of them; what is
//! reported is the median, with its spread. A ratio above 1 always means that we are better.
//! Deliberately absent: verdicts. The figures and what they mean are in docs/performance.md.

mod drivers;
mod machine;
mod plan;
mod report;
mod restate;

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::servers::Servers;
use drivers::{Drivers, Outcome};
use plan::{CASES, Case, Engine, Store};
use report::Line;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Smaller workloads, once each: a look, not a measurement.
    #[arg(long)]
    quick: bool,
    /// How often everybody takes a turn, in the full sizes.
    #[arg(long, value_name = "N", default_value_t = 3)]
    times: u8,
    /// Only this workload, W1 to W9 or S1.
    #[arg(long, value_name = "W")]
    workload: Option<String>,
    /// Only this database.
    #[arg(long)]
    store: Option<Store>,
    /// Only this peer, or none; a peer that cannot do a workload is left out of it.
    #[arg(long)]
    peer: Option<Peer>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Whom to measure beside ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Dbos,
    Restate,
    Durare,
    Duroxide,
    Ceiling,
    None,
}

impl Peer {
    fn engine(self) -> Option<Engine> {
        match self {
            Peer::Dbos => Some(Engine::Dbos),
            Peer::Restate => Some(Engine::Restate),
            Peer::Durare => Some(Engine::Durare),
            Peer::Duroxide => Some(Engine::Duroxide),
            Peer::Ceiling => Some(Engine::Ceiling),
            Peer::None => None,
        }
    }
}

impl Args {
    fn cases(&self) -> Result<Vec<&'static Case>> {
        let wanted = |case: &&Case| {
            let named = self.workload.as_ref();
            named.is_none_or(|name| name.eq_ignore_ascii_case(case.workload))
                && !(self.quick && case.slow)
        };
        let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
        match (&self.workload, cases.is_empty()) {
            (Some(name), true) => bail!("there is no workload {name}; there are W1 to W9 and S1"),
            _ => Ok(cases),
        }
    }

    fn stores(&self) -> Vec<Store> {
        self.store.map_or_else(|| Store::ALL.to_vec(), |store| vec![store])
    }

    fn engines(&self, case: &Case, store: Store) -> Vec<Engine> {
        let wanted = |engine: &Engine| {
            self.peer.is_none_or(|peer| peer.engine() == Some(*engine)) && engine.can(case, store)
        };
        let peers = Engine::PEERS.into_iter().filter(wanted);
        std::iter::once(Engine::Ours).chain(peers).collect()
    }
}

pub(crate) fn run(args: &Args) -> Result<u8> {
    let (cases, stores) = (args.cases()?, args.stores());
    let servers = Servers::start_durable()?;
    let of_case = |case: &&'static Case| stores.iter().map(|store| args.engines(case, *store));
    let engines = cases.iter().flat_map(of_case).flatten().collect();
    let mut drivers = Drivers::build(&engines, &servers)?;
    machine::describe(&servers);
    // What does not depend on the store is measured once.
    let mut known: BTreeMap<(Engine, usize), Vec<Outcome>> = BTreeMap::new();
    for (number, case) in cases.iter().enumerate() {
        for store in stores.iter().copied().filter(|store| case.on.contains(store)) {
            let engines = args.engines(case, store);
            let mut outcomes: BTreeMap<Engine, Vec<Outcome>> = BTreeMap::new();
            for _ in 0..if args.quick { 1 } else { args.times } {
                for engine in &engines {
                    let done = outcomes.entry(*engine).or_default();
                    if let Some(before) = known.get(&(*engine, number)) {
                        done.clone_from(before);
                        continue;
                    }
                    machine::wait_until_quiet();
                    done.extend(drivers.run(*engine, case, store, args.quick)?);
                }
            }
            for (engine, done) in outcomes.iter().filter(|(engine, _)| engine.ignores_store()) {
                known.insert((*engine, number), done.clone());
            }
            for line in Line::of(case, store, &outcomes) {
                line.print(args.json);
            }
        }
    }
    Ok(0)
}
