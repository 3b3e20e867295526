//! A connector as the fabric keeps it: what it says of itself is read once, when it is added, and
//! what it is asked later is asked as the user's code.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::{Connector, Inbound, Limits, Operation, Outbound, Probe};
use crate::caught::{self, Code};
use crate::error::Result;
use crate::retry::Retry;

/// A connector of the user's.
pub(super) struct Known {
    connector: Arc<dyn Connector>,
    name: String,
    scope: Vec<Operation>,
    limits: Limits,
    retry: Retry,
}

impl Known {
    /// Reads what it says of itself. A panic there refuses the connector.
    pub(super) fn read(connector: Arc<dyn Connector>) -> Result<Self> {
        let own = || connector.name().to_owned();
        let name = caught::call(Code("the name of a connector", ""), own)?;
        let of = Code("connector", &name);
        let scope = caught::call(of, || connector.scope().to_vec())?;
        let limits = caught::call(of, || connector.limits())?;
        let retry = caught::call(of, || connector.retry())?;
        Ok(Self { connector, name, scope, limits, retry })
    }
}

impl Connector for Known {
    fn name(&self) -> &str {
        &self.name
    }

    fn scope(&self) -> &[Operation] {
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        let of = Code("connector", &self.name);
        let sent = caught::future(of, || self.connector.send(request));
        Box::pin(async { sent.await.flatten() })
    }

    fn probe<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Probe>> {
        let of = Code("probe of connector", &self.name);
        let asked = caught::future(of, || self.connector.probe(request));
        Box::pin(async { asked.await.flatten() })
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn retry(&self) -> Retry {
        self.retry.clone()
    }
}
