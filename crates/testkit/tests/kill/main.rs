//! Real worker processes killed with SIGKILL, at random and at named places, and judged from
//! outside.
//!
//! Requirements shown here: R74 (every status path ends), R79 (recoveries are counted and within
//! their limit), R85 (a queue's limit holds over many workers), R93 (whatever a dead worker left
//! goes on in another), R95 (claims exclude each other), R96 (all by polling), R98 (the same on
//! every store) and X16 (a clean end).
//!
//! Deliberately absent: the death of the database itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod check;
mod database;
mod dice;
mod fleet;
mod outage;
mod scenarios;
mod server;
mod shapes;
mod storm;
mod watch;

use database::with;
use steadfast_testkit::db::DbKind;

macro_rules! on_every_store {
    ($($test:ident: $body:expr;)+) => {
        mod sqlite { $(on_every_store!(@ Sqlite, $test, $body);)+ }
        mod postgres { $(on_every_store!(@ Postgres, $test, $body);)+ }
        mod mysql { $(on_every_store!(@ Mysql, $test, $body);)+ }
    };
    (@ $kind:ident, $test:ident, $body:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            super::with(super::DbKind::$kind, $body).await;
        }
    };
}

on_every_store! {
    a_worker_killed_while_it_starts_leaves_a_store_that_the_next_one_can_use:
        super::scenarios::killed_at_the_start;
    a_worker_asked_to_stop_ends_its_steps_and_others_go_on:
        super::scenarios::drained;
    a_restarted_worker_goes_on_at_once_although_its_lease_is_long:
        super::scenarios::taken_over;
    a_worker_that_wakes_up_after_its_lease_begins_nothing_and_changes_nothing:
        super::scenarios::zombie;
    a_worker_that_wakes_up_after_its_runs_old_deadline_does_not_end_the_resumed_run:
        super::scenarios::overdue_zombie;
    the_queue_slot_of_a_killed_worker_returns_within_its_lease:
        super::scenarios::slot_returned;
    runs_survive_workers_that_are_killed_again_and_again:
        super::scenarios::many_kills;
}

/// R82, R91: whatever the server forgets in a crash, no run mixes what it computed before with what
/// it computes after, and nothing that was acknowledged is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r091_servers_that_are_killed_again_and_again_lose_nothing_that_counts() {
    let _turn = database::TURN.lock().await;
    futures::join!(outage::outages(DbKind::Postgres, 20), outage::outages(DbKind::Mysql, 20));
}
