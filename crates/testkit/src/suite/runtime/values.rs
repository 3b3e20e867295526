//! What is refused where it enters: numbers that JSON has not, texts that no database keeps, pages
//! that are none.

use std::time::Duration;

use steadfast::{
    Cx, Error, ErrorClass, ListApprovals, ListBudgets, ListCommands, ListEffects, ListEvents,
    ListInvocations, Result, RunFilter, RunStatus, limits,
};

use super::{Fixture, SOON, case_table};

/// No time to wait for a value.
const NOW: Duration = Duration::ZERO;

case_table! {
    a_number_that_json_has_not_is_refused_where_it_is_written,
    a_page_of_no_rows_or_too_many_is_refused_by_every_list,
    a_nul_is_refused_in_a_filter_and_an_id_and_replaced_in_a_message,
}

async fn half(n: f64) -> Result<f64> {
    Ok(n / 2.0)
}

/// Takes a number that is none to one place.
async fn not_a_number(cx: Cx, place: String) -> Result<f64> {
    let nan = f64::NAN;
    match place.as_str() {
        "the step's result" => cx.step("ratio", || async { Ok::<_, Error>(f64::NAN) }).await,
        "the step's input" => cx.step(half, nan).await,
        "the computed value" => cx.compute("ratio", || f64::NAN),
        "the published value" => cx.publish("ratio", nan).await.map(|()| 0.0),
        "the stream item" => cx.append("ratios", vec![1.0, nan]).await.map(|()| 0.0),
        "the signal" => cx.send("somebody", "ratio", nan).await.map(|()| 0.0),
        "the event" => cx.emit("ratio.seen", nan).await.map(|()| 0.0),
        "the input" => cx.continue_as_new(nan).await,
        _ => Ok(nan),
    }
}

/// JSON has no NaN. Written as null, it was blamed on a type that had changed.
async fn a_number_that_json_has_not_is_refused_where_it_is_written(on: Fixture) {
    let fabric = on.fabric().workflow(not_a_number).start().await.unwrap();
    let places = [
        "the step's result",
        "the step's input",
        "the computed value",
        "the published value",
        "the stream item",
        "the signal",
        "the event",
        "the input",
        "the result",
    ];
    for place in places {
        let run = fabric.start(not_a_number, place.to_owned()).id(place).await.unwrap();
        let error = run.result_within(SOON).await.unwrap_err();
        assert_eq!((error.code(), error.class()), ("SF-0101", ErrorClass::ValidationError));
        assert!(error.message().starts_with(place), "{place}: {error}");
        assert!(error.message().contains("is NaN"), "{place}: {error}");
        assert_eq!(run.info().await.unwrap().status, RunStatus::Error);
        let steps = fabric.steps(place).await.unwrap();
        assert!(steps.iter().all(|step| step.outcome.is_err()), "{place}: {steps:?}");
        assert_eq!(fabric.value::<f64>(place, "ratio", NOW).await.unwrap(), None);
    }
    let refused = fabric.start_named::<f64>("not_a_number", &f64::INFINITY).await.err().unwrap();
    assert_eq!(refused.code(), "SF-0101");
    assert!(refused.message().contains("the input") && refused.message().contains("it is inf"));
    let refused = fabric.signal("the input", "ratio", f64::NAN).await.unwrap_err();
    assert_eq!(refused.code(), "SF-0101");
    let all = fabric.list(RunFilter::default(), 100).await.unwrap();
    assert_eq!(all.runs.len(), places.len(), "nothing else was written");
    fabric.shutdown().await;
}

async fn a_page_of_no_rows_or_too_many_is_refused_by_every_list(on: Fixture) {
    let client = on.client();
    client.start_named::<u32>("nobody", &1).await.unwrap();
    for limit in [0, limits::PAGE_ROWS + 1] {
        let refusals = [
            client.list(RunFilter::default(), limit).await.err(),
            client.commands(ListCommands { limit, ..Default::default() }).await.err(),
            client.events(ListEvents { limit, ..Default::default() }).await.err(),
            client.effects(ListEffects { limit, ..Default::default() }).await.err(),
            client.invocations(ListInvocations { limit, ..Default::default() }).await.err(),
            client.approvals(ListApprovals { limit, ..Default::default() }).await.err(),
            client.spent(ListBudgets { limit, ..Default::default() }).await.err(),
            client.dead_letters(None, None, limit).await.err(),
            client.activity_runs("a", limit).await.err(),
            client.schedule("s").slots(limit).await.err(),
        ];
        for (list, refusal) in refusals.into_iter().enumerate() {
            let refusal = refusal.unwrap_or_else(|| panic!("list {list} took {limit}"));
            assert_eq!(refusal.code(), "SF-0124", "list {list}: {refusal}");
            assert!(refusal.message().contains("1 to 1000"), "list {list}: {refusal}");
        }
    }
    assert_eq!(client.list(RunFilter::default(), 1).await.unwrap().runs.len(), 1);
}

async fn says_nul(_: Cx, _: ()) -> Result<u32> {
    Err(Error::app("no\0thing"))
}

async fn a_nul_is_refused_in_a_filter_and_an_id_and_replaced_in_a_message(on: Fixture) {
    let fabric = on.fabric().workflow(says_nul).start().await.unwrap();
    let filter = RunFilter { workflow: Some("a\0b".to_owned()), ..RunFilter::default() };
    let refused = fabric.list(filter, 10).await.err().unwrap();
    assert_eq!((refused.code(), refused.class()), ("SF-0124", ErrorClass::ValidationError));
    let refusals = [
        fabric.get("a\0b").await.err(),
        fabric.steps("a\0b").await.err(),
        fabric.cancel("a\0b", "").await.err(),
        fabric.resume("a\0b").await.err(),
        fabric.value::<u32>("a\0b", "k", NOW).await.err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.unwrap().code(), "SF-0124");
    }
    // What failed is told whatever it says.
    let run = fabric.start(says_nul, ()).await.unwrap();
    let error = run.result_within(SOON).await.unwrap_err();
    assert_eq!(error.message(), "no\u{FFFD}thing");
    fabric.shutdown().await;
}
