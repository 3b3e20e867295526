//! One server's keeper: prepares its folder, runs it, and ends it when standard input closes.
//!
//! Invariants: the pipe is the only signal, so the death of our parent, by whatever cause, is the
//! order to stop; whatever happens, the folder is gone when the guard is.
//! A server that ends by itself is reported and left to the parent; one that was killed is started
//! again on the same data where the parent asked for that.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Kind, is_root, mariadb, nats, output, postgres};

/// The exit code for a server that ended although nobody asked.
pub(crate) const SERVER_ENDED: u8 = 3;
pub(crate) const SERVER_LOG: &str = "server.log";
const PREPARE_LOG: &str = "prepare.log";

const POLL: Duration = Duration::from_millis(50);
const STOP_LIMIT: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    kind: Kind,
    #[arg(long)]
    port: u16,
    /// Fresh and ours: removed at the end.
    #[arg(long)]
    folder: PathBuf,
    /// Wait for the disk.
    #[arg(long)]
    durable: bool,
    /// Start the server again when it was killed.
    #[arg(long)]
    revive: bool,
}

/// How to run one kind of server.
pub(super) struct Plan {
    /// Who runs it when we are root; no database wants to be root.
    pub(super) account: &'static str,
    /// Fills the folder, where the server does not do that by itself.
    pub(super) prepare: Option<Command>,
    pub(super) serve: Command,
    /// Asks the server to go at once; a server without one is killed.
    pub(super) stop: Option<Command>,
}

pub(crate) fn run(args: &Args) -> Result<u8> {
    let closed = closed_input();
    let outcome = keep(args, &closed);
    if !matches!(outcome, Ok(0)) {
        print_logs(&args.folder);
    }
    fs::remove_dir_all(&args.folder)
        .with_context(|| format!("removing {}", args.folder.display()))?;
    outcome
}

fn keep(args: &Args, closed: &Receiver<()>) -> Result<u8> {
    let mut plan = match args.kind {
        Kind::Postgres => postgres::plan(&args.folder, args.port, args.durable)?,
        Kind::Mariadb => mariadb::plan(&args.folder, args.port, args.durable)?,
        Kind::Nats => nats::plan(&args.folder, args.port)?,
    };
    let owner = owner(&plan)?;
    if let Some((user, group)) = owner {
        std::os::unix::fs::chown(&args.folder, Some(user), Some(group))?;
    }
    let start = |command: &mut Command, log: &str| -> Result<Child> {
        spawn(command, &args.folder, log, owner)
    };
    // Not interrupted: it takes a second, and half a folder is harder to remove than a whole one.
    if let Some(prepare) = &mut plan.prepare
        && !start(prepare, PREPARE_LOG)?.wait()?.success()
    {
        bail!("preparing {} failed", args.folder.display());
    }
    if has_closed(closed, Duration::ZERO) {
        return Ok(0);
    }
    let (mut server, mut was_killed) = (start(&mut plan.serve, SERVER_LOG)?, false);
    while !has_closed(closed, POLL) {
        let Some(status) = server.try_wait()? else { continue };
        // Once killed, it is tried again and again: at first it may find what is left of its
        // processes in the way.
        was_killed |= status.signal().is_some();
        if !(args.revive && was_killed) {
            return Ok(SERVER_ENDED);
        }
        server = start(&mut plan.serve, SERVER_LOG)?;
    }
    // Asked more than once: a server that has only just started does not listen yet.
    let deadline = Instant::now() + STOP_LIMIT;
    while let Some(stop) = &mut plan.stop
        && server.try_wait()?.is_none()
        && Instant::now() < deadline
    {
        start(stop, PREPARE_LOG)?.wait()?;
        thread::sleep(POLL);
    }
    // Harmless when it has ended already.
    server.kill()?;
    server.wait()?;
    Ok(0)
}

fn has_closed(closed: &Receiver<()>, within: Duration) -> bool {
    !matches!(closed.recv_timeout(within), Err(RecvTimeoutError::Timeout))
}

/// Whom the server runs as, when that is not us.
fn owner(plan: &Plan) -> Result<Option<(u32, u32)>> {
    if !is_root()? {
        return Ok(None);
    }
    let id = |flag| -> Result<u32> { Ok(output("id", &[flag, plan.account])?.parse()?) };
    Ok(Some((id("-u")?, id("-g")?)))
}

fn spawn(
    command: &mut Command,
    folder: &Path,
    log: &str,
    owner: Option<(u32, u32)>,
) -> Result<Child> {
    let log = File::options().create(true).append(true).open(folder.join(log))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // The account may not be able to enter our current folder, or the one for temporary files.
    command.current_dir(folder).env("TMPDIR", folder);
    if let Some((user, group)) = owner {
        command.uid(user).gid(group);
    }
    let program = command.get_program().to_owned();
    command.spawn().with_context(|| format!("starting {}", program.display()))
}

/// Hears when the other end of standard input is gone.
fn closed_input() -> Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut ignored = [0; 64];
        while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
        drop(sender);
    });
    receiver
}

/// What the server had to say, for a person to read.
pub(crate) fn print_logs(folder: &Path) {
    for log in [PREPARE_LOG, SERVER_LOG] {
        if let Ok(text) = fs::read_to_string(folder.join(log)) {
            eprintln!("--- {log}\n{}", text.trim_end());
        }
    }
}
