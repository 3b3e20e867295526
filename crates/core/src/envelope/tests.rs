//! Events as they arrive, good ones and bad ones.

use super::*;
use crate::limits;

const NOON: Timestamp = Timestamp::from_micros(1_780_315_200_000_000);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn paid() -> Value {
    json!({
        "event_id": "evt-1",
        "type": "order.paid",
        "source": "shop",
        "occurred_at": "2026-06-01T14:00:00.5+02:00",
        "subject": "order/1001",
        "trace_id": "t-1",
        "schema_version": "2.1",
        "payload": { "total": 12.5 },
    })
}

fn cloud() -> Value {
    json!({
        "specversion": "1.0",
        "id": "ce-1",
        "source": "/shop",
        "type": "com.example.order.paid",
        "time": "2026-06-01T12:00:00Z",
        "subject": "order/1001",
        "datacontenttype": "application/json; charset=utf-8",
        "dataschema": "https://example.com/order.json",
        "traceparent": format!("00-{TRACE}-00f067aa0ba902b7-01"),
        "tenantid": "anything",
        "data": [1, { "total": 12.5 }],
    })
}

fn read(json: &Value) -> Envelope {
    Envelope::read(json).unwrap()
}

/// The event with some attributes changed; `null` removes one.
fn but(mut event: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => event.as_object_mut().unwrap().remove(name),
            other => event.as_object_mut().unwrap().insert(name.clone(), other.clone()),
        };
    }
    event
}

#[test]
fn our_own_envelope_is_read_whole() {
    let event = read(&paid());
    let mut seen = paid();
    seen["occurred_at"] = json!("2026-06-01T12:00:00.500000+00:00");
    seen.as_object_mut().unwrap().remove("trace_id");
    assert_eq!(event.to_value(), seen, "the moment in UTC, without the trace, the rest as it came");
    assert_eq!(event.occurred_at, Some(NOON.after(std::time::Duration::from_millis(500))));
    let kept = serde_json::to_value(&event).unwrap();
    assert_eq!(kept["type"], "order.paid");
    assert_eq!(serde_json::from_value::<Envelope>(kept).unwrap(), event);
}

#[test]
fn what_is_absent_is_filled_in() {
    let event = read(&json!({ "type": "ping", "source": "shop", "subject": null }));
    assert_eq!((event.occurred_at, event.subject.as_str()), (None, ""));
    assert!(event.to_value().get("occurred_at").is_none(), "the sender gave no time");
    assert_eq!((event.schema_version.as_str(), event.payload), ("1.0", json!({})));
    assert_eq!(event.trace_id, fingerprint(&event.event_id));
    let named = read(&but(paid(), json!({ "payload": null, "attributes": { "a": 1 } })));
    assert_eq!(named.payload, json!({ "a": 1 }), "the body's other name");
}

/// R68
#[test]
fn r068_an_event_without_an_id_gets_one_that_its_redelivery_gets_too() {
    let bare = but(paid(), json!({ "event_id": null, "occurred_at": null, "trace_id": null }));
    let (first, again) = (read(&bare), read(&bare));
    assert_eq!(first, again, "whenever it arrives");
    assert!(first.event_id.starts_with("evt_") && first.event_id.len() == 36);
    let text = r#"{"source":"shop","type":"a","payload":{"x":1,"y":2}}"#;
    let turned = r#"{"payload":{"y":2,"x":1},"type":"a","source":"shop"}"#;
    let id = |text: &str| Envelope::read_slice(text.as_bytes()).unwrap().event_id;
    assert_eq!(id(text), id(turned), "whatever the order of its keys");
    for change in [
        json!({ "source": "web" }),
        json!({ "type": "order.sent" }),
        json!({ "subject": "order/1002" }),
        json!({ "occurred_at": "2026-06-01T12:00:00Z" }),
        json!({ "payload": { "total": 12.6 } }),
    ] {
        let other = read(&but(bare.clone(), change.clone()));
        assert_ne!(other.event_id, first.event_id, "{change}");
    }
}

#[test]
fn a_wrong_attribute_is_named() {
    for (change, wanted) in [
        (json!({ "type": null }), "the type is missing"),
        (json!({ "type": "" }), "the type is missing"),
        (json!({ "source": 7 }), "the source is no text"),
        (json!({ "event_id": "a\nb" }), "the event_id holds a control character"),
        (json!({ "type": "t".repeat(256) }), "the type is 256 bytes long"),
        (json!({ "occurred_at": "yesterday" }), "the occurred_at is \"yesterday\" and no RFC 3339"),
        (json!({ "occurred_at": "2026-06-01T12:00:00" }), "the occurred_at is"),
        (json!({ "payload": [1] }), "the payload is no JSON object"),
        (json!({ "attributes": {} }), "the attributes is another word for payload"),
        (json!({ "occured_at": "2026-06-01" }), "the occured_at is not known; there are event_id,"),
    ] {
        let error = Envelope::read(&but(paid(), change)).unwrap_err();
        assert_eq!(error.code(), "SF-0701");
        assert!(error.message().starts_with(wanted), "{error}");
    }
    assert_eq!(Envelope::read_slice(b"{").unwrap_err().code(), "SF-0701");
    assert_eq!(Envelope::read_slice(b"[]").unwrap_err().code(), "SF-0701");
    let wide = paid().to_string().replace("12.5", "123456789012345678901");
    let refused = Envelope::read_slice(wide.as_bytes()).unwrap_err();
    assert!(refused.message().contains("123456789012345678901, an integer"), "{refused}");
    let large = but(paid(), json!({ "payload": { "x": "y".repeat(limits::PAYLOAD_BYTES) } }));
    assert_eq!(Envelope::read(&large).unwrap_err().code(), "SF-0103");
}

#[test]
fn a_cloud_event_is_read_and_its_extensions_are_let_pass() {
    let event = read(&cloud());
    assert_eq!((event.event_id.as_str(), event.source.as_str()), ("ce-1@/shop", "/shop"));
    assert_eq!(
        (event.event_type.as_str(), event.occurred_at),
        ("com.example.order.paid", Some(NOON))
    );
    assert_eq!((event.trace_id.as_str(), event.subject.as_str()), (TRACE, "order/1001"));
    assert_eq!(event.payload, json!([1, { "total": 12.5 }]));
    let bare = json!({ "specversion": "1.0", "id": "1", "source": "s", "type": "t" });
    let event = read(&bare);
    assert_eq!((event.occurred_at, event.payload), (None, json!({})));
    assert_eq!(event.trace_id, fingerprint("1@s"));
}

#[test]
fn a_traceparent_is_used_only_where_it_is_one() {
    for bad in [
        "".to_owned(),
        TRACE.to_owned(),
        format!("01-{TRACE}-00f067aa0ba902b7-01"),
        format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
        format!("00-{TRACE}-0000000000000000-01"),
        format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
        format!("00-{TRACE}-00f067aa0ba902b7-01-x"),
    ] {
        let event = read(&but(cloud(), json!({ "traceparent": bad })));
        assert_eq!(event.trace_id, fingerprint("ce-1@/shop"), "{bad}");
    }
}

#[test]
fn a_cloud_event_that_is_none_is_refused_by_its_attribute() {
    for (change, wanted) in [
        (json!({ "specversion": "0.3" }), "the specversion"),
        (json!({ "specversion": 1.0 }), "the specversion"),
        (json!({ "id": "" }), "the id is missing"),
        (json!({ "source": null }), "the source is missing"),
        (json!({ "type": null }), "the type is missing"),
        (json!({ "time": "noon" }), "the time"),
        (json!({ "data_base64": "e30=" }), "the data_base64 is not read"),
        (json!({ "datacontenttype": "text/xml" }), "the datacontenttype is text/xml"),
    ] {
        let error = Envelope::read(&but(cloud(), change)).unwrap_err();
        assert_eq!(error.code(), "SF-0701");
        assert!(error.message().starts_with(wanted), "{error}");
    }
}

fn http(headers: &[(&str, &str)], body: &str) -> Result<Envelope> {
    Envelope::read_http(headers.iter().copied(), body.as_bytes())
}

const BINARY: [(&str, &str); 5] = [
    ("CE-SpecVersion", "1.0"),
    ("ce-id", "ce-1"),
    ("ce-source", "/shop"),
    ("ce-type", "order.paid"),
    ("ce-subject", "caf%C3%A9 100%"),
];

#[test]
fn a_request_carries_an_event_in_each_of_its_modes() {
    let json = ("Content-Type", "application/json");
    let binary =
        http(&[&BINARY[..], &[json, ("ce-data", "x")]].concat(), r#"{"total":1}"#).unwrap();
    assert_eq!((binary.event_id.as_str(), &binary.payload), ("ce-1@/shop", &json!({ "total": 1 })));
    assert_eq!(binary.subject, "café 100%");
    assert_eq!(http(&BINARY, "").unwrap().payload, json!({}), "an event may carry nothing");
    let structured = ("content-type", "application/cloudevents+json; charset=UTF-8");
    assert_eq!(http(&[structured], &cloud().to_string()).unwrap(), read(&cloud()));
    assert_eq!(http(&[json], &paid().to_string()).unwrap(), read(&paid()));
    assert_eq!(http(&[], &paid().to_string()).unwrap(), read(&paid()));
}

#[test]
fn a_request_in_another_mode_is_refused() {
    for (content, body, wanted) in [
        (
            "application/cloudevents-batch+json",
            "[]",
            "the content-type is application/cloudevents-b",
        ),
        ("application/cloudevents+xml", "<e/>", "the content-type is application/cloudevents+xml"),
        ("application/cloudevents+json", "{\"id\":\"1\"}", "the specversion is missing"),
        ("text/plain", "hello", "the content-type is text/plain; only JSON is read"),
        ("application/json", "{", "the body is no JSON"),
    ] {
        let headers = [&BINARY[..], &[("content-type", content)]].concat();
        let error = http(&headers, body).unwrap_err();
        assert_eq!(error.code(), "SF-0701");
        assert!(error.message().starts_with(wanted), "{error}");
    }
    let error = http(&[&BINARY[..], &[("ce-subject", "%FF")]].concat(), "").unwrap_err();
    assert_eq!(error.message(), "the subject is no UTF-8");
}

/// R68: an id is a sender's own; who mixes them up swallows events.
#[test]
fn the_events_of_two_senders_are_never_one() {
    let id = |source: &str, id: &str| {
        let event = json!({ "specversion": "1.0", "id": id, "source": source, "type": "t" });
        Envelope::read(&event).unwrap().event_id
    };
    let long = "x".repeat(200);
    let pairs =
        [("/a", "1"), ("/b", "1"), ("b@c", "a"), ("c", "a@b"), ("/a", &long), ("/b", &long)];
    let mut ids: Vec<_> = pairs.iter().map(|(source, own)| id(source, own)).collect();
    assert!(ids.iter().all(|id| id.len() <= 101), "{ids:?}");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), pairs.len());
    assert_eq!(id("/a", "1"), "1@/a");
}
