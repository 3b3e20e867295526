//! Panics of sinks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast::{CloudEvent, Contract, Cx, Dedup, Delivery, Result, Sink, SinkTarget, Timestamp};
use steadfast_core::env::Env;

use super::super::{Clock, Fixture, case_table, until};
use super::{assert_panic, narrow, unharmed};

case_table![
    a_sink_that_panics_is_tried_again_and_holds_up_no_other,
    a_sink_whose_declaration_panics_refuses_the_start,
];

/// A sink that panics in each of its methods once, and takes every event then.
#[derive(Clone, Default)]
struct Nervous {
    declaration: bool,
    calm: bool,
    panics: Arc<Mutex<Vec<&'static str>>>,
    took: Arc<AtomicU32>,
}

impl Nervous {
    fn once(&self, what: &'static str) {
        let mut panics = self.panics.lock().unwrap();
        if !self.calm && !panics.contains(&what) {
            panics.push(what);
            drop(panics);
            panic!("no {what}");
        }
    }
}

impl SinkTarget for Nervous {
    fn kind(&self) -> &'static str {
        assert!(!self.declaration, "no kind");
        "nervous"
    }

    fn place(&self) -> String {
        "here".to_owned()
    }

    fn wants(&self, _: &CloudEvent) -> bool {
        self.once("wants");
        true
    }

    fn dedup(&self, _: &CloudEvent) -> Option<Dedup> {
        self.once("dedup");
        None
    }

    fn send<'a>(&'a self, _: &'a CloudEvent, _: Timestamp) -> BoxFuture<'a, Delivery> {
        self.once("send");
        Box::pin(async {
            tokio::task::yield_now().await;
            self.once("answer");
            self.took.fetch_add(1, Ordering::SeqCst);
            Delivery::Done
        })
    }
}

async fn greet(_: Cx, _: ()) -> Result<u32> {
    Ok(1)
}

async fn a_sink_that_panics_is_tried_again_and_holds_up_no_other(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let nervous = Nervous::default();
    let calm = Nervous { calm: true, ..Nervous::default() };
    let fabric = narrow(&f).env(clock.clone()).command(greet, Contract::new());
    let fabric = fabric.sink(Sink::new("nervous", nervous.clone()));
    let fabric = fabric.sink(Sink::new("calm", calm.clone())).start().await.unwrap();
    let command = fabric.submit(greet, ()).await.unwrap();
    command.result().await.unwrap();
    until("all have all", async || {
        // What failed is sent again after a while.
        clock.set(clock.now().after(Duration::from_secs(10)));
        fabric.publish().await.unwrap();
        let took = [&nervous, &calm].map(|sink| sink.took.load(Ordering::SeqCst));
        took[0] > 0 && took[0] == took[1]
    })
    .await;
    let panics = nervous.panics.lock().unwrap().clone();
    assert_eq!(panics, ["wants", "dedup", "send", "answer"]);
    let dead = fabric.dead_letters(None, None, 10).await.unwrap();
    assert_eq!(dead, []);
    unharmed(&fabric).await;
}

async fn a_sink_whose_declaration_panics_refuses_the_start(f: Fixture) {
    let sink = Nervous { declaration: true, ..Nervous::default() };
    let fabric = narrow(&f).sink(Sink::new("nervous", sink));
    let refused = fabric.start().await.err().unwrap();
    assert_panic(&refused, "sink \"nervous\" panicked: no kind");
}
