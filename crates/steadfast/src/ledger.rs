//! The ledger: effects and calls as they are kept, and what a person says of an effect that nobody
//! knows about.

use steadfast_core::{EffectStatus, Error, ErrorClass, Result, key, limits};
use steadfast_store::op::{
    self, EffectRow, InvocationRow, ListEffects, ListInvocations, Resolve, ResolvedEffect, Truth,
};

use crate::client::Client;

/// Most batches of meters removed at once; the rest is for the next time.
const SWEEPS: usize = 20;

impl Client {
    /// Removes what was counted for days and commands that are long over; gives how many meters
    /// that were. The fabric does this by itself, now and then.
    pub async fn sweep_meters(&self) -> Result<u64> {
        let mut swept = 0;
        for _ in 0..SWEEPS {
            let (workspace, now) = (self.inner.workspace().to_owned(), self.inner.now());
            let limit = limits::PURGE_BATCH;
            let count = self.inner.ask(op::SweepMeters { workspace, limit, now }).await?.0;
            swept += count;
            if count < limit as u64 {
                break;
            }
        }
        Ok(swept)
    }

    /// Effects, in the order of their commands.
    pub async fn effects(&self, mut which: ListEffects) -> Result<Vec<EffectRow>> {
        self.inner.workspace().clone_into(&mut which.workspace);
        Ok(self.inner.ask(which).await?.0)
    }

    /// Calls of connectors, oldest first.
    pub async fn invocations(&self, mut which: ListInvocations) -> Result<Vec<InvocationRow>> {
        self.inner.workspace().clone_into(&mut which.workspace);
        Ok(self.inner.ask(which).await?.0)
    }

    /// Says what became of an effect whose outcome nobody knows: its run goes on from there.
    pub async fn resolve_effect(
        &self,
        effect_id: &str,
        truth: Truth,
        actor: &str,
        reason: &str,
    ) -> Result<()> {
        key::check("actor", actor)?;
        let resolve = Resolve {
            workspace: self.inner.workspace().to_owned(),
            effect_id: effect_id.to_owned(),
            truth,
            actor: actor.to_owned(),
            reason: reason.to_owned(),
            now: self.inner.now(),
        };
        match self.inner.ask(resolve).await? {
            ResolvedEffect::Done => {
                self.inner.ring();
                Ok(())
            }
            ResolvedEffect::Known(status) => Err(known(effect_id, status)),
            ResolvedEffect::NotFound => {
                let text = format!("there is no effect \"{effect_id}\"");
                Err(Error::new(ErrorClass::NotFound, "SF-0834", text))
            }
        }
    }
}

fn known(effect_id: &str, status: EffectStatus) -> Error {
    let text = format!("effect \"{effect_id}\" is {status}; there is nothing to resolve");
    Error::new(ErrorClass::Conflict, "SF-0835", text)
}
