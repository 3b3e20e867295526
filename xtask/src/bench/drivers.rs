//! The drivers: built once, run with a database of their own each time.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::plan::{Case, Engine, Store};
use super::restate::Restate;
use crate::servers::{Kind, Servers};
use crate::tree::workspace_root;

/// A driver that takes longer is not going to end.
const LIMIT: Duration = Duration::from_secs(400);

/// What a driver said.
#[derive(Debug, Clone)]
pub(super) struct Outcome(Value);

impl Outcome {
    pub(super) fn value(&self) -> f64 {
        self.detail("value").unwrap_or(f64::NAN)
    }

    pub(super) fn detail(&self, name: &str) -> Option<f64> {
        self.0.get(name).and_then(Value::as_f64)
    }
}

/// Every driver that is needed, and where databases are made for them.
pub(super) struct Drivers<'a> {
    programs: PathBuf,
    peers: PathBuf,
    servers: &'a Servers,
    folder: tempfile::TempDir,
    restate: Option<Restate>,
    databases: usize,
}

impl<'a> Drivers<'a> {
    /// Builds the drivers of these engines. Peers are workspaces of their own, because some pin
    /// versions that cannot stand beside ours in one lockfile.
    pub(super) fn build(engines: &BTreeSet<Engine>, servers: &'a Servers) -> Result<Self> {
        let root = workspace_root()?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| root.join("target"));
        let peers = target.join("bench");
        for engine in engines {
            eprintln!("bench: building {}", engine.word());
            match engine {
                Engine::Ours => cargo(&root, &target, &["-p", "bench-ours"])?,
                Engine::Ceiling => cargo(&root, &target, &["-p", "bench-ceiling"])?,
                peer => cargo(&root.join("bench/peers").join(peer.word()), &peers, &["--locked"])?,
            }
        }
        let restate = match engines.contains(&Engine::Restate) {
            true => Some(Restate::install(&peers)?),
            false => None,
        };
        let folder = tempfile::Builder::new().prefix("steadfast-bench-").tempdir()?;
        let (programs, peers) = (target.join("release"), peers.join("release"));
        Ok(Self { programs, peers, servers, folder, restate, databases: 0 })
    }

    /// Runs a case once. `None` when the driver gave up: that is its answer.
    pub(super) fn run(
        &mut self,
        engine: Engine,
        case: &Case,
        store: Store,
        quick: bool,
    ) -> Result<Option<Outcome>> {
        let mut url = String::new();
        let mut more = Vec::new();
        if let (Engine::Restate, Some(restate)) = (engine, &mut self.restate) {
            more = restate.fresh(case, self.folder.path())?;
        } else {
            url = self.fresh_database(engine, store)?;
        }
        if case.history > 0 {
            self.call(engine, "fill", case.history, case, &url, &more, quick)?;
        }
        let n = match (quick, engine) {
            (true, _) => case.n[2],
            (false, Engine::Ours) => case.n[0],
            (false, _) => case.n[1],
        };
        let mut word = case.word.to_owned();
        if word == "w5" {
            // It kills itself, so there is no answer to read.
            self.call(engine, "w5-before", n, case, &url, &more, quick)?;
            if let (Engine::Restate, Some(restate)) = (engine, &mut self.restate) {
                restate.again()?;
            }
            word = "w5-after".to_owned();
        }
        let said = self.call(engine, &word, n, case, &url, &more, quick)?;
        if said.is_none() {
            eprintln!(
                "bench: {} gave no answer to {} {}",
                engine.word(),
                case.workload,
                case.variant
            );
        }
        Ok(said)
    }

    /// A database that nobody used before.
    fn fresh_database(&mut self, engine: Engine, store: Store) -> Result<String> {
        self.databases += 1;
        let name = format!("bench_{}", self.databases);
        match (engine, store) {
            (Engine::Dbos, _) | (_, Store::Postgres) => {
                self.servers.fresh_database(Kind::Postgres, &name)
            }
            (_, Store::Mysql) => self.servers.fresh_database(Kind::Mariadb, &name),
            (_, Store::Sqlite) => {
                let file = self.folder.path().join(format!("{name}.db"));
                Ok(format!("sqlite://{}", file.display()))
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "they are the driver's own")]
    fn call(
        &self,
        engine: Engine,
        word: &str,
        n: usize,
        case: &Case,
        url: &str,
        more: &[String],
        quick: bool,
    ) -> Result<Option<Outcome>> {
        let program = match engine {
            Engine::Ours => self.programs.join("bench-ours"),
            Engine::Ceiling => self.programs.join("bench-ceiling"),
            peer => self.peers.join(format!("peer-{}", peer.word())),
        };
        let mut command = Command::new(&program);
        command.arg(word);
        if !url.is_empty() {
            command.args(["--url", url]);
        }
        command.args(["--n", &n.to_string(), "--conc", &case.conc.to_string()]);
        command
            .args(["--secs", if quick { "3" } else { "8" }])
            .arg("--dir")
            .arg(self.folder.path());
        command.args(more).env("RUST_LOG", "error").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("starting {}", program.display()))?;
        let mut output = child.stdout.take().context("its output is a pipe")?;
        let reader = thread::spawn(move || {
            let mut text = String::new();
            // What was read before an error is what there is.
            let _ = output.read_to_string(&mut text);
            text
        });
        let status = wait(&mut child)?;
        let text = reader.join().unwrap_or_default();
        if status.is_none() {
            eprintln!("bench: {} did not end in {LIMIT:?}", program.display());
        }
        let last = text.lines().rev().find(|line| line.starts_with('{'));
        Ok(last.and_then(|line| serde_json::from_str(line).ok()).map(Outcome))
    }
}

fn wait(child: &mut std::process::Child) -> Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn cargo(folder: &Path, target: &Path, args: &[&str]) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet"])
        .args(args)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .status()?;
    if !status.success() {
        bail!("building in {} failed", folder.display());
    }
    Ok(())
}
