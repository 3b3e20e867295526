//! Repeats: a request that is sent again, because its answer was lost, finds its own success.
//!
//! Invariants: the second answer is the first, or one that only the requester's own success
//! explains; nothing is written twice.

use steadfast_core::driver::RecordState;
use steadfast_core::{CommandStatus, RunStatus};
use steadfast_store::Store;
use steadfast_store::op::{
    Cancelled, Charge, ContinueAsNew, Debounce, Debounced, EnterCalls, Entered, Fork, Forked,
    FreeSlot, Freed, Govern, Health, Hold, InvocationRow, Lease, ListBudgets, Release, Released,
    Resume, Resumed, Signalled, SlotTaken, Spend, Spent, Start, Started, Submit, Supplied, Supply,
    Suspend, Suspended, SweepMeters, Swept, Take, TakeSlot, With, Written,
};

use super::kit::{Kit, at, done, entry, ids, plain, with};

super::table! {
    a_repeated_start_is_still_new,
    a_repeated_start_with_a_claim_gets_its_lease_again,
    a_repeated_start_with_a_claim_gets_no_lease_after_another_claim,
    a_repeated_debounce_is_still_new,
    a_repeated_record_writes_nothing_twice,
    a_repeated_finish_is_done,
    a_repeated_finish_with_another_outcome_is_fenced,
    a_repeated_suspension_is_done_until_the_run_is_claimed,
    a_repeated_release_is_done_until_the_run_is_claimed,
    a_repeated_continuation_starts_over_once,
    a_repeated_cancel_resume_fork_and_signal_are_recognisable,
    a_repeated_slot_is_held_once_and_freed_once,
    a_repeated_claim_takes_no_run_twice,
    a_repeated_queue_changes_nothing,
    a_repeated_charge_counts_once,
    a_repeated_refund_counts_once,
    a_repeated_spend_takes_once,
    calls_are_entered_and_charged_once,
    budgets_go_when_their_time_is_over,
    a_repeated_trial_of_a_breaker_is_let_through_again,
    marks_of_requests_go_with_their_time,
    a_repeated_supply_is_taken_once,
}

async fn a_repeated_start_is_still_new(store: &dyn Store) {
    let k = Kit::new(store);
    let start = Start { dedupe_id: "d".to_owned(), ..k.start("r") };
    for _ in 0..3 {
        assert_eq!(k.ask(start.clone()).await, Started::New(None));
    }
    assert_eq!(k.ask(k.dequeue("default", "w1", 1)).await.runs.len(), 1);
    assert_eq!(k.ask(start).await, Started::Existing(RunStatus::Pending));
}

async fn a_repeated_start_with_a_claim_gets_its_lease_again(store: &dyn Store) {
    let k = Kit::new(store);
    let start = Start { dedupe_id: "d".to_owned(), ..k.start("r") };
    let lease = k.owned_by(start.clone(), "w1").await;
    assert_eq!(k.owned_by(start.clone(), "w1").await, lease);
    let run = k.get("r").await;
    assert_eq!((run.epoch, run.attempts), (1, 1));
    let claim = Some(("w2".to_owned(), at(60)));
    let other = k.ask(Start { claim, ..start }).await;
    assert_eq!(other, Started::Existing(RunStatus::Pending), "not for another worker");
    assert_eq!(k.finish(&lease).await, Written::Done);
}

async fn a_repeated_start_with_a_claim_gets_no_lease_after_another_claim(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    k.recovered("w1", 100).await;
    let claim = Some(("w1".to_owned(), at(60)));
    let again = k.ask(Start { claim, ..k.start("r") }).await;
    assert_eq!(again, Started::Existing(RunStatus::Pending));
}

async fn a_repeated_debounce_is_still_new(store: &dyn Store) {
    let k = Kit::new(store);
    let start = Start { ready_at: at(9), ..k.start("r") };
    let debounce = Debounce { start, key: "d".to_owned(), max_wait: None };
    for _ in 0..3 {
        assert_eq!(k.ask(debounce.clone()).await, Debounced::New);
    }
    let call = |id: &str, seed, input: &str| {
        let (run_id, input) = (id.to_owned(), input.to_owned());
        Debounce {
            start: Start { run_id, seed, input, ..debounce.start.clone() },
            ..debounce.clone()
        }
    };
    let (second, third) = (call("s", 2, "7"), call("t", 3, "8"));
    let replaced = Debounced::Replaced("r".to_owned());
    for op in [&second, &second, &third, &second] {
        assert_eq!(k.ask(op.clone()).await, replaced);
    }
    assert_eq!(k.get("r").await.input, "8", "a repeated call does not undo a later one");
    assert_eq!(k.ask(k.dequeue("default", "w1", 9)).await.runs.len(), 1);
    // The run has begun, and the next one waits: each repeat still gets its own answer.
    assert_eq!(k.ask(call("u", 4, "9")).await, Debounced::New);
    assert_eq!(k.ask(debounce.clone()).await, Debounced::New);
    assert_eq!(k.ask(third).await, replaced);
    assert_eq!((k.find("s").await, k.find("t").await), (None, None));
    assert_eq!((k.get("r").await.input.as_str(), k.get("u").await.input.as_str()), ("8", "9"));
}

/// R76
async fn a_repeated_record_writes_nothing_twice(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.owned("other").await;
    k.signal("r", "paid", "s1").await;
    let seq = k.load("r").await.signals[0].seq;
    let append = |item: Option<&str>| With::Append {
        stream: "log".to_owned(),
        item: item.map(str::to_owned),
    };
    let entries = vec![
        with(done(0, "wait", "1"), With::Consume(seq)),
        with(done(1, "append", "1"), append(Some("1"))),
        with(done(2, "send", "1"), With::Send(k.signal_op("other", "s", "x"))),
        with(done(3, "spawn", "1"), With::Spawn(Box::new(k.start("kid")))),
        entry(done(4, "plain", "1")),
    ];
    for _ in 0..3 {
        assert_eq!(k.record(&lease, entries.clone()).await, Written::Done);
    }
    assert_eq!(k.steps("r").await.len(), 5);
    assert_eq!((k.load("r").await.signals.len(), k.load("other").await.signals.len()), (0, 1));
    let read = steadfast_store::op::ReadStream {
        workspace: k.ws.clone(),
        run_id: "r".to_owned(),
        stream: "log".to_owned(),
        from: 0,
        limit: 10,
    };
    assert_eq!(k.ask(read).await.items, ["1"]);
    assert_eq!(k.get("other").await.inbox, 1);
}

async fn a_repeated_finish_is_done(store: &dyn Store) {
    let k = Kit::new(store);
    let parent = k.owned("p").await;
    let lease = k.owned_by(Start { parent: "p".to_owned(), ..k.start("r") }, "w1").await;
    for _ in 0..3 {
        assert_eq!(k.finish(&lease).await, Written::Done);
    }
    assert_eq!(k.get("p").await.inbox, 1, "the parent is told once");
    for _ in 0..2 {
        assert_eq!(k.fail(&parent).await, Written::Done);
    }
}

async fn a_repeated_finish_with_another_outcome_is_fenced(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.finish(&lease).await;
    assert_eq!(k.ask(k.finish_op(&lease, "\"other\"")).await, Written::Fenced);
    assert_eq!(k.fail(&lease).await, Written::Fenced);
    assert_eq!(k.get("r").await.output.as_deref(), Some("true"));
}

async fn a_repeated_suspension_is_done_until_the_run_is_claimed(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let entries = vec![entry(done(0, "a", "1"))];
    let suspend = Suspend { entries, ..k.suspend_op(&lease, 0) };
    for _ in 0..3 {
        assert_eq!(k.ask(suspend.clone()).await, Suspended::Done);
    }
    k.recovered("w1", 1000).await;
    assert_eq!(k.ask(suspend).await, Suspended::Fenced);
    assert_eq!(k.steps("r").await.len(), 1);
}

async fn a_repeated_release_is_done_until_the_run_is_claimed(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let release = Release { lease: lease.clone(), what: Released::Run, now: at(5) };
    for _ in 0..3 {
        assert_eq!(k.ask(release.clone()).await, Written::Done);
    }
    let stranger = Lease { epoch: 2, ..lease };
    assert_eq!(
        k.ask(Release { lease: stranger, what: Released::Run, now: at(5) }).await,
        Written::Fenced
    );
    k.recovered("w1", 6).await;
    assert_eq!(k.ask(release).await, Written::Fenced);
    assert_eq!(k.get("r").await.worker, "w1");
}

async fn a_repeated_continuation_starts_over_once(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let again = |generation| ContinueAsNew {
        lease: Lease { epoch: lease.epoch + generation, ..lease.clone() },
        input: "2".to_owned(),
        generation,
        now: at(5),
    };
    for _ in 0..3 {
        assert_eq!(k.ask(again(0)).await, Written::Done);
    }
    assert_eq!(k.get("r").await.generation, 1);
    assert_eq!(k.ask(again(1)).await, Written::Done);
    assert_eq!(k.get("r").await.generation, 2);
}

async fn a_repeated_cancel_resume_fork_and_signal_are_recognisable(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    assert_eq!(k.signal("r", "s", "s1").await, Signalled::Accepted);
    assert_eq!(k.signal("r", "s", "s1").await, Signalled::Duplicate);
    assert_eq!(k.cancel("r").await, Cancelled::Done(Vec::new()));
    let cancelled = k.get("r").await;
    assert_eq!(k.cancel("r").await, Cancelled::AlreadyOver(RunStatus::Cancelled));
    assert_eq!(k.get("r").await, cancelled);
    for _ in 0..2 {
        assert_eq!(k.let_go(&lease, 8).await, Written::Done);
    }
    let resume = Resume { workspace: k.ws.clone(), run_id: "r".to_owned(), now: at(9) };
    assert_eq!(k.ask(resume.clone()).await, Resumed::Done);
    assert_eq!(k.ask(resume).await, Resumed::NotStopped(RunStatus::Enqueued));
    let fork = Fork {
        workspace: k.ws.clone(),
        source: "r".to_owned(),
        from_step: 0,
        run_id: "f".to_owned(),
        input: None,
        patches: Vec::new(),
        app_version: None,
        timeout: None,
        seed: 1,
        now: at(9),
    };
    assert_eq!(k.ask(fork.clone()).await, Forked::Done);
    assert_eq!(k.ask(fork.clone()).await, Forked::Done);
    assert_eq!(k.ask(Fork { seed: 2, ..fork }).await, Forked::Existing, "of another caller");
    assert_eq!(k.ask(k.dequeue("default", "w1", 10)).await.runs.len(), 2);
}

async fn a_repeated_slot_is_held_once_and_freed_once(store: &dyn Store) {
    let k = Kit::new(store);
    let mut queue = plain("q");
    queue.concurrency = Some(1);
    k.put(queue).await;
    let lease = k.owned("r").await;
    let take = TakeSlot {
        lease: lease.clone(),
        step: 1,
        queue: "q".to_owned(),
        partition: String::new(),
        lease_until: at(60),
        now: at(1),
    };
    for _ in 0..3 {
        assert_eq!(k.ask(take.clone()).await, SlotTaken::Done);
    }
    let free = FreeSlot { lease, step: 1 };
    assert_eq!(k.ask(free.clone()).await, Freed(true));
    assert_eq!(k.ask(free).await, Freed(false));
    assert_eq!(k.ask(take).await, SlotTaken::Done);
}

async fn a_repeated_claim_takes_no_run_twice(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["a", "b", "c"] {
        k.started(k.start(id)).await;
    }
    let two = steadfast_store::op::Dequeue { limit: 2, ..k.dequeue("default", "w1", 1) };
    assert_eq!(ids(&k.ask(two.clone()).await.runs), ["a", "b"]);
    assert_eq!(ids(&k.ask(two).await.runs), ["c"]);
    assert_eq!(k.ask(k.wake("w1", 100)).await.runs.len(), 3);
    assert_eq!(k.ask(k.wake("w1", 100)).await.runs.len(), 0);
}

async fn a_repeated_queue_changes_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    let queue = plain("q");
    let put = steadfast_store::op::PutQueue { workspace: k.ws.clone(), queue, now: at(0) };
    assert!(k.ask(put.clone()).await.created);
    assert!(!k.ask(put).await.created);
    let listed = k.ask(steadfast_store::op::ListQueues { workspace: k.ws.clone() }).await;
    assert_eq!(listed.0, [plain("q")]);
}

/// A call's row in the ledger.
fn called(run_id: &str) -> InvocationRow {
    InvocationRow {
        invocation_id: "tool_1".to_owned(),
        command_id: String::new(),
        run_id: run_id.to_owned(),
        connector: "mailer".to_owned(),
        agent: "user:1".to_owned(),
        intended: "POST /mails".to_owned(),
        actual: "POST /mails".to_owned(),
        inputs: String::new(),
        outputs: "200".to_owned(),
        side_effect: true,
        idempotency_key: "k".to_owned(),
        verification: "verified".to_owned(),
        error: None,
        latency_us: 1,
        cost_units: Some(7),
        created_at: at(2),
    }
}

/// R17: an attempt after which there is another can be written twice; what it cost is counted once.
async fn a_repeated_charge_counts_once(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let charges = vec![Charge { meter: "cost:m".to_owned(), amount: 7, until: None }];
    let cost = Govern { invocations: vec![called("r")], charges, now: at(2), ..Govern::default() };
    let mut record = done(0, "mail", "null");
    record.state = RecordState::Retrying;
    for replaces in [false, true, true] {
        let mut entry = with(record.clone(), With::Govern(Box::new(cost.clone())));
        entry.replaces = replaces;
        assert_eq!(k.record(&lease, vec![entry]).await, Written::Done);
    }
    let (meter, cap) = ("cost:m".to_owned(), 6);
    let takes = vec![Take::Budget { meter: meter.clone(), amount: 0, cap, until: None }];
    let spent = k.ask(spend(&k, "", takes, 3)).await;
    assert_eq!(spent, Spent::Short { meter, spent: 7, until: None });
}

fn spend(k: &Kit<'_>, nonce: &str, takes: Vec<Take>, now: i64) -> Spend {
    Spend { workspace: k.ws.clone(), nonce: nonce.to_owned(), takes, now: at(now) }
}

fn of_budget(amount: i64, cap: i64) -> Take {
    Take::Budget { meter: "cost:m".to_owned(), amount, cap, until: None }
}

/// How much of the budget is spent.
async fn spent(k: &Kit<'_>) -> i64 {
    match k.ask(spend(k, "", vec![of_budget(0, -1)], 3)).await {
        Spent::Short { spent, .. } => spent,
        Spent::Done => unreachable!("nothing is less than nothing"),
    }
}

/// R17: what was taken for an attempt that was not sent goes back once, also where no call tells
/// of it.
async fn a_repeated_refund_counts_once(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    assert_eq!(k.ask(spend(&k, "n1", vec![of_budget(10, 10)], 1)).await, Spent::Done);
    let refund = |charged_as: &str| Govern {
        charges: vec![Charge { meter: "cost:m".to_owned(), amount: -3, until: None }],
        charged_as: charged_as.to_owned(),
        now: at(2),
        ..Govern::default()
    };
    for (step, charged_as, left) in [(0, "r_0_1", 7), (0, "r_0_1", 7), (1, "r_1_1", 4)] {
        let mut record = done(step, "mail", "null");
        record.state = RecordState::Retrying;
        let mut entry = with(record, With::Govern(Box::new(refund(charged_as))));
        entry.replaces = spent(&k).await < 10 && step == 0;
        assert_eq!(k.record(&lease, vec![entry]).await, Written::Done);
        assert_eq!(spent(&k).await, left);
    }
}

/// R17: whoever got no answer asks again, and takes nothing more, even where nothing is left.
async fn a_repeated_spend_takes_once(store: &dyn Store) {
    let k = Kit::new(store);
    let per = std::time::Duration::from_secs(60);
    let rate = || Take::Rate { meter: "rate:m".to_owned(), calls: 1, per };
    for _ in 0..3 {
        let takes = vec![rate(), of_budget(7, 10)];
        assert_eq!(k.ask(spend(&k, "n1", takes, 1)).await, Spent::Done);
        assert_eq!(spent(&k).await, 7);
    }
    let short = k.ask(spend(&k, "n2", vec![of_budget(7, 10)], 2)).await;
    assert!(matches!(short, Spent::Short { spent: 7, .. }), "another request: {short:?}");
    assert_eq!(k.ask(spend(&k, "n2", vec![of_budget(3, 10)], 2)).await, Spent::Done);
    assert_eq!(spent(&k).await, 10, "what was short took nothing, and may come again");
    for _ in 0..2 {
        // Also where there is enough for a second time.
        assert_eq!(k.ask(spend(&k, "n4", vec![of_budget(5, 100)], 2)).await, Spent::Done);
        assert_eq!(spent(&k).await, 15);
    }
    let used_up = k.ask(spend(&k, "n3", vec![rate()], 2)).await;
    assert!(matches!(used_up, Spent::Short { .. }), "{used_up:?}");
}

/// R17: of which no record tells.
async fn calls_are_entered_and_charged_once(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let enter = EnterCalls {
        lease,
        calls: vec![called("r")],
        charges: vec![Charge { meter: "cost:m".to_owned(), amount: 7, until: None }],
    };
    for entered in [1, 0] {
        assert_eq!(k.ask(enter.clone()).await, Entered(entered));
        assert_eq!(spent(&k).await, 7);
    }
}

async fn budgets_go_when_their_time_is_over(store: &dyn Store) {
    let k = Kit::new(store);
    let of_today =
        |meter: &str, until| Take::Budget { meter: meter.to_owned(), amount: 1, cap: 9, until };
    let takes = vec![of_today("cost:today", Some(at(100))), of_today("cost:ever", None)];
    assert_eq!(k.ask(spend(&k, "", takes, 1)).await, Spent::Done);
    let sweep = |now| SweepMeters { workspace: k.ws.clone(), limit: 9, now: at(now) };
    assert_eq!(k.ask(sweep(99)).await, Swept(0));
    assert_eq!(k.ask(sweep(2 * 3600)).await, Swept(1));
    let list = ListBudgets { workspace: k.ws.clone(), limit: 9, ..ListBudgets::default() };
    let left: Vec<_> = k.ask(list).await.0.into_iter().map(|budget| budget.meter).collect();
    assert_eq!(left, ["cost:ever"]);
}

/// The one call that is let through to try may ask again.
async fn a_repeated_trial_of_a_breaker_is_let_through_again(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let cool_down = std::time::Duration::from_secs(10);
    let meter = "breaker:m".to_owned();
    let health = Some(Health { meter: meter.clone(), ok: false, failures: 1, cool_down });
    let failed = Govern { health, now: at(1), ..Govern::default() };
    let entry = with(done(0, "mail", "null"), With::Govern(Box::new(failed)));
    assert_eq!(k.record(&lease, vec![entry]).await, Written::Done);
    let take = || vec![Take::Breaker { meter: meter.clone(), failures: 1, cool_down }];
    assert!(matches!(k.ask(spend(&k, "n0", take(), 2)).await, Spent::Short { .. }));
    for _ in 0..2 {
        assert_eq!(k.ask(spend(&k, "n1", take(), 20)).await, Spent::Done);
    }
    assert!(matches!(k.ask(spend(&k, "n2", take(), 20)).await, Spent::Short { .. }));
}

async fn marks_of_requests_go_with_their_time(store: &dyn Store) {
    let k = Kit::new(store);
    for n in 0..3 {
        k.ask(spend(&k, &format!("n{n}"), vec![of_budget(1, 10)], 1)).await;
    }
    let sweep =
        |hours: i64, limit| SweepMeters { workspace: k.ws.clone(), limit, now: at(hours * 3600) };
    assert_eq!(k.ask(sweep(24, 9)).await, Swept(0), "they are known for a day");
    assert_eq!(k.ask(sweep(26, 2)).await, Swept(2));
    assert_eq!(k.ask(sweep(26, 2)).await, Swept(1));
    assert_eq!(spent(&k).await, 3, "what was spent stays");
}

async fn a_repeated_supply_is_taken_once(store: &dyn Store) {
    let k = Kit::new(store);
    let hold = Some(Hold::Input("which one?".to_owned()));
    let submit = Submit { hold, ..k.submit("c", at(0)) };
    k.ask(submit).await;
    let supply = |payload: &str, hold: Option<Hold>, now| Supply {
        workspace: k.ws.clone(),
        command_id: "c".to_owned(),
        payload: payload.to_owned(),
        judgement: None,
        hold,
        actor: "user:2".to_owned(),
        now: at(now),
    };
    let waits = Supplied::Done(CommandStatus::WaitingForInput);
    let more = || Some(Hold::Input("and when?".to_owned()));
    for _ in 0..2 {
        assert_eq!(k.ask(supply("1", more(), 5)).await, waits);
    }
    let begun = k.ask(supply("2", None, 6)).await;
    assert_eq!(begun, Supplied::Done(CommandStatus::Queued));
    assert_eq!(k.ask(supply("2", None, 6)).await, begun, "the answer was lost");
    let late = Supplied::NotWaiting(CommandStatus::Queued);
    assert_eq!(k.ask(supply("3", None, 6)).await, late, "another payload is another request");
}
