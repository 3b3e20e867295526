//! The whole state of a workspace, as the questions whose answers show all of it.
//!
//! Invariants: whatever an operation may have changed, some question here sees it.

use steadfast_core::Timestamp;
use steadfast_store::Op;
use steadfast_store::op::{
    CommandRef, GetCommand, GetValue, InspectQueue, ListActivities, ListApprovals, ListBudgets,
    ListCommands, ListDead, ListEffects, ListEvents, ListInvocations, ListPeers, ListQueues,
    ListRuns, ListSinks, ListSlots, ListSteps, ListTriggers, ListWorkers, Load, ReadChain,
    ReadStream, RunFilter,
};

use super::generate::command::TRIGGERS;
use super::generate::{CHILDREN, KEYS, PARTITIONS, QUEUES, RUNS, STREAMS};

pub(super) fn questions(workspace: &str, now: Timestamp) -> Vec<Op> {
    let ws = || workspace.to_owned();
    let filter = RunFilter::default();
    let list = ListRuns { workspace: ws(), filter, after: None, limit: 1000, now };
    let mut asked = vec![
        Op::ListRuns(list),
        Op::ListQueues(ListQueues { workspace: ws() }),
        Op::ListWorkers(ListWorkers { workspace: ws(), since: Timestamp::from_micros(0) }),
        Op::ListPeers(ListPeers { workspace: ws(), worker: String::new(), after: String::new() }),
    ];
    let limit = 1000;
    asked.extend([
        Op::ListCommands(ListCommands { workspace: ws(), limit, ..ListCommands::default() }),
        Op::ListEvents(ListEvents { workspace: ws(), limit, ..ListEvents::default() }),
        Op::ListTriggers(ListTriggers::all(ws())),
        Op::ListEffects(ListEffects { workspace: ws(), limit, ..ListEffects::default() }),
        Op::ListApprovals(ListApprovals { workspace: ws(), limit, ..ListApprovals::default() }),
        Op::ListBudgets(ListBudgets { workspace: ws(), limit, ..ListBudgets::default() }),
        Op::ListInvocations(ListInvocations {
            workspace: ws(),
            limit,
            ..ListInvocations::default()
        }),
    ]);
    asked.extend([
        Op::ReadChain(ReadChain { workspace: ws(), after: 0, limit }),
        Op::ListSinks(ListSinks { workspace: ws(), count_dead: true }),
        Op::ListDead(ListDead { workspace: ws(), sink: None, after: None, limit }),
    ]);
    for id in TRIGGERS {
        let (from, until) = (Timestamp::from_micros(0), Timestamp::NEVER);
        let trigger_id = (*id).to_owned();
        let slots = ListSlots { workspace: ws(), trigger_id, from, until, latest: false, limit };
        asked.push(Op::ListSlots(slots));
    }
    for activity_id in ["a", "b"].map(str::to_owned) {
        asked.push(Op::ListActivities(ListActivities { workspace: ws(), activity_id, limit }));
    }
    for number in 0..48 {
        let which = CommandRef::Id(format!("c{number:02}"));
        asked.push(Op::GetCommand(GetCommand { workspace: ws(), which }));
    }
    for run in RUNS {
        let run_id = || (*run).to_owned();
        let children = CHILDREN.iter().map(|id| (*id).to_owned()).collect();
        let names = Vec::new();
        let load = Load { workspace: ws(), run_id: run_id(), children, names, now };
        asked.push(Op::Load(load));
        let all = ListSteps { workspace: ws(), run_id: run_id(), from: 0, limit: 1000 };
        asked.push(Op::ListSteps(all));
        for key in KEYS {
            let key = (*key).to_owned();
            asked.push(Op::GetValue(GetValue { workspace: ws(), run_id: run_id(), key }));
        }
        for stream in STREAMS {
            asked.push(Op::ReadStream(ReadStream {
                workspace: ws(),
                run_id: run_id(),
                stream: (*stream).to_owned(),
                from: 0,
                limit: 1000,
            }));
        }
    }
    for queue in QUEUES {
        for partition in PARTITIONS {
            let (queue, partition) = ((*queue).to_owned(), (*partition).to_owned());
            asked.push(Op::InspectQueue(InspectQueue { workspace: ws(), queue, partition, now }));
        }
    }
    asked
}
