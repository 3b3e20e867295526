//! Taking back: the workflow that walks a command's effects in reverse and runs what undoes each.
//!
//! Invariants: what was left open is settled before anything is undone; then strictly one after the
//! other, the last effect first; each is noted as undone before the next begins, so a crash goes on
//! where it was; the first that cannot be undone ends the walk, and what was undone by then stays
//! on record.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_core::caught::{self, Code};
use steadfast_core::{Cx, EffectStatus, Error, ErrorClass, Result, limits};
use steadfast_store::op::ListEffects;
use steadfast_store::{OpenStore, StoreExt};

/// An effect to be taken back, as its compensation sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Undo {
    /// The effect's id.
    pub effect_id: String,
    /// Its type.
    pub effect_type: String,
    /// The key by which its receiver knows it.
    pub key: String,
    /// What it was done with.
    pub payload: Value,
    /// What it yielded.
    pub result: Value,
    /// The compensation's name.
    pub compensation: String,
}

/// The code of a compensation.
pub(crate) type Undoer = Arc<dyn Fn(Cx, Undo) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// The code of all compensations, by command type and name.
#[derive(Clone, Default)]
pub(crate) struct Undoers(pub(crate) BTreeMap<(String, String), Undoer>);

/// A plain function as a compensation.
pub(crate) fn undoer<F, Fut, E>(code: F) -> Undoer
where
    F: Fn(Cx, Undo) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: std::fmt::Display + 'static,
{
    Arc::new(move |cx, undo| {
        let made = code(cx, undo);
        Box::pin(async move { made.await.map_err(Error::from_any) })
    })
}

/// Where the ledger is read.
pub(crate) struct Ledger(pub(crate) OpenStore);

/// What the walk is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Walk {
    command_id: String,
}

/// The walk.
pub(crate) async fn compensate(cx: Cx, walk: Walk) -> Result<u64> {
    let undoers = cx.state::<Undoers>()?;
    let mut undone = 0;
    loop {
        let ledger = cx.state::<Ledger>()?;
        let (workspace, command_id) = (cx.workspace().to_owned(), walk.command_id.clone());
        // A step, not a read: what was undone before must be on record when the ledger is read.
        let found: Found = cx
            .step("effects_to_undo", move || {
                to_undo(ledger.clone(), workspace.clone(), command_id.clone())
            })
            .await?;
        if !found.open.is_empty() {
            // All at once, so that people see at once all that they are asked. What became of each
            // is in the ledger, which is read again.
            let settling = found.open.iter().map(|open| cx.settle(&open.effect_id, &open.of_type));
            futures::future::join_all(settling).await;
            continue;
        }
        if found.undo.is_empty() {
            return Ok(undone);
        }
        for undo in found.undo {
            let (name, effect_id) = (undo.compensation.clone(), undo.effect_id.clone());
            let at = (cx.context().command_type.clone(), name.clone());
            let Some(code) = undoers.0.get(&at) else {
                let text = format!("compensation \"{name}\" is not registered here");
                return Err(Error::new(ErrorClass::NotFound, "SF-0804", text));
            };
            let undone_so_far = undone;
            let own = cx.undoing(&effect_id, &name);
            let ended = caught::future(Code("compensation", &name), || code(own, undo)).await;
            ended.flatten().map_err(|e| halted(&name, undone_so_far, &e))?;
            cx.undone(&effect_id, &name).await?;
            undone += 1;
        }
    }
}

fn halted(name: &str, undone: u64, error: &Error) -> Error {
    let text = format!("compensation \"{name}\" failed, {undone} were undone before: {error}");
    Error::new(error.class(), "SF-0833", text).permanent()
}

/// What the ledger says is to be done.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Found {
    /// What may have been done: nobody can undo it before that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    open: Vec<Open>,
    /// What is to be undone, the last first.
    undo: Vec<Undo>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Open {
    effect_id: String,
    of_type: String,
}

async fn to_undo(ledger: Arc<Ledger>, workspace: String, command_id: String) -> Result<Found> {
    let list = ListEffects {
        workspace,
        command_id: Some(command_id),
        to_undo: true,
        last_first: true,
        limit: limits::PAGE_ROWS,
        ..ListEffects::default()
    };
    let effects = ledger.0.ask(list).await?.0;
    let mut found = Found::default();
    for effect in effects {
        if matches!(effect.status, EffectStatus::Executing | EffectStatus::Unknown) {
            found.open.push(Open { effect_id: effect.effect_id, of_type: effect.effect_type });
            continue;
        }
        let value = |text: &str| serde_json::from_str(text).unwrap_or_default();
        if let Some(compensation) = effect.compensation {
            found.undo.push(Undo {
                effect_id: effect.effect_id,
                effect_type: effect.effect_type,
                key: effect.idempotency_key,
                payload: value(&effect.payload),
                result: value(effect.result.as_deref().unwrap_or("null")),
                compensation,
            });
        }
    }
    Ok(found)
}
