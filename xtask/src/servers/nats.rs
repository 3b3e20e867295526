//! NATS with JetStream: where it is, how it starts, how it answers.
//!
//! Invariants: the server is named after its folder, and says its name to everybody who connects.
//! Deliberately absent: accounts; the server listens on this machine only, for one run.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::find_program;
use super::guard::Plan;

const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn url(port: u16) -> String {
    format!("nats://127.0.0.1:{port}")
}

pub(super) fn program() -> Option<PathBuf> {
    find_program("nats-server")
}

fn name(folder: &Path) -> Option<&str> {
    folder.file_name()?.to_str()
}

pub(super) fn plan(folder: &Path, port: u16) -> Result<Plan> {
    let mut serve = Command::new(program().context("no NATS found")?);
    serve
        .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
        .args(["--name", name(folder).context("the folder has a name")?])
        .args(["--jetstream", "--store_dir"])
        .arg(folder.join("data"));
    // It asks for no account of its own.
    Ok(Plan { account: "nobody", prepare: None, serve, stop: None })
}

/// The server speaks first: `INFO {"server_name":…}`.
pub(super) fn is_ready(folder: &Path, port: u16) -> bool {
    let hello = || -> Option<Value> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        serde_json::from_str(line.strip_prefix("INFO ")?).ok()
    };
    hello().is_some_and(|hello| {
        hello["jetstream"] == true && hello["server_name"].as_str() == name(folder)
    })
}
