//! Events in: one command for each trigger that matches, however often the event comes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    CommandType, Contract, Cx, Envelope, EventMatch, Ingress, ListCommands, ListEvents, OnEvent,
    Result, Steadfast, Trigger, When,
};

use super::{Fixture, case_table};

case_table![
    r067_an_event_makes_one_command_for_each_trigger_that_matches,
    r068_an_event_without_an_id_is_the_same_when_it_comes_again,
    filters_choose_and_bad_ones_are_refused,
    an_event_that_one_trigger_cannot_use_reaches_the_others,
    a_filter_that_fails_is_counted_and_reported_once,
    r068_a_delivery_in_another_trace_is_the_same_event,
];

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Order {
    order: String,
    total: i64,
}

async fn ship(_: Cx, order: Order) -> Result<String> {
    Ok(order.order)
}

async fn praise(_: Cx, order: Order) -> Result<i64> {
    Ok(order.total)
}

fn payload() -> Value {
    json!({ "order": "{event.subject}", "total": "{event.payload.total}" })
}

pub(super) fn paid(id: &str, total: i64) -> Envelope {
    let event = json!({
        "event_id": id, "type": "order.paid", "source": "shop", "subject": "order/7",
        "occurred_at": "2026-06-01T10:00:00Z", "trace_id": "t-1", "payload": { "total": total },
    });
    Envelope::read(&event).unwrap()
}

async fn count(fabric: &Steadfast) -> usize {
    let page = ListCommands { limit: 1000, ..Default::default() };
    fabric.commands(page).await.unwrap().commands.len()
}

/// R59, R61, R67
async fn r067_an_event_makes_one_command_for_each_trigger_that_matches(f: Fixture) {
    let fabric = f
        .fabric()
        .command(ship, Contract::new())
        .command(praise, Contract::new())
        .on_event(OnEvent::new("ship", "order.paid").submits("ship", payload()))
        .on_event(OnEvent::new("praise", "order.*").submits("praise", payload()))
        .on_event(OnEvent::new("other", "order.lost").submits("ship", payload()))
        .on_event(OnEvent::new("off", "order.paid").enabled(false).submits("ship", payload()));
    let fabric = fabric.start().await.unwrap();
    let routed = fabric.deliver(&paid("evt_abc123", 120), Ingress::ConnectorEvent).await.unwrap();
    let by: Vec<_> = routed.commands.iter().map(|(t, _, new)| (t.as_str(), *new)).collect();
    assert_eq!(by, [("praise", true), ("ship", true)]);
    let (_, id, _) = &routed.commands[1];
    let command = fabric.command::<String>(id.clone());
    assert_eq!(command.result().await.unwrap(), "order/7");
    let row = command.info().await.unwrap().command;
    assert_eq!(row.workflow_id, "activity-ship:evt_abc123");
    assert_eq!(
        (row.ingress.as_str(), row.requested_by.as_str()),
        ("connector_event", "event:shop")
    );
    assert_eq!(row.payload, r#"{"order":"order/7","total":120}"#, "numbers stay numbers");
    assert!(row.context.contains("\"trace_id\":\"t-1\""), "{}", row.context);
    // Redelivered, also many at a time: logged and passed over.
    let again = (0..8).map(|_| async {
        let event = paid("evt_abc123", 120);
        fabric.deliver(&event, Ingress::ConnectorEvent).await.unwrap()
    });
    for routed in futures::future::join_all(again).await {
        assert!(routed.commands.iter().all(|(_, _, new)| !new) && routed.refused.is_empty());
    }
    assert_eq!(count(&fabric).await, 2);
    // The same id with other content is told apart, not swallowed.
    let forged = fabric.deliver(&paid("evt_abc123", 1), Ingress::ConnectorEvent).await.unwrap();
    assert!(forged.refused.iter().all(|(_, error)| error.code() == "SF-0501"));
    assert_eq!(forged.refused.len(), 2);
    fabric.shutdown().await;
}

/// R68
async fn r068_an_event_without_an_id_is_the_same_when_it_comes_again(f: Fixture) {
    let fabric = f.fabric().command(ship, Contract::new());
    let fabric = fabric.on_event(OnEvent::new("ship", "order.paid").submits("ship", payload()));
    let fabric = fabric.start().await.unwrap();
    let cloud = json!({
        "specversion": "1.0", "id": "c-1", "type": "order.paid", "source": "/shop",
        "subject": "order/7", "data": { "total": 3 },
    });
    let plain = json!({ "type": "order.paid", "source": "shop", "subject": "order/8",
        "payload": { "total": 4 } });
    for received in 1..=3 {
        for event in [&cloud, &plain] {
            let event = Envelope::read(event).unwrap();
            let routed = fabric.deliver(&event, Ingress::ExternalWebhook).await.unwrap();
            assert_eq!(routed.commands[0].2, received == 1, "{event:?}");
        }
    }
    assert_eq!(count(&fabric).await, 2);
    fabric.shutdown().await;
}

async fn filters_choose_and_bad_ones_are_refused(f: Fixture) {
    let big = OnEvent::new("big", "order.paid").filter("event.payload.total >= 100");
    let fabric = f.fabric().command(praise, Contract::new());
    let fabric = fabric.on_event(big.submits("praise", payload())).start().await.unwrap();
    for (total, made) in [(99, 0), (100, 1), (500, 1)] {
        let event = paid(&format!("e{total}"), total);
        let routed = fabric.deliver(&event, Ingress::SystemEvent).await.unwrap();
        assert_eq!(routed.commands.len(), made, "{total}");
    }
    fabric.schedule("big").pause("enough").await.unwrap();
    let routed = fabric.deliver(&paid("e9", 900), Ingress::SystemEvent).await.unwrap();
    assert_eq!(routed.commands.len(), 0, "a paused trigger makes nothing");
    fabric.shutdown().await;
    let bad = OnEvent::new("big", "order.paid")
        .filter("event.payload.total >")
        .submits("praise", payload());
    let refused = f.fabric().command(praise, Contract::new()).on_event(bad).start().await;
    assert_eq!(refused.err().unwrap().code(), "SF-0703");
}

async fn an_event_that_one_trigger_cannot_use_reaches_the_others(f: Fixture) {
    let needs = json!({ "order": "{event.payload.number}", "total": "{event.payload.total}" });
    let fabric = f
        .fabric()
        .command(ship, Contract::new())
        .on_event(OnEvent::new("a", "order.paid").submits("ship", needs))
        .on_event(OnEvent::new("b", "order.paid").submits("ship", payload()));
    let fabric = fabric.start().await.unwrap();
    let routed = fabric.deliver(&paid("e1", 1), Ingress::SystemEvent).await.unwrap();
    assert_eq!(routed.commands.len(), 1);
    assert_eq!(routed.refused[0].0, "a");
    assert!(routed.refused[0].1.message().contains("{event.payload.number} is not given"));
    fabric.shutdown().await;
}

/// The first event of a kind of failure is on record, every one is counted, and none makes a
/// command.
async fn a_filter_that_fails_is_counted_and_reported_once(f: Fixture) {
    let odd = OnEvent::new("odd", "order.paid")
        .filter("event.payload.total % 2 == 1 && event.payload.vip == true");
    let fabric = f.fabric().command(praise, Contract::new());
    let fabric = fabric.on_event(odd.submits("praise", payload())).start().await.unwrap();
    for total in [3, 4, 5] {
        let event = paid(&format!("e{total}"), total);
        let routed = fabric.deliver(&event, Ingress::SystemEvent).await.unwrap();
        assert_eq!((routed.commands.len(), routed.refused.len()), (0, 0));
    }
    let event_type = Some("trigger.filter_failed".to_owned());
    let which = ListEvents { event_type, limit: 10, ..Default::default() };
    let told = fabric.events(which.clone()).await.unwrap();
    let [told_once] = &told[..] else { panic!("{told:?}") };
    let about: Value = serde_json::from_str(&told_once.payload).unwrap();
    assert_eq!((&about["trigger_id"], &about["kind"]), (&json!("odd"), &json!("not_there")));
    assert_eq!(about["event_id"], "e3");
    let line = "trigger_filter_failures_total{trigger=\"odd\",kind=\"not_there\"} 2";
    assert!(fabric.metrics().contains(line), "{}", fabric.metrics());
    fabric.shutdown().await;
    // Another process reports nothing new; another definition does.
    let count = |filter: &'static str| {
        let trigger = OnEvent::new("odd", "order.paid").filter(filter);
        let (there, which) = (f.clone(), which.clone());
        async move {
            let fabric = there.fabric().command(praise, Contract::new());
            let trigger = trigger.submits("praise", payload());
            let fabric = fabric.on_event(trigger).start().await.unwrap();
            fabric.deliver(&paid("again", 7), Ingress::SystemEvent).await.unwrap();
            let told = fabric.events(which).await.unwrap().len();
            fabric.shutdown().await;
            told
        }
    };
    let same = "event.payload.total % 2 == 1 && event.payload.vip == true";
    assert_eq!(count(same).await, 1);
    assert_eq!(count("event.payload.vip").await, 2);
}

/// R68: what differs between deliveries (the trace, the moment of arrival) is no part of the
/// command.
async fn r068_a_delivery_in_another_trace_is_the_same_event(f: Fixture) {
    let fabric = f.fabric().command(ship, Contract::new());
    let fabric = fabric.on_event(OnEvent::new("ship", "order.paid").submits("ship", payload()));
    let fabric = fabric.start().await.unwrap();
    for (trace, new) in [("a", true), ("b", false)] {
        let cloud = json!({
            "specversion": "1.0", "id": "c-1", "type": "order.paid", "source": "/shop",
            "subject": "order/7", "data": { "total": 3 },
            "traceparent": format!("00-{}-00f067aa0ba902b7-01", trace.repeat(32)),
        });
        let event = Envelope::read(&cloud).unwrap();
        let routed = fabric.deliver(&event, Ingress::ExternalWebhook).await.unwrap();
        assert_eq!((routed.refused.len(), routed.commands[0].2), (0, new));
    }
    let with = |trigger_id: &str, hole: &str| Trigger {
        trigger_id: trigger_id.to_owned(),
        enabled: true,
        when: When::Event(EventMatch { event_type: "order.paid".to_owned(), filter: None }),
        command: CommandType::new("ship"),
        payload: json!({ "order": format!("{{event.{hole}}}"), "total": 1 }),
    };
    let refused = fabric.define(&with("traced", "trace_id")).await.unwrap_err();
    assert_eq!(refused.code(), "SF-0504");
    fabric.schedule("ship").pause("one is enough").await.unwrap();
    fabric.define(&with("timed", "occurred_at")).await.unwrap();
    let untimed = json!({ "type": "order.paid", "source": "s", "payload": { "total": 1 } });
    let event = Envelope::read(&untimed).unwrap();
    for _ in 0..2 {
        let routed = fabric.deliver(&event, Ingress::ExternalWebhook).await.unwrap();
        let (trigger, why) = &routed.refused[0];
        assert_eq!(trigger, "timed");
        assert!(why.message().contains("{event.occurred_at} is not given"), "{why}");
    }
    fabric.shutdown().await;
}
