//! HTTP: one vendor behind one base URL.
//!
//! Invariants: only operations of the scope are sent, each once (retries are the fabric's,
//! redirects are not followed, no proxy of the environment is used); a mutating operation carries
//! the key of its effect; the addresses that are connected to are public unless `allow_private`
//! was said; secrets are read for each request and appear nowhere else.
//! Deliberately absent: rates and breakers. All workers share those, so the store keeps them; here
//! they are only declared.

mod answer;
mod guard;
mod request;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url, redirect, retry};
use steadfast_core::connector::{
    self, Breaker, Connector, Inbound, Limits, Operation, Outbound, Rate,
};
use steadfast_core::error::{Error, ErrorClass, Result};
use steadfast_core::{Retry, key};

use self::answer::Exchange;
pub(crate) use self::answer::retry_after;
use self::guard::{Guard, Reach};
use crate::secret::{Secret, SecretRef};
use crate::trust;

/// How long one exchange may take, from the connection to the last byte.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// Largest answer: it is held in memory, and then some of it in the journal.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;
const USER_AGENT: &str = concat!("steadfast/", env!("CARGO_PKG_VERSION"));

/// The settings of an HTTP connector.
///
/// ```
/// use std::time::Duration;
/// use steadfast_connectors::Http;
/// use steadfast_core::connector::Operation;
///
/// let acme = Http::new("acme_sales", "http://api.acme.example/v1")
///     .allow(Operation::read("GET /sales/daily"))
///     .secret_header("authorization", "env:ACME_TOKEN", "Bearer {}")
///     .timeout(Duration::from_secs(20))
///     .rate(60, Duration::from_secs(60))
///     .breaker(5, Duration::from_secs(30))
///     .build()?;
/// # Ok::<_, steadfast_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Http {
    name: String,
    base: String,
    scope: Vec<Operation>,
    headers: Vec<(String, String)>,
    secrets: Vec<SecretHeader<String>>,
    timeout: Duration,
    limits: Limits,
    retry: Retry,
    answer_bytes: usize,
    cost_header: Option<String>,
    reach: Reach,
    authorities: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct SecretHeader<P> {
    name: String,
    place: P,
    form: String,
}

impl fmt::Debug for Http {
    /// Nobody has looked at the settings yet: any of them may hold a secret by mistake.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Http {
    /// A connector of this name, for what lies behind this URL. It may do nothing yet.
    pub fn new(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            base: base_url.into(),
            scope: Vec::new(),
            headers: Vec::new(),
            secrets: Vec::new(),
            timeout: TIMEOUT,
            limits: Limits::default(),
            retry: connector::default_retry(),
            answer_bytes: ANSWER_BYTES,
            cost_header: None,
            reach: Reach::Public,
            authorities: None,
        }
    }

    /// Adds an operation, such as `GET /sales/daily`, to what it is meant for.
    pub fn allow(mut self, operation: Operation) -> Self {
        self.scope.push(operation);
        self
    }

    /// Sends a header with every request.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends a secret with every request: `env:NAME` or `file:/path`, in a form like `Bearer {}`.
    pub fn secret_header(
        mut self,
        name: impl Into<String>,
        secret_ref: impl Into<String>,
        form: impl Into<String>,
    ) -> Self {
        let (name, place) = (name.into(), secret_ref.into());
        self.secrets.push(SecretHeader { name, place, form: form.into() });
        self
    }

    /// How long one exchange may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many calls all workers together may make in a time.
    pub fn rate(mut self, calls: u32, per: Duration) -> Self {
        self.limits.rate = Some(Rate { calls, per });
        self
    }

    /// After how many failures in a row nobody asks for how long.
    pub fn breaker(mut self, failures: u32, cool_down: Duration) -> Self {
        self.limits.breaker = Some(Breaker { failures, cool_down });
        self
    }

    /// How its operations are tried again where the contract does not say.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The largest answer, in bytes.
    pub fn answer_bytes(mut self, most: usize) -> Self {
        self.answer_bytes = most;
        self
    }

    /// The header in which the other side says what an answer cost, in units: budgets count that
    /// instead of the operation's price.
    pub fn cost_header(mut self, name: impl Into<String>) -> Self {
        self.cost_header = Some(name.into());
        self
    }

    /// Lets it connect to this machine and to private networks. For tests and intranets: with it,
    /// whoever controls the vendor's name can point it at your own servers.
    pub fn allow_private(mut self) -> Self {
        self.reach = Reach::Private;
        self
    }

    /// Trusts only who is vouched for by an authority of this PEM file, instead of those that the
    /// machine trusts: for a vendor with an authority of its own.
    pub fn trusting(mut self, pem_file: impl Into<PathBuf>) -> Self {
        self.authorities = Some(pem_file.into());
        self
    }

    /// Checks the settings; nothing is connected to.
    pub fn build(self) -> Result<HttpConnector> {
        key::check("connector", &self.name)?;
        let base = self.base_url()?;
        for operation in &self.scope {
            request::check_operation(operation).map_err(|e| self.wrong(e.message()))?;
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let (name, value) =
                request::plain_header(name, value).map_err(|e| self.wrong(e.message()))?;
            headers.insert(name, value);
        }
        let secrets = self.secrets.iter().map(|secret| self.secret(secret));
        let secrets = secrets.collect::<Result<_>>()?;
        if let Some(name) = &self.cost_header {
            HeaderName::from_bytes(name.as_bytes()).map_err(|e| self.wrong(e))?;
        }
        let client = self.client()?;
        let Self { name, scope, limits, retry, answer_bytes, cost_header, .. } = self;
        Ok(HttpConnector {
            name,
            base,
            scope,
            headers,
            secrets,
            client,
            limits,
            retry,
            answer_bytes,
            cost_header,
        })
    }

    fn client(&self) -> Result<Client> {
        let client = Client::builder()
            .user_agent(USER_AGENT)
            .timeout(self.timeout)
            .connect_timeout(CONNECT.min(self.timeout))
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            .no_proxy()
            .dns_resolver(Guard(self.reach));
        let client = match &self.authorities {
            Some(file) => trust::only(client, file).map_err(|e| self.wrong(e))?,
            None => client,
        };
        // Errors of the library say nothing about what was asked of it.
        client.build().map_err(|e| self.wrong(e))
    }

    fn base_url(&self) -> Result<Url> {
        // The text is not repeated before it is known to be free of secrets.
        let base = Url::parse(&self.base).map_err(|e| self.wrong(format!("base URL: {e}")))?;
        if !base.username().is_empty() || base.password().is_some() || base.query().is_some() {
            let why = "the base URL has a user or a query in it, which looks like a secret; use \
                       secret_header with env: or file:";
            return Err(Error::invalid("SF-0716", format!("connector \"{}\": {why}", self.name)));
        }
        match base.scheme() {
            "http" => {}
            "https" if cfg!(feature = "tls") => {}
            "https" => return Err(self.wrong("https needs the feature `tls`")),
            other => return Err(self.wrong(format!("\"{other}\" is not HTTP"))),
        }
        if base.fragment().is_some() || !base.has_host() {
            return Err(self.wrong("the base URL has no host, or a fragment"));
        }
        // Addresses in the URL are connected to without asking for a name.
        let host = base.host_str().unwrap_or_default();
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            self.reach.check(host, address).map_err(|refused| {
                let text = format!("connector \"{}\": {refused}", self.name);
                Error::new(ErrorClass::PolicyDenied, "SF-0711", text)
            })?;
        }
        Ok(base)
    }

    fn secret(&self, header: &SecretHeader<String>) -> Result<SecretHeader<SecretRef>> {
        let place = SecretRef::parse(&header.place)?;
        if header.form.matches("{}").count() != 1 {
            return Err(self.wrong("a secret's form has one {} in it"));
        }
        let name = header.name.to_ascii_lowercase();
        HeaderName::from_bytes(name.as_bytes()).map_err(|e| self.wrong(e))?;
        Ok(SecretHeader { name, place, form: header.form.clone() })
    }

    fn wrong(&self, why: impl fmt::Display) -> Error {
        Error::invalid("SF-0710", format!("connector \"{}\": {why}", self.name))
    }
}

/// A way out over HTTP.
#[derive(Debug, Clone)]
pub struct HttpConnector {
    name: String,
    base: Url,
    scope: Vec<Operation>,
    headers: HeaderMap,
    secrets: Vec<SecretHeader<SecretRef>>,
    client: Client,
    limits: Limits,
    retry: Retry,
    answer_bytes: usize,
    cost_header: Option<String>,
}

impl HttpConnector {
    async fn carry(&self, asked: &Outbound) -> Result<Inbound> {
        let operation = self.scope.iter().find(|operation| operation.is(&asked.operation));
        let operation =
            operation.ok_or_else(|| connector::out_of_scope(&self.name, &asked.operation))?;
        let mut request = request::build(&self.base, &self.headers, operation, asked)?;
        let mut secrets = Vec::with_capacity(self.secrets.len());
        for header in &self.secrets {
            let (value, secret) = header.read()?;
            let name = HeaderName::from_bytes(header.name.as_bytes());
            request.headers_mut().insert(name.map_err(|e| header.unfit(e))?, value);
            secrets.push(secret);
        }
        let exchange = Exchange {
            connector: &self.name,
            operation,
            actual: request::actual(&self.base, &request),
            secrets,
            bytes_max: self.answer_bytes,
            cost_header: self.cost_header.as_deref(),
        };
        match self.client.execute(request).await {
            Ok(response) => exchange.read(response).await,
            Err(error) => Err(exchange.failure(error)),
        }
    }
}

impl SecretHeader<SecretRef> {
    fn read(&self) -> Result<(HeaderValue, Secret)> {
        let secret = self.place.read()?;
        let text = self.form.replace("{}", secret.reveal());
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| self.unfit("it has characters that no header has"))?;
        // Keeps it out of whatever the HTTP library prints.
        value.set_sensitive(true);
        Ok((value, secret))
    }

    fn unfit(&self, why: impl fmt::Display) -> Error {
        let text = format!("the secret {} cannot be a header: {why}", self.place);
        Error::new(ErrorClass::PermanentConnectorError, "SF-0716", text)
    }
}

impl Connector for HttpConnector {
    fn name(&self) -> &str {
        &self.name
    }

    fn scope(&self) -> &[Operation] {
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        Box::pin(self.carry(request))
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn retry(&self) -> Retry {
        self.retry.clone()
    }
}
