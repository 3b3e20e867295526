//! Transactional steps and starts on MySQL and MariaDB.

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use steadfast_core::workflow::Operation;
use steadfast_core::{Cx, Result, json};
use steadfast_store::mysql as store;

pub use store::{failed, mysql_async};

use crate::run::Run;
use crate::start::StartCall;

/// Runs SQL on the store's own database, in the commit that records the step. The body must not end
/// the transaction; if it fails, its writes are taken back and the error is recorded. Pass driver
/// errors through [`failed`], so that those which may pass are tried again.
pub fn transaction<T, F>(cx: &Cx, name: &str, body: F) -> Operation<T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
    F: for<'a> Fn(&'a mut store::mysql_async::Transaction<'_>) -> BoxFuture<'a, Result<T>>
        + Send
        + Sync
        + 'static,
{
    let work = store::Work::new(move |tx| {
        let made = body(tx);
        Box::pin(async move { json::encode("the step's result", &made.await?) })
    });
    cx.transaction(name, Box::new(work))
}

impl<T> StartCall<T> {
    /// Starts the run inside a transaction of the caller's on the store's database.
    pub async fn in_mysql(self, tx: &mut store::mysql_async::Transaction<'_>) -> Result<Run<T>> {
        let (client, start) = self.into_op()?;
        let reply = store::start_in(tx, &start).await?;
        Self::handle(client, &start, reply)
    }
}
