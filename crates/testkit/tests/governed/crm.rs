//! The other side: a CRM and a mail server that fail on purpose and count what was done to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::json;
use steadfast::connector::{Connector, Inbound, Operation, Outbound, Probe};
use steadfast::{Error, ErrorClass, Result, Retry};

use super::office::Ending;

/// The other side. Cloning it gives the same one.
#[derive(Clone)]
pub(crate) struct Crm {
    ending: Ending,
    state: Arc<Mutex<State>>,
    scope: Arc<Vec<Operation>>,
}

#[derive(Default)]
struct State {
    /// What was done, in order.
    done: Vec<String>,
    /// Answers by key, for those who honour keys.
    keys: BTreeMap<String, String>,
    /// How often each operation was asked for.
    asked: BTreeMap<String, u32>,
}

impl Crm {
    pub(crate) fn new(ending: Ending) -> Self {
        let scope = vec![
            Operation::write("POST /deals").keyed(),
            Operation::write("DELETE /deals").keyed(),
            // The mail server has no memory.
            Operation::write("POST /mails"),
            Operation::write("POST /apologies").keyed(),
            Operation::write("POST /followups").keyed(),
        ];
        Self { ending, state: Arc::default(), scope: Arc::new(scope) }
    }

    /// Whether people do not allow the mail here.
    pub(crate) fn rejects(&self) -> bool {
        self.ending == Ending::Rejected
    }

    /// Whether it has done what has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.state.lock().unwrap().keys.contains_key(key)
    }

    pub(crate) fn count(&self, operation: &str) -> usize {
        let state = self.state.lock().unwrap();
        state.done.iter().filter(|done| *done == operation).count()
    }

    /// What must have happened here.
    pub(crate) fn judge(&self, ending: Ending) -> Result<(), String> {
        let done = self.state.lock().unwrap().done.clone();
        let wanted: &[&str] = match ending {
            Ending::Sold | Ending::Forgetful => &["POST /deals", "POST /mails", "POST /followups"],
            // The follow-up is refused for good: an apology for the mail, then the deal goes.
            Ending::Refused => &["POST /deals", "POST /mails", "POST /apologies", "DELETE /deals"],
            // Nobody allowed the mail: only the deal is taken back.
            Ending::Rejected => &["POST /deals", "DELETE /deals"],
        };
        match done == wanted {
            true => Ok(()),
            false => Err(format!("the world saw {done:?}, not {wanted:?}")),
        }
    }

    fn answer(&self, request: &Outbound) -> Result<Inbound> {
        let mut state = self.state.lock().unwrap();
        let operation = request.operation.as_str();
        let asked = state.asked.entry(operation.to_owned()).or_default();
        *asked += 1;
        let transient =
            |text: &str| Err(Error::new(ErrorClass::TransientConnectorError, "SF-0001", text));
        // Each is down at first; the second time the answer is lost after the work was done.
        let lost = match (*asked, operation) {
            (1, op) if op != "POST /mails" => return transient("503"),
            (2, op) => op != "POST /mails",
            _ => false,
        };
        if self.ending == Ending::Refused && operation == "POST /followups" {
            let text = "403: no follow-ups for this customer";
            return Err(Error::new(ErrorClass::PermanentConnectorError, "SF-0001", text));
        }
        let key = request.key.clone().unwrap_or_default();
        let keyed = operation != "POST /mails" && self.ending != Ending::Forgetful;
        if !keyed || !state.keys.contains_key(&key) {
            state.done.push(operation.to_owned());
            state.keys.insert(key, operation.to_owned());
        }
        if lost {
            return transient("the connection was cut after the work was done");
        }
        let (output, actual) = (json!({ "ok": true }), operation.to_owned());
        Ok(Inbound::new(output, actual, "200"))
    }
}

impl Connector for Crm {
    fn name(&self) -> &str {
        "crm"
    }

    fn scope(&self) -> &[Operation] {
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        Box::pin(async move { self.answer(request) })
    }

    fn probe<'a>(&'a self, _: &'a Outbound) -> BoxFuture<'a, Result<Probe>> {
        Box::pin(std::future::ready(Ok(Probe::CannotTell)))
    }

    fn retry(&self) -> Retry {
        Retry::exponential(6, std::time::Duration::from_secs(1), 1.0)
    }
}
