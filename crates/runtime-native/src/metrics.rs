//! Metrics: how long workflows take, what is tried again, what is taken back.
//!
//! Invariants: labels are names of code and of triggers, and classes of errors, never ids of runs,
//! commands or events, so their number is bounded by the program and its operators.
//! Deliberately absent: a server. Whoever has one serves [`Metrics::text`].

use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use steadfast_store::Tally;

type Labels = [(&'static str, String); 2];

/// The metrics of a process.
pub(crate) struct Metrics {
    registry: Registry,
    durations: Family<Labels, Histogram>,
    retries: Family<Labels, Counter>,
    compensations: Family<Labels, Counter>,
    task_panics: Family<[(&'static str, &'static str); 1], Counter>,
    store_panics: Counter,
    filter_failures: Family<Labels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        // From a millisecond to three hours.
        let buckets = || Histogram::new(exponential_buckets(0.001, 4.0, 13));
        let durations = Family::<Labels, Histogram>::new_with_constructor(buckets);
        let (retries, compensations) = (Family::default(), Family::default());
        let help = "From the first claim of a run to its end";
        registry.register_with_unit("workflow_duration", help, Unit::Seconds, durations.clone());
        let help = "Attempts after the first";
        registry.register("activity_retries", help, Family::clone(&retries));
        let help = "Effects that were taken back";
        registry.register("workflow_compensations", help, Family::clone(&compensations));
        let (task_panics, store_panics) = (Family::default(), Counter::default());
        let help = "Panics in tasks of the worker; each task was begun anew, or its run recovered";
        registry.register("task_panics", help, Family::clone(&task_panics));
        let help = "Panics in the store's own code";
        registry.register("store_panics", help, Counter::clone(&store_panics));
        let filter_failures = Family::default();
        let help = "Events for which the filter of a trigger failed";
        registry.register("trigger_filter_failures", help, Family::clone(&filter_failures));
        Self {
            registry,
            durations,
            retries,
            compensations,
            task_panics,
            store_panics,
            filter_failures,
        }
    }
}

impl Metrics {
    pub(crate) fn ended(&self, workflow: &str, status: &str, took: Duration) {
        let labels = [("name", workflow.to_owned()), ("status", status.to_owned())];
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn retried(&self, activity: &str, reason: &str) {
        let labels = [("activity", activity.to_owned()), ("reason", reason.to_owned())];
        self.retries.get_or_create(&labels).inc();
    }

    pub(crate) fn compensated(&self, workflow: &str, step: &str) {
        let labels = [("workflow", workflow.to_owned()), ("step", step.to_owned())];
        self.compensations.get_or_create(&labels).inc();
    }

    pub(crate) fn panicked(&self, task: &'static str) {
        self.task_panics.get_or_create(&[("task", task)]).inc();
    }

    pub(crate) fn filter_failed(&self, trigger: &str, kind: &str) {
        let labels = [("trigger", trigger.to_owned()), ("kind", kind.to_owned())];
        self.filter_failures.get_or_create(&labels).inc();
    }

    /// All of them, as OpenMetrics has it.
    pub(crate) fn text(&self, store: Tally) -> String {
        self.store_panics.inner().store(store.panics, Ordering::Relaxed);
        let mut text = String::new();
        // Writing into a text does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
