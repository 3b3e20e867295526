//! The runtime suite on the model and on every database there is.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use steadfast_store::OpenStore;
use steadfast_testkit::db::TestDb;
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::suite::runtime::{Fixture, cases};

/// Runs every case on a runtime of its own, several at a time, and names all that fail.
async fn conforms(store: OpenStore) {
    let filter = std::env::var("STEADFAST_CASE").unwrap_or_default();
    let chosen = cases().into_iter().filter(|(name, _)| name.contains(&filter));
    let results = futures::stream::iter(chosen).map(|(name, case)| {
        let fixture = Fixture::new(store.clone(), name);
        let alone = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let began = std::time::Instant::now();
            runtime.unwrap().block_on(case(fixture));
            println!("{:>6.2} s  {name}", began.elapsed().as_secs_f64());
        };
        tokio::task::spawn_blocking(alone).map(move |ended| (name, ended.is_ok()))
    });
    let results: Vec<_> = results.buffer_unordered(8).collect().await;
    let failed: Vec<_> = results.iter().filter(|(_, ok)| !ok).map(|(name, _)| name).collect();
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:#?}", failed.len(), results.len());
    println!("{} cases passed", results.len());
}

async fn conforms_on(db: Option<TestDb>) {
    let Some(db) = db else { return };
    conforms(steadfast_store::open(&db.url).await.unwrap()).await;
}

/// R98 R102
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r098_the_model_conforms() {
    conforms(Arc::new(ModelStore::default())).await;
}

/// R98
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r098_sqlite_conforms() {
    conforms_on(Some(TestDb::sqlite())).await;
}

/// R98 R96: on Postgres wake-ups are pushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r098_postgres_conforms() {
    conforms_on(TestDb::postgres()).await;
}

/// R98 R96: on MySQL and MariaDB there is only polling between processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r098_mysql_conforms() {
    conforms_on(TestDb::mysql()).await;
}

/// Which case shows which requirement: R75 R76 R78 R81 R84 R85 R86 R87 R88 R90 R91 R92 R93 R94 R97
/// R103 X10 X16; of commands R1 R2 R3 R4 R5 R6 R7 R8 R9 R10 R34 R35 R36 R37 R38 R40 R42 R55 R56 R58
/// R59 R60 R61 R62 R63 R64 R66 R67 R68 R69 R70 R71 R72 R99 R101 R104 X2 X8 X9; of events R30 R31
/// R32 R113 R114 R120.
const SHOWN: &[(&str, &str)] = &[
    ("R75", "every_step_is_stored_with_all_that_is_known_of_it"),
    ("R76", "a_killed_worker_loses_its_runs_to_another_and_no_recorded_step_runs_again"),
    ("R78", "a_child_is_stored_with_its_parent_and_joined"),
    ("R81", "step_retries_wait_longer_each_time_and_are_counted_on_the_step"),
    ("R84", "worker_concurrency_holds_for_each_worker"),
    ("R85", "global_concurrency_holds_over_two_workers"),
    ("R86", "a_rate_limit_holds_in_every_window"),
    ("R87", "priorities_go_first_when_the_queue_has_them"),
    ("R88", "partitions_have_limits_of_their_own_and_none_starves"),
    ("R90", "a_run_of_another_version_waits_and_is_explained"),
    ("R91", "global_concurrency_holds_over_two_workers"),
    ("R92", "a_run_beyond_its_deadline_is_cancelled_with_the_reason"),
    ("R93", "a_killed_worker_loses_its_runs_to_another_and_no_recorded_step_runs_again"),
    ("R94", "a_fork_keeps_the_steps_before_its_own_and_leaves_its_source_alone"),
    ("R97", "every_step_is_stored_with_all_that_is_known_of_it"),
    ("R103", "a_run_returns_its_value_and_the_same_id_is_the_same_run"),
    ("X10", "changed_code_is_stopped_and_names_both_steps"),
    ("X16", "a_shutdown_lets_steps_end_and_gives_the_rest_back"),
    ("R1, R2, R3, R4, R58", "r001_a_nightly_schedule_makes_one_command_a_day"),
    ("R5, R61", "r005_the_same_key_is_the_same_command_and_another_payload_is_a_conflict"),
    ("R6", "r006_commands_without_a_key_never_meet"),
    ("R3, R7", "r007_the_row_holds_who_what_and_whence"),
    ("R8, R9, R99", "a_command_passes_its_statuses_and_leaves_its_events"),
    ("R10", "r010_two_schedulers_make_one_command_a_slot"),
    ("R34, R35, R36, R37, R38", "a_cancel_lets_the_step_under_way_end_and_begins_nothing_more"),
    ("R37", "a_cancel_waits_for_a_step_that_is_longer_than_the_lease"),
    ("R40, R42", "bad_submissions_are_refused_and_change_nothing"),
    ("R55", "r055_a_missed_day_is_filled_by_hand_and_only_once"),
    ("R56, R60", "r056_workspaces_never_collide"),
    ("R62, R63, R64, R66", "r062_an_outage_of_ten_slots_under_each_policy_and_for_each_cause"),
    ("R59, R67", "r067_an_event_makes_one_command_for_each_trigger_that_matches"),
    ("R68", "r068_an_event_without_an_id_is_the_same_when_it_comes_again"),
    ("R69, R70, R71, R72", "r069_an_activity_starts_its_tasks_and_notes_them_once"),
    ("R101, R103", "r101_a_runtime_starts_signals_cancels_and_tells"),
    ("R104", "r104_the_trace_reaches_the_code_and_its_children"),
    ("X2", "x2_a_command_waits_for_others_and_falls_with_them"),
    ("X2", "x2_nobody_waits_in_a_circle"),
    ("R11, X6", "r011_the_chain_is_asked_in_order_and_every_decision_is_kept"),
    ("R12, R13", "r012_who_lacks_a_grant_is_denied_and_nothing_runs"),
    ("R14, R15", "r014_a_connector_is_asked_only_within_its_scope"),
    ("R16", "r016_calls_above_the_rate_are_not_sent"),
    ("R17", "r017_a_spent_budget_asks_people_and_is_audited"),
    ("R17", "r017_retries_beyond_the_budget_ask_people_once"),
    ("R17", "r017_money_asks_people_at_the_soft_cap_and_is_denied_at_the_hard_one"),
    ("R17", "r017_a_day_is_shared_by_commands_and_workers"),
    ("R17", "r017_what_the_other_side_charges_counts_instead_of_the_price"),
    ("R18", "r018_every_stage_can_be_set_and_every_ruling_is_heeded"),
    ("R25, R26", "r025_an_effect_passes_its_statuses_with_the_commands_key"),
    ("R100", "r100_an_agent_proposes_and_never_commits"),
    ("R107", "r107_there_is_no_way_around_the_policy"),
    ("R107", "r107_nobody_says_yes_by_a_signal"),
    ("R107", "r107_what_is_really_sent_is_judged_and_shown"),
    ("X19", "x19_an_effect_that_nobody_classed_is_denied"),
    ("R108, X12", "r108_every_call_is_in_the_ledger_and_a_contradiction_is_flagged"),
    ("R108", "r108_a_probe_and_what_it_is_about_are_both_in_the_ledger"),
    ("R108", "r108_a_call_that_nobody_waits_for_is_in_the_ledger"),
    ("R108", "r108_a_call_that_outlives_its_command_is_in_the_ledger"),
    ("R110", "r110_a_failure_takes_back_what_was_done_the_last_first"),
    ("R111", "r111_a_crash_in_the_middle_of_taking_back_goes_on"),
    ("R112", "r112_the_same_key_on_every_attempt"),
    ("R115", "r115_a_run_waits_for_people_without_a_worker_and_through_a_restart"),
    ("R122", "r122_an_effect_of_a_class_is_not_performed_before_people_say_yes"),
    ("R39, R109, X4", "x4_a_fabric_whose_ways_back_do_not_hold_together_does_not_start"),
    ("X3", "x3_a_cancel_that_compensates_takes_back_and_then_stops"),
    ("X5", "x5_a_compensation_that_does_more_than_declared_is_told_of"),
    ("X11", "x11_different_people_each_once_and_never_for_oneself"),
    ("X11", "x11_time_runs_out_and_late_answers_change_nothing"),
    ("X11", "x11_a_rule_says_who_is_asked_how_many_and_for_how_long"),
    ("X11", "x11_a_rule_that_nobody_could_satisfy_denies"),
    ("X8", "x8_a_missed_slot_is_told_even_under_skip"),
    ("X9", "x9_a_start_removes_what_is_no_longer_defined"),
    ("R30, R32", "r030_the_chain_is_whole_after_retention"),
    ("R31", "r031_every_row_has_its_purpose"),
    ("R32", "r032_a_retention_that_is_too_short_is_refused"),
    ("R113, R114", "r114_what_a_crash_left_is_published_later_with_the_same_ids"),
    ("R120", "r120_the_turns_of_a_workflow_are_told"),
];

#[test]
fn every_case_that_a_requirement_names_is_in_the_suite() {
    for (requirement, name) in SHOWN {
        assert!(cases().iter().any(|(case, _)| case == name), "{requirement}: no case {name}");
    }
}
