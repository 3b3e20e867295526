//! Sinks: where events go, as a program says it.
//!
//! ```
//! # use steadfast::{Sink, Steadfast};
//! let fabric = Steadfast::open("sqlite::memory:")
//!     .sink(Sink::file("log", "/var/log/steadfast.jsonl").types(["command.*"]));
//! # drop(fabric);
//! ```

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use steadfast_core::caught::{self, Code};
use steadfast_core::event::CloudEvent;
use steadfast_core::sink::{Delivery, SinkTarget};
use steadfast_core::{Error, ErrorClass, Result, Timestamp, key, limits};
use steadfast_store::op::SinkFrom;

/// A place that gets events, with what it gets.
#[derive(Clone)]
pub struct Sink {
    pub(crate) name: String,
    pub(crate) target: Arc<dyn SinkTarget>,
    pub(crate) from: SinkFrom,
    pub(crate) attempts: u32,
    types: Vec<String>,
    purposes: Vec<String>,
}

impl Sink {
    /// A sink with a name of its own: under it the store keeps how far it got.
    pub fn new(name: impl Into<String>, target: impl SinkTarget) -> Self {
        Self {
            name: name.into(),
            target: Arc::new(target),
            from: SinkFrom::Now,
            attempts: limits::DELIVERY_ATTEMPTS,
            types: Vec::new(),
            purposes: Vec::new(),
        }
    }

    /// One event a line on the standard output, in the JSON format of CloudEvents.
    pub fn stdout(name: impl Into<String>) -> Self {
        Self::new(name, Lines(None))
    }

    /// One event a line at the end of a file, in the JSON format of CloudEvents.
    pub fn file(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self::new(name, Lines(Some(path.into())))
    }

    /// Only events of these types: `command.failed`, or `command.*`.
    pub fn types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        self.types.extend(types.into_iter().map(Into::into));
        self
    }

    /// Only events of this purpose: `event`, `audit` or `agent_step`. May be said for several.
    pub fn purpose(mut self, purpose: impl Into<String>) -> Self {
        self.purposes.push(purpose.into());
        self
    }

    /// When the sink is new, it begins with the first event that is still there, and not with the
    /// next one.
    pub fn from_beginning(mut self) -> Self {
        self.from = SinkFrom::Beginning;
        self
    }

    /// Attempts before an event becomes a dead letter: 12 by default, 1 at least.
    pub fn attempts(mut self, most: u32) -> Self {
        self.attempts = most;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        key::check("sink's name", &self.name)?;
        if self.name.len() > limits::SINK_BYTES {
            let text = format!("the sink's name is longer than {} bytes", limits::SINK_BYTES);
            return Err(Error::invalid("SF-0903", text));
        }
        if self.attempts == 0 {
            let text = format!("sink \"{}\" makes no attempt; 1 is the least", self.name);
            return Err(Error::invalid("SF-0903", text));
        }
        let unknown = self.purposes.iter().find(|p| !PURPOSES.contains(&p.as_str()));
        match unknown {
            None => Ok(()),
            Some(purpose) => {
                let text = format!("sink \"{}\": there is no purpose \"{purpose}\"", self.name);
                Err(Error::invalid("SF-0903", text))
            }
        }
    }

    /// What its target's code is called in errors.
    pub(crate) fn code(&self) -> Code<'_> {
        Code("sink", &self.name)
    }

    pub(crate) fn wants(&self, event: &CloudEvent) -> Result<bool> {
        let is = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => event.short_type().starts_with(beginning),
            None => event.short_type() == pattern,
        };
        let purpose = event.extension("purpose").unwrap_or_default();
        let listed = (self.types.is_empty() || self.types.iter().any(is))
            && (self.purposes.is_empty() || self.purposes.iter().any(|p| p == purpose));
        match listed {
            true => caught::call(self.code(), || self.target.wants(event)),
            false => Ok(false),
        }
    }
}

/// What an event may be for.
pub(crate) const PURPOSES: &[&str] = &["event", "audit", "agent_step"];

/// Refuses two sinks of one name.
pub(crate) fn check_all(sinks: &[Sink]) -> Result<()> {
    for (at, sink) in sinks.iter().enumerate() {
        sink.check()?;
        if sinks[..at].iter().any(|other| other.name == sink.name) {
            let text = format!("two sinks are called \"{}\"", sink.name);
            return Err(Error::invalid("SF-0903", text));
        }
    }
    Ok(())
}

/// Lines of JSON, in a file or on the standard output.
struct Lines(Option<PathBuf>);

impl SinkTarget for Lines {
    fn kind(&self) -> &'static str {
        if self.0.is_some() { "file" } else { "stdout" }
    }

    fn place(&self) -> String {
        self.0.as_ref().map_or_else(|| "-".to_owned(), |path| path.display().to_string())
    }

    fn send<'a>(&'a self, event: &'a CloudEvent, _now: Timestamp) -> BoxFuture<'a, Delivery> {
        let (path, line) = (self.0.clone(), format!("{}\n", event.to_json()));
        // Apart, because a disk may keep everybody waiting.
        let written = tokio::task::spawn_blocking(move || write(path.as_deref(), &line));
        Box::pin(async move {
            let why = match written.await {
                Ok(Ok(())) => return Delivery::Done,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            let text = format!("cannot write the line: {why}");
            let error = Error::new(ErrorClass::TransientConnectorError, "SF-0905", text);
            Delivery::Again { error, after: None }
        })
    }
}

fn write(path: Option<&std::path::Path>, line: &str) -> std::io::Result<()> {
    let Some(path) = path else {
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes())?;
        return out.flush();
    };
    // One write, so that the lines of two processes do not mix; and on the disk before it counts.
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())?;
    match file.sync_data() {
        // A pipe or a device has no disk.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}
