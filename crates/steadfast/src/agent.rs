//! Agents: their code proposes commands; others carry them out.

use std::sync::{Arc, OnceLock, Weak};

use serde::Serialize;
use steadfast_core::command::Ingress;
use steadfast_core::workflow::Call;
use steadfast_core::{Cx, Error, Result, json, key};

use crate::client::Client;

/// Where proposals go, while the fabric runs. It is part of what the fabric keeps, so it must not
/// keep the fabric.
#[derive(Clone, Default)]
pub(crate) struct Desk(Arc<OnceLock<Weak<Client>>>);

impl Desk {
    pub(crate) fn open(&self, client: &Arc<Client>) {
        self.0.get_or_init(|| Arc::downgrade(client));
    }

    fn client(&self) -> Result<Arc<Client>> {
        let client = self.0.get().and_then(Weak::upgrade);
        client.ok_or_else(|| Error::app("the fabric is not up"))
    }
}

/// Proposes a command from within a workflow, once, on behalf of who asked for the workflow. It is
/// judged as any other; its id is given back.
pub fn propose<P: Serialize + ?Sized>(cx: &Cx, command_type: &str, payload: &P) -> Call<String> {
    let made = json::value("the payload", payload);
    // Without a key of its own, the same proposal must still be the same command.
    let (cx, name, key) = (cx.clone(), command_type.to_owned(), cx.uuid());
    let body = {
        let cx = cx.clone();
        move || submit(cx.clone(), name.clone(), made.clone(), key.clone())
    };
    cx.step("propose", body).proposing(command_type)
}

async fn submit(
    cx: Cx,
    command_type: String,
    made: Result<serde_json::Value>,
    key: String,
) -> Result<String> {
    let client = cx.state::<Desk>()?.client()?;
    let payload = made?;
    let mut call = client
        .submit_named::<serde_json::Value>(&command_type, &payload)
        .requested_by(cx.context().requested_by.clone())
        .ingress(Ingress::AgentAction)
        .correlation_id(cx.context().correlation_id.clone());
    if cx.context().dry_run {
        call = call.dry_run();
    }
    if client.contract(&command_type)?.key_template.is_none() {
        let own = format!("propose:{}", cx.run_id());
        call = call.key(key::derived(&own, &format!(":{key}")));
    }
    Ok(call.await?.id().to_owned())
}
