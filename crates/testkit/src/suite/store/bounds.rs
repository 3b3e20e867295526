//! What no store takes: a page of no rows, a page beyond the largest, a text with a NUL character.

use steadfast_core::{ErrorClass, Timestamp, limits};
use steadfast_store::op::{
    Debounce, DueTriggers, GetEnds, GetValue, ListActivities, ListApprovals, ListBudgets,
    ListCommands, ListDead, ListEffects, ListEvents, ListInvocations, ListRuns, ListSlots,
    ListSteps, Load, Purge, ReadChain, ReadStream, Resume, Retain, RunFilter, Seal,
    SettleApprovals, SettleCommands, Start, SweepMeters, TakeOutbox,
};
use steadfast_store::{Error, Op, Store};

use super::kit::{Kit, at, plain};

super::table! {
    as_many_rows_as_fit_a_page_are_given,
    a_page_of_no_rows_or_too_many_is_refused,
    a_claim_of_nothing_is_one_and_a_claim_of_too_much_is_refused,
    a_text_with_a_nul_is_refused_and_nothing_is_written,
}

/// Every operation that gives or changes a number of rows, with the largest number.
fn limited(k: &Kit<'_>, limit: usize) -> Vec<(usize, Op)> {
    let workspace = k.ws.clone();
    let (ws, text, now) = (|| workspace.clone(), || "t".to_owned(), at(9));
    let (from, until) = (Timestamp::from_micros(0), Timestamp::NEVER);
    let read = |op| (limits::PAGE_ROWS, op);
    let batch = |op| (limits::PURGE_BATCH, op);
    let taken = TakeOutbox {
        workspace: ws(),
        sink: text(),
        owner: text(),
        lease_until: at(99),
        limit,
        now,
    };
    vec![
        read(Op::ListRuns(ListRuns {
            workspace: ws(),
            filter: RunFilter::default(),
            after: None,
            limit,
            now,
        })),
        read(Op::ListSteps(ListSteps { workspace: ws(), run_id: text(), from: 0, limit })),
        read(Op::ReadStream(ReadStream {
            workspace: ws(),
            run_id: text(),
            stream: text(),
            from: 0,
            limit,
        })),
        read(Op::ListCommands(ListCommands { workspace: ws(), limit, ..Default::default() })),
        read(Op::ListEvents(ListEvents { workspace: ws(), limit, ..Default::default() })),
        read(Op::ListEffects(ListEffects { workspace: ws(), limit, ..Default::default() })),
        read(Op::ListInvocations(ListInvocations { workspace: ws(), limit, ..Default::default() })),
        read(Op::ListApprovals(ListApprovals { workspace: ws(), limit, ..Default::default() })),
        read(Op::ListBudgets(ListBudgets { workspace: ws(), limit, ..Default::default() })),
        read(Op::ListSlots(ListSlots {
            workspace: ws(),
            trigger_id: text(),
            from,
            until,
            latest: false,
            limit,
        })),
        read(Op::ListActivities(ListActivities { workspace: ws(), activity_id: text(), limit })),
        read(Op::ListDead(ListDead { workspace: ws(), sink: None, after: None, limit })),
        read(Op::ReadChain(ReadChain { workspace: ws(), after: 0, limit })),
        read(Op::DueTriggers(DueTriggers { workspace: ws(), after: None, limit, now })),
        batch(Op::Purge(Purge { workspace: ws(), before: at(0), limit })),
        batch(Op::Retain(Retain {
            workspace: ws(),
            purpose: "event".to_owned(),
            before: at(0),
            limit,
            now,
        })),
        batch(Op::SettleCommands(SettleCommands { workspace: ws(), left: None, limit, now })),
        batch(Op::SettleApprovals(SettleApprovals { workspace: ws(), limit, now })),
        batch(Op::SweepMeters(SweepMeters { workspace: ws(), limit, now })),
        (limits::SEAL_BATCH, Op::Seal(Seal { workspace: ws(), limit })),
        (limits::OUTBOX_BATCH, Op::TakeOutbox(taken)),
    ]
}

/// A request that is refused for what it is, with a message that says so.
async fn is_invalid(k: &Kit<'_>, op: Op, says: &str) {
    let text = format!("{op:?}");
    let refused = match k.store.call(op).await {
        Err(error @ Error::Invalid(_)) => steadfast_core::Error::from(error),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!((refused.code(), refused.class()), ("SF-0124", ErrorClass::ValidationError));
    assert!(refused.message().contains(says), "{refused}");
}

async fn as_many_rows_as_fit_a_page_are_given(store: &dyn Store) {
    let k = Kit::new(store);
    for (most, _) in limited(&k, 1) {
        for (of, op) in limited(&k, most) {
            if of == most {
                let text = format!("{op:?}");
                let reply = k.store.call(op).await;
                assert!(reply.is_ok(), "{text}: {reply:?}");
            }
        }
    }
}

async fn a_page_of_no_rows_or_too_many_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    for (most, op) in limited(&k, 0) {
        is_invalid(&k, op, &format!("asks for 0 rows; 1 to {most} may be asked for")).await;
    }
    for (most, op) in limited(&k, usize::MAX) {
        is_invalid(&k, op, &format!("1 to {most} may be asked for")).await;
    }
    for (at, (most, _)) in limited(&k, 1).into_iter().enumerate() {
        let (_, op) = limited(&k, most + 1).swap_remove(at);
        is_invalid(&k, op, &format!("asks for {} rows", most + 1)).await;
    }
}

async fn a_claim_of_nothing_is_one_and_a_claim_of_too_much_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let (mut dequeue, mut wake) = (k.dequeue("default", "w", 1), k.wake("w", 1));
    (dequeue.limit, wake.limit) = (0, 0);
    assert_eq!(k.ask(dequeue.clone()).await.runs, []);
    assert_eq!(k.ask(wake.clone()).await.runs, []);
    (dequeue.limit, wake.limit) = (limits::CLAIM_BATCH + 1, limits::CLAIM_BATCH + 1);
    is_invalid(&k, Op::Dequeue(dequeue.clone()), "Dequeue asks for 257 rows; 0 to 256").await;
    is_invalid(&k, Op::Wake(wake), "Wake asks for 257 rows; 0 to 256").await;
    dequeue.limit = limits::CLAIM_BATCH;
    assert_eq!(k.ask(dequeue).await.runs.len(), 1);
}

/// Postgres cannot store it, so it is refused wherever a text goes in, whether to be stored or to
/// be compared, and by itself: what shares a commit with it is not touched.
async fn a_text_with_a_nul_is_refused_and_nothing_is_written(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("mail")).await;
    k.started(k.start("r")).await;
    let nul = || "a\0b".to_owned();
    let filters: [fn(&mut RunFilter, String); 6] = [
        |f, text| f.workflow = Some(text),
        |f, text| f.queue = Some(text),
        |f, text| f.app_version = Some(text),
        |f, text| f.forked_from = Some(text),
        |f, text| f.parent = Some(text),
        |f, text| f.id_prefix = Some(text),
    ];
    for set in filters {
        let mut filter = RunFilter::default();
        set(&mut filter, nul());
        let list = ListRuns { workspace: k.ws.clone(), filter, after: None, limit: 9, now: at(1) };
        is_invalid(&k, Op::ListRuns(list), "NUL character (U+0000)").await;
    }
    let (workspace, now) = (|| k.ws.clone(), at(1));
    let start = |run_id: &str| Start { input: nul(), ..k.start(run_id) };
    let key = "k".to_owned();
    let ops = vec![
        Op::Start(start("s")),
        Op::Start(Start { dedupe_id: nul(), ..k.start("s") }),
        Op::Start(Start { claim: Some((nul(), at(60))), ..k.start("s") }),
        Op::Debounce(Debounce { start: start("s"), key, max_wait: None }),
        Op::Signal(k.signal_op("r", &nul(), "1")),
        Op::Signal(k.signal_op("r", "paid", &nul())),
        Op::Cancel(k.cancel_op(&nul())),
        Op::Resume(Resume { workspace: nul(), run_id: "r".to_owned(), now }),
        Op::Dequeue(k.dequeue(&nul(), "w1", 1)),
        Op::GetEnds(GetEnds { workspace: workspace(), run_ids: vec!["r".to_owned(), nul()], now }),
        Op::GetValue(GetValue { workspace: workspace(), run_id: "r".to_owned(), key: nul() }),
        Op::Load(Load {
            workspace: workspace(),
            run_id: "r".to_owned(),
            children: vec![nul()],
            names: Vec::new(),
            now,
        }),
        Op::ListCommands(ListCommands {
            workspace: workspace(),
            command_type: Some(nul()),
            limit: 9,
            ..Default::default()
        }),
    ];
    for op in ops {
        is_invalid(&k, op, "NUL character (U+0000)").await;
    }
    // Together with what is well: only the one is refused.
    let together = (0..8).map(|n| match n {
        3 => k.store.call(Op::Start(start("bad"))),
        _ => k.store.call(Op::Start(k.start(&format!("good{n}")))),
    });
    let replies = futures::future::join_all(together).await;
    assert_eq!(replies.iter().filter(|reply| reply.is_ok()).count(), 7, "{replies:?}");
    assert!(matches!(replies[3], Err(Error::Invalid(_))), "{:?}", replies[3]);
    let all = ListRuns {
        workspace: k.ws.clone(),
        filter: RunFilter::default(),
        after: None,
        limit: 100,
        now,
    };
    assert_eq!(k.ask(all).await.runs.len(), 8, "r and seven others");
    assert_eq!(k.load("r").await.signals, []);
}
