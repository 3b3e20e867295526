//! MariaDB: where it is, how it starts, how it answers.
//!
//! Invariants: no option file of the machine is read; the tests' account can do everything and
//! comes from 127.0.0.1 only.
//! Deliberately absent: a graceful stop. The data goes with the server, so the guard kills it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::guard::Plan;
use super::{answers, find_program, output};

const SETTINGS: &[&str] = &[
    "--bind-address=127.0.0.1",
    // 127.0.0.1 stays an address and does not become `localhost`.
    "--skip-name-resolve",
    "--skip-log-bin",
    "--max-connections=400",
    "--innodb-buffer-pool-size=256M",
];

/// Speed for durability: the data of a test is thrown away anyway.
const NOT_DURABLE: &[&str] = &["--innodb-flush-log-at-trx-commit=2"];

const ACCOUNT: &str = "
    CREATE USER IF NOT EXISTS steadfast@'127.0.0.1' IDENTIFIED BY 'steadfast';
    GRANT ALL PRIVILEGES ON *.* TO steadfast@'127.0.0.1' WITH GRANT OPTION;
";

pub(super) fn url(port: u16) -> String {
    format!("mysql://steadfast:steadfast@127.0.0.1:{port}/mysql")
}

/// The programs needed: server, installer, client.
pub(super) fn programs() -> Option<[PathBuf; 3]> {
    let [server, installer, client] =
        ["mariadbd", "mariadb-install-db", "mariadb"].map(find_program);
    Some([server?, installer?, client?])
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("mysql.sock")
}

fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// Its first line is the process id.
pub(super) fn pid_file(folder: &Path) -> PathBuf {
    folder.join("mysql.pid")
}

pub(super) fn plan(folder: &Path, port: u16, durable: bool) -> Result<Plan> {
    let [server, installer, _] = programs().context("no MariaDB found")?;
    let datadir = option("datadir", &folder.join("data"));
    let mut prepare = Command::new(installer);
    prepare.args(["--no-defaults", &datadir, "--auth-root-authentication-method=normal"]);
    prepare.arg("--skip-test-db");
    let mut serve = Command::new(server);
    serve.args(["--no-defaults", &datadir, &format!("--port={port}")]);
    serve.arg(option("socket", &socket(folder)));
    serve.arg(option("pid-file", &pid_file(folder)));
    serve.args(SETTINGS.iter().chain(NOT_DURABLE.iter().filter(|_| !durable)));
    Ok(Plan { account: "mysql", prepare: Some(prepare), serve, stop: None })
}

/// What the server prints for a statement.
pub(super) fn ask(port: u16, sql: &str) -> Result<String> {
    let [_, _, client] = programs().context("no MariaDB found")?;
    let port = format!("--port={port}");
    output(
        client,
        &[
            "--no-defaults",
            "--skip-column-names",
            "--batch",
            "--host=127.0.0.1",
            "--user=steadfast",
            "--password=steadfast",
            &port,
            "--execute",
            sql,
        ],
    )
}

pub(super) fn is_ready(folder: &Path, port: u16) -> bool {
    let Some([_, _, client]) = programs() else {
        return false;
    };
    // The socket lies in our folder and appears after the port is bound: it is surely our server.
    let account = Command::new(&client)
        .args(["--no-defaults", "--user=root", "--execute", ACCOUNT])
        .arg(option("socket", &socket(folder)))
        .stdin(Stdio::null())
        .output();
    if !account.is_ok_and(|output| output.status.success()) {
        return false;
    }
    let mut client = Command::new(&client);
    client
        .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", &format!("--port={port}")])
        .args(["--user=steadfast", "--password=steadfast", "--batch", "--skip-column-names"])
        .args(["--execute", "SELECT @@datadir"]);
    answers(&mut client, &folder.join("data"))
}
