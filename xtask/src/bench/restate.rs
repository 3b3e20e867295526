//! The Restate server: installed from npm, started on free ports, killed with us.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::plan::Case;
use crate::servers::free_port;

const PACKAGE: &str = "@restatedev/restate-server@1.7.12";
const PROGRAM: &str = "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server";
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Restate {
    program: PathBuf,
    running: Option<Running>,
    started: usize,
}

struct Running {
    server: Child,
    data: PathBuf,
    ports: [u16; 4],
    invocations: Option<usize>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be dead already: one workload kills it.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Restate {
    /// Installs the server beside the drivers, unless it is there.
    pub(super) fn install(folder: &Path) -> Result<Self> {
        let home = folder.join("restate");
        let program = home.join(PROGRAM);
        if !program.is_file() {
            std::fs::create_dir_all(&home)?;
            let status = Command::new("npm")
                .args(["install", "--ignore-scripts", "--silent", "--prefix"])
                .arg(&home)
                .arg(PACKAGE)
                .stdout(Stdio::null())
                .status()
                .context("running npm, which the Restate server comes by")?;
            if !status.success() || !program.is_file() {
                bail!("npm could not install {PACKAGE}");
            }
        }
        Ok(Self { program, running: None, started: 0 })
    }

    /// A server with an empty store; gives the driver's further arguments.
    pub(super) fn fresh(&mut self, case: &Case, folder: &Path) -> Result<Vec<String>> {
        self.running = None;
        self.started += 1;
        let data = folder.join(format!("restate-{}", self.started));
        std::fs::create_dir_all(&data)?;
        let ports = [free_port()?, free_port()?, free_port()?, free_port()?];
        let invocations = match case.word {
            "w3" => Some(100),
            "w4" | "w5" => Some(case.n[1]),
            _ => None,
        };
        let server = start(&self.program, &data, ports, invocations)?;
        let running = Running { server, data, ports, invocations };
        let [_, ingress, admin, endpoint] = ports;
        wait_for(ingress, "/restate/health")?;
        wait_for(admin, "/health")?;
        let pid = running.server.id();
        self.running = Some(running);
        let words = format!(
            "--url http://127.0.0.1:{ingress} --admin http://127.0.0.1:{admin} \
             --endpoint-port {endpoint} --server-pid {pid}"
        );
        Ok(words.split(' ').map(str::to_owned).collect())
    }

    /// The same server again, after it was killed. Not waited for: its start counts.
    pub(super) fn again(&mut self) -> Result<()> {
        let running = self.running.as_mut().context("a server that was started before")?;
        running.server.wait()?;
        running.server = start(&self.program, &running.data, running.ports, running.invocations)?;
        Ok(())
    }
}

fn start(
    program: &Path,
    data: &Path,
    ports: [u16; 4],
    invocations: Option<usize>,
) -> Result<Child> {
    let [node, ingress, admin, _] = ports;
    let mut command = Command::new(program);
    command.arg("--base-dir").arg(data).args(["--node-name", "n1"]);
    command.envs([
        ("RESTATE_BIND_IP", "127.0.0.1".to_owned()),
        ("RESTATE_ADVERTISED_HOST", "127.0.0.1".to_owned()),
        ("RESTATE_LISTEN_MODE", "tcp".to_owned()),
        ("RESTATE_BIND_PORT", node.to_string()),
        ("RESTATE_INGRESS__BIND_PORT", ingress.to_string()),
        ("RESTATE_ADMIN__BIND_PORT", admin.to_string()),
        ("RESTATE_DISABLE_TELEMETRY", "true".to_owned()),
        ("RESTATE_LOG_FILTER", "warn".to_owned()),
    ]);
    if let Some(most) = invocations {
        let name = "RESTATE_WORKER__INVOKER__CONCURRENT_INVOCATIONS_LIMIT";
        command.env(name, most.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("starting the Restate server")
}

fn wait_for(port: u16, path: &str) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if answers(port, path).is_ok_and(|yes| yes) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("the Restate server did not answer {path} within {PATIENCE:?}")
}

fn answers(port: u16, path: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    Ok(&head == b"HTTP/1.1 200")
}
