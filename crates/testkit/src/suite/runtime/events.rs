//! Events in: one command for each trigger that matches, however often the event comes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Contract, Cx, Envelope, Ingress, ListCommands, OnEvent, Result, Steadfast, Timestamp,
};

use super::{Fixture, case_table};

case_table![
    r067_an_event_makes_one_command_for_each_trigger_that_matches,
    r068_an_event_without_an_id_is_the_same_when_it_comes_again,
    filters_choose_and_bad_ones_are_refused,
    an_event_that_one_trigger_cannot_use_reaches_the_others,
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
    Envelope::read(&event, Timestamp::from_micros(0)).unwrap()
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
            let event = Envelope::read(event, Timestamp::from_micros(received)).unwrap();
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
