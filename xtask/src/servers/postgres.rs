//! Postgres: where it is, how it starts, how it answers.
//!
//! Invariants: all programs come from one folder, so that they are of one version.
//! Deliberately absent: passwords; the server listens on this machine only, for one run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::guard::Plan;
use super::{answers, find_program, output};

const SETTINGS: &[&str] =
    &["max_connections=400", "shared_buffers=128MB", "listen_addresses=127.0.0.1"];
/// Speed for durability: the data of a test is thrown away anyway.
const NOT_DURABLE: &[&str] = &["fsync=off", "synchronous_commit=off", "full_page_writes=off"];

/// One folder per major version below.
const PACKAGED: &str = "/usr/lib/postgresql";
const PROGRAMS: &[&str] = &["initdb", "postgres", "pg_ctl", "psql"];

pub(super) fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

/// The folder of the newest packaged version, or of a `postgres` on the `PATH`.
pub(super) fn programs() -> Option<PathBuf> {
    let complete = |folder: &PathBuf| PROGRAMS.iter().all(|name| folder.join(name).is_file());
    let packaged = fs::read_dir(PACKAGED)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())))
        .map(|(version, path)| (version, path.join("bin")))
        .filter(|(_, folder)| complete(folder))
        .max_by_key(|(version, _)| *version)
        .map(|(_, folder)| folder);
    packaged.or_else(|| find_program("postgres")?.parent().map(Path::to_owned).filter(complete))
}

/// Its first line is the process id.
pub(super) fn pid_file(folder: &Path) -> PathBuf {
    folder.join("data/postmaster.pid")
}

pub(super) fn plan(folder: &Path, port: u16, durable: bool) -> Result<Plan> {
    let programs = programs().context("no Postgres found")?;
    let data = folder.join("data");
    let mut prepare = Command::new(programs.join("initdb"));
    prepare
        .args(["--auth=trust", "-U", "postgres", "--encoding=UTF8", "--no-sync", "--locale=C"])
        .arg("-D")
        .arg(&data);
    let mut serve = Command::new(programs.join("postgres"));
    serve.arg("-D").arg(&data).arg("-k").arg(folder).args(["-p", &port.to_string()]);
    let settings = SETTINGS.iter().chain(NOT_DURABLE.iter().filter(|_| !durable));
    serve.args(settings.flat_map(|setting| ["-c", setting]));
    let mut stop = Command::new(programs.join("pg_ctl"));
    stop.args(["stop", "--mode=immediate", "--no-wait", "-D"]).arg(&data);
    Ok(Plan { account: "postgres", prepare: Some(prepare), serve, stop: Some(stop) })
}

/// What the server prints for a statement.
pub(super) fn ask(port: u16, sql: &str) -> Result<String> {
    let programs = programs().context("no Postgres found")?;
    let url = url(port);
    output(
        programs.join("psql"),
        &["--no-psqlrc", "--no-align", "--tuples-only", "--dbname", &url, "--command", sql],
    )
}

pub(super) fn is_ready(folder: &Path, port: u16) -> bool {
    let Some(programs) = programs() else {
        return false;
    };
    let mut client = Command::new(programs.join("psql"));
    client
        .env("PGCONNECT_TIMEOUT", "2")
        .args(["--no-psqlrc", "--no-align", "--tuples-only", "--dbname", &url(port)])
        .args(["--command", "SHOW data_directory"]);
    answers(&mut client, &folder.join("data"))
}
