//! Transactional steps and starts on SQLite.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use steadfast_core::workflow::Operation;
use steadfast_core::{Cx, Error, Result, json};
use steadfast_store::sqlite as store;

pub use store::rusqlite;

use crate::run::Run;
use crate::start::StartCall;

/// Runs SQL on the store's own database, in the commit that records the step. The body must neither
/// begin nor end a transaction; if it fails, its writes are taken back and the error is recorded.
pub fn transaction<T, E>(
    cx: &Cx,
    name: &str,
    body: impl Fn(&store::rusqlite::Connection) -> Result<T, E> + Send + Sync + 'static,
) -> Operation<T>
where
    T: Serialize + DeserializeOwned,
    E: fmt::Display + 'static,
{
    let work = store::Work::new(move |connection| {
        let value = body(connection).map_err(Error::from_any)?;
        json::encode("the step's result", &value)
    });
    cx.transaction(name, Box::new(work))
}

impl<T> StartCall<T> {
    /// Starts the run inside a transaction of the caller's on the store's database.
    pub fn in_sqlite(self, connection: &store::rusqlite::Connection) -> Result<Run<T>> {
        let (client, start) = self.into_op()?;
        let reply = store::start_in(connection, &start)?;
        Self::handle(client, &start, reply)
    }
}
