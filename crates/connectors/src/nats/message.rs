//! What a message of JetStream says: its event, and how often it came.
//!
//! Invariant: every field of the event comes from the message's headers and payload. The time at
//! which the stream stored the message is not used: it changes when the sender publishes again.

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::Message;
use serde_json::Value;
use steadfast_core::Envelope;
use steadfast_core::error::Result;

/// The event of a message.
pub(super) fn envelope(message: &Message) -> Result<Envelope> {
    read(message.headers.as_ref().unwrap_or(&HeaderMap::new()), &message.payload)
}

/// How often the server has delivered a message, this time included.
pub(super) fn deliveries(message: &Message) -> u32 {
    message.info().map_or(1, |info| u32::try_from(info.delivered).unwrap_or(u32::MAX))
}

fn read(headers: &HeaderMap, payload: &[u8]) -> Result<Envelope> {
    let pairs = || {
        headers.iter().flat_map(|(name, values)| {
            values.iter().map(move |value| (AsRef::<str>::as_ref(name), value.as_str()))
        })
    };
    let is_cloud = pairs().any(|(name, _)| name.eq_ignore_ascii_case("ce-specversion"));
    let id = headers.get(NATS_MESSAGE_ID).filter(|_| !is_cloud).map(|id| id.as_str());
    // The sender's id for the message is his id for the event, if he gave no other.
    if let (Some(id), Ok(Value::Object(mut event))) = (id, serde_json::from_slice(payload))
        && !event.contains_key("specversion")
        && event.get("event_id").is_none_or(Value::is_null)
        && steadfast_core::json::wide_integer(payload).is_none()
    {
        event.insert("event_id".to_owned(), Value::String(id.to_owned()));
        return Envelope::read(&Value::Object(event));
    }
    // The headers of a CloudEvent are those that it has in HTTP.
    Envelope::read_http(pairs(), payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        pairs.iter().for_each(|(name, value)| map.insert(*name, *value));
        map
    }

    fn event_id(pairs: &[(&str, &str)], payload: &str) -> String {
        read(&headers(pairs), payload.as_bytes()).unwrap().event_id
    }

    #[test]
    fn the_id_of_the_message_is_the_events_where_it_has_none() {
        let named = [("Nats-Msg-Id", "m-1")];
        assert_eq!(event_id(&named, r#"{"type":"a","source":"s"}"#), "m-1");
        assert_eq!(event_id(&named, r#"{"type":"a","source":"s","event_id":null}"#), "m-1");
        assert_eq!(event_id(&named, r#"{"type":"a","source":"s","event_id":"e"}"#), "e");
        assert!(event_id(&[], r#"{"type":"a","source":"s"}"#).starts_with("evt_"));
        let cloud = r#"{"specversion":"1.0","id":"c","type":"a","source":"s"}"#;
        assert_eq!(event_id(&named, cloud), "c@s");
    }

    #[test]
    fn a_cloud_event_may_be_in_the_headers() {
        let pairs = [
            ("ce-specversion", "1.0"),
            ("ce-id", "c"),
            ("ce-type", "a"),
            ("ce-source", "s"),
            ("Nats-Msg-Id", "m"),
        ];
        let event = read(&headers(&pairs), br#"{"n":1}"#).unwrap();
        assert_eq!((event.event_id.as_str(), &event.payload["n"]), ("c@s", &Value::from(1)));
        assert_eq!(event.occurred_at, None);
    }

    #[test]
    fn what_is_no_event_is_refused_with_or_without_an_id() {
        for pairs in [&[][..], &[("Nats-Msg-Id", "m-1")]] {
            let wide = r#"{"type":"a","source":"s","payload":{"n":123456789012345678901}}"#;
            for payload in ["garbage", "[]", r#"{"type":"a"}"#, wide] {
                let error = read(&headers(pairs), payload.as_bytes()).unwrap_err();
                assert_eq!(error.code(), "SF-0701", "{payload}");
            }
        }
    }
}
