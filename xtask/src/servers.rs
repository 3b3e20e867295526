//! Private servers for one test run: databases, and NATS.
//!
//! Invariants: a server lives in a fresh folder on a free port of 127.0.0.1 and is owned by a guard
//! process (`guard`) that holds the other end of a pipe: when the pipe closes, because we are done,
//! failed, were interrupted or were killed, the guard stops the server and removes the folder.
//! Servers for tests skip every fsync they can; no test may judge the disk by them. Servers for
//! benchmarks, and those that tests kill, wait for the disk, as their own defaults say.

pub(crate) mod guard;
pub(crate) mod install;
mod mariadb;
mod nats;
mod postgres;

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long preparing the folder may take, and then coming up.
const PHASE_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// Somebody may take a free port between our look and the server's.
const ATTEMPTS: usize = 5;
/// A Unix socket's path has at most 107 bytes; this leaves room for our part of it.
const TEMP_BYTES_MAX: usize = 60;

/// Files in memory, on most systems.
const MEMORY: &str = "/dev/shm";
/// What a server's files may need, in MiB.
const ROOM_MIB: u64 = 1024;

/// What the tests need a server for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Postgres,
    Mariadb,
    Nats,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Postgres, Self::Mariadb, Self::Nats];
    /// Those that a store can live on.
    const DATABASES: [Self; 2] = [Self::Postgres, Self::Mariadb];

    /// Where the tests look for it.
    const fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "STEADFAST_TEST_POSTGRES_URL",
            Self::Mariadb => "STEADFAST_TEST_MYSQL_URL",
            Self::Nats => "STEADFAST_TEST_NATS_URL",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
            Self::Nats => "nats",
        }
    }

    fn url(self, port: u16) -> String {
        match self {
            Self::Postgres => postgres::url(port),
            Self::Mariadb => mariadb::url(port),
            Self::Nats => nats::url(port),
        }
    }

    /// Has the server carry out one statement; gives what it prints.
    fn ask(self, port: u16, sql: &str) -> Result<String> {
        match self {
            Self::Postgres => postgres::ask(port, sql),
            Self::Mariadb => mariadb::ask(port, sql),
            Self::Nats => bail!("NATS carries out no statements"),
        }
    }

    /// Whether the server in this folder answers on this port. Another run's server may answer in
    /// its place, so the answer has to name the folder.
    fn is_ready(self, folder: &Path, port: u16) -> bool {
        match self {
            Self::Postgres => postgres::is_ready(folder, port),
            Self::Mariadb => mariadb::is_ready(folder, port),
            Self::Nats => nats::is_ready(folder, port),
        }
    }
}

/// The servers of one run, and how the tests find them.
pub(crate) struct Servers {
    running: Vec<Server>,
}

impl Servers {
    /// Starts every server that no variable names yet.
    pub(crate) fn start() -> Result<Self> {
        let needed: Vec<Kind> = Kind::ALL
            .into_iter()
            .filter(|kind| std::env::var_os(kind.variable()).is_none_or(|url| url.is_empty()))
            .collect();
        install::ensure(&needed)?;
        let started: Vec<Result<Server>> = thread::scope(|scope| {
            let starts: Vec<_> = needed
                .iter()
                .map(|kind| scope.spawn(|| Server::start(*kind, Durability::Skipped, Death::Final)))
                .collect();
            starts
                .into_iter()
                .map(|start| start.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        Ok(Self { running: started.into_iter().collect::<Result<_>>()? })
    }

    /// Starts one database of each kind that is durable, whatever the variables say.
    pub(crate) fn start_durable() -> Result<Self> {
        let kinds = Kind::DATABASES;
        install::ensure(&kinds)?;
        let started =
            kinds.into_iter().map(|kind| Server::start(kind, Durability::Full, Death::Final));
        Ok(Self { running: started.collect::<Result<_>>()? })
    }

    fn server(&self, kind: Kind) -> Result<&Server> {
        self.running.iter().find(|server| server.kind == kind).context("it was started")
    }

    /// A new, empty database; gives its URL.
    pub(crate) fn fresh_database(&self, kind: Kind, name: &str) -> Result<String> {
        let port = self.server(kind)?.port;
        kind.ask(port, &format!("CREATE DATABASE {name}"))?;
        if kind == Kind::Postgres {
            // What earlier databases left to be written must not be this one's burden.
            kind.ask(port, "CHECKPOINT")?;
        }
        let (server, _) = kind.url(port).rsplit_once('/').map(own).context("a URL has a path")?;
        Ok(format!("{server}/{name}"))
    }

    /// What the servers say of waiting for the disk.
    pub(crate) fn durability(&self) -> Vec<String> {
        let said = |server: &Server| {
            let [ask, what] = match server.kind {
                Kind::Nats => return "NATS, not asked".to_owned(),
                Kind::Postgres => [
                    "SELECT string_agg(setting, ', ' ORDER BY name) FROM pg_settings \
                     WHERE name IN ('fsync', 'synchronous_commit')",
                    "Postgres, fsync and synchronous_commit",
                ],
                Kind::Mariadb => [
                    "SELECT @@innodb_flush_log_at_trx_commit",
                    "MariaDB, innodb_flush_log_at_trx_commit",
                ],
            };
            let answer = server.kind.ask(server.port, ask);
            format!("{what}: {}", answer.unwrap_or_else(|error| format!("{error:#}")))
        };
        self.running.iter().map(said).collect()
    }

    /// The variables that name the servers started here.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.running.iter().map(|server| (server.kind.variable(), server.kind.url(server.port)))
    }
}

/// Runs one durable database for a test that kills it, until standard input closes. Its URL and the
/// file with its process id are the two lines that are printed once it answers.
pub(crate) fn serve(kind: Kind) -> Result<u8> {
    install::ensure(&[kind])?;
    let server = Server::start(kind, Durability::Full, Death::Revived)?;
    let pid_file = match kind {
        Kind::Postgres => postgres::pid_file(&server.folder),
        Kind::Mariadb => mariadb::pid_file(&server.folder),
        Kind::Nats => bail!("only databases are killed by tests"),
    };
    println!("{}\n{}", kind.url(server.port), pid_file.display());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(0)
}

fn own((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// Whether a server waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Not even where it would by itself.
    Skipped,
    /// As it does by itself.
    Full,
}

/// What becomes of a server that was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// It stays dead.
    Final,
    /// Its guard starts it again on the same data.
    Revived,
}

/// One running server; dropping it stops it.
struct Server {
    kind: Kind,
    folder: PathBuf,
    port: u16,
    guard: Child,
}

enum Start {
    Ready,
    /// The server gave up by itself, most likely because the port was taken.
    Ended,
}

impl Server {
    fn start(kind: Kind, durability: Durability, death: Death) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let mut server = Self::spawn(kind, durability, death)?;
            match server.wait_until_ready()? {
                Start::Ready => return Ok(server),
                Start::Ended => eprintln!("{}: trying another port", kind.word()),
            }
        }
        bail!("{} did not come up in {ATTEMPTS} attempts", kind.word())
    }

    fn spawn(kind: Kind, durability: Durability, death: Death) -> Result<Self> {
        let folder = fresh_folder(death)?;
        let port = free_port()?;
        let guard = Command::new(std::env::current_exe()?)
            .args(["guard", kind.word(), "--port", &port.to_string(), "--folder"])
            .arg(&folder)
            .args((durability == Durability::Full).then_some("--durable"))
            .args((death == Death::Revived).then_some("--revive"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Out of reach of Ctrl-C: the guard has to outlive us.
            .process_group(0)
            .spawn()
            .context("starting a guard")?;
        Ok(Self { kind, folder, port, guard })
    }

    fn wait_until_ready(&mut self) -> Result<Start> {
        let mut deadline = Instant::now() + PHASE_LIMIT;
        let mut prepared = false;
        while Instant::now() < deadline {
            if let Some(status) = self.guard.try_wait()? {
                if status.code() == Some(guard::SERVER_ENDED.into()) {
                    return Ok(Start::Ended);
                }
                bail!("{} could not be prepared ({status})", self.kind.word());
            }
            if !prepared && self.folder.join(guard::SERVER_LOG).exists() {
                prepared = true;
                deadline = Instant::now() + PHASE_LIMIT;
            }
            if prepared && self.kind.is_ready(&self.folder, self.port) {
                return Ok(Start::Ready);
            }
            thread::sleep(POLL);
        }
        guard::print_logs(&self.folder);
        bail!("{} did not answer within {PHASE_LIMIT:?}", self.kind.word())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        if let Err(error) = self.guard.wait() {
            eprintln!("waiting for the guard of {}: {error}", self.kind.word());
        }
    }
}

/// The guard removes it, since it outlives us. A server that is killed has its files in memory,
/// where there is room: what a killed process has written to its files survives it there as it does
/// on a disk, and the recovery, which waits for every file, takes milliseconds.
fn fresh_folder(death: Death) -> Result<PathBuf> {
    let mut base = match death {
        Death::Revived if has_room(MEMORY) => PathBuf::from(MEMORY),
        Death::Revived | Death::Final => std::env::temp_dir(),
    };
    if base.as_os_str().len() > TEMP_BYTES_MAX {
        base = PathBuf::from("/tmp");
    }
    // Servers answer with their real path; compare like with like.
    let base = fs::canonicalize(&base).with_context(|| format!("finding {}", base.display()))?;
    let folder = tempfile::Builder::new().prefix("steadfast-").tempdir_in(base)?;
    Ok(folder.keep())
}

/// Whether a folder is there and has room for a server's files.
fn has_room(folder: &str) -> bool {
    let free = output("df", &["--output=avail", "--block-size=1M", folder]);
    let free = free.ok().and_then(|text| text.lines().nth(1)?.trim().parse::<u64>().ok());
    free.is_some_and(|free| free >= ROOM_MIB)
}

pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a port")?;
    Ok(listener.local_addr()?.port())
}

/// Whether a client command succeeds and prints exactly this path.
fn answers(client: &mut Command, path: &Path) -> bool {
    let output = client.stdin(Stdio::null()).output();
    output.is_ok_and(|output| {
        let answer = String::from_utf8_lossy(&output.stdout);
        output.status.success() && Path::new(answer.trim()) == path
    })
}

/// A program on `PATH`, or in a folder that is often missing from an ordinary user's.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin", "/usr/libexec"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|folder| folder.join(name)).find(|p| p.is_file())
}

/// Standard output of a command that must succeed.
fn output(program: impl AsRef<OsStr>, args: &[&str]) -> Result<String> {
    let name = program.as_ref().display().to_string();
    let output =
        Command::new(program).args(args).output().with_context(|| format!("running {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn is_root() -> Result<bool> {
    Ok(output("id", &["-u"])? == "0")
}
