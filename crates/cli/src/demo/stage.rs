//! The stage: the vendor, the files, the worker's process, and the clock they share.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use steadfast::parts::store;
use steadfast::{Client, Env as _, Timestamp, TokioEnv};
use steadfast_sync::leap::LeapEnv;
use steadfast_sync::simulator::{FIELDS, Simulator};
use steadfast_sync::{Config, warehouse};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use super::NIGHTS;

pub(super) struct Stage {
    pub(super) dir: PathBuf,
    pub(super) url: String,
    pub(super) vendor: Simulator,
    pub(super) client: Client,
    pub(super) clock: Arc<LeapEnv>,
    /// The days whose sales are asked for.
    pub(super) dates: Vec<String>,
    config: Config,
    worker: Option<(Child, ChildStdin)>,
}

/// 03:00 of the day after: when a day's sales are asked for.
pub(super) fn fires_at(date: &str) -> anyhow::Result<Timestamp> {
    Ok(steadfast::parse_moment(date)?.after(Duration::from_secs((24 + 3) * 3600)))
}

impl Stage {
    /// Everything is there, and the worker waits for the first night.
    pub(super) async fn set(dir: PathBuf) -> anyhow::Result<Self> {
        let vendor = Simulator::new();
        let url = vendor.listen().await.context("the vendor cannot listen")?;
        let file = dir.join("steadfast.toml");
        std::fs::write(&file, configuration(&dir, &url))?;
        std::fs::write(dir.join("pager-key"), "the key of on-call\n")?;
        let config = Config::load(&file)?;
        warehouse::create(&config).await?;
        // The last night is the last one that is over by now, at 03:00 and two hours of trouble:
        // `sync status` shows all of them, and none after them.
        let over = TokioEnv::current().now().before(Duration::from_secs(5 * 3600));
        let day = |back: usize| over.utc_date(-i64::try_from(back).unwrap_or(0));
        let dates: Vec<String> = (1..=NIGHTS).rev().map(day).collect();
        let begin = fires_at(&dates[0])?.before(Duration::from_secs(60));
        let clock = LeapEnv::at(begin);
        let opened = store::open(&config.store.address()?).await?;
        let client = Client::over(clock.clone(), opened, config.store.workspace.as_str())?;
        let mut stage = Self { dir, url, vendor, client, clock, dates, config, worker: None };
        stage.start_worker().await?;
        Ok(stage)
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Starts the worker, and sees it ready.
    pub(super) async fn start_worker(&mut self) -> anyhow::Result<()> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program)
            .arg("demo-worker")
            .arg(self.dir.join("steadfast.toml"))
            .arg(format!("--ahead={}", self.clock.ahead_us()))
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take().context("the worker has no input")?;
        self.worker = Some((child, stdin));
        Ok(())
    }

    /// kill -9.
    pub(super) async fn kill_worker(&mut self) -> anyhow::Result<()> {
        if let Some((mut child, _)) = self.worker.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// Waits until on-call was told, for a while.
    pub(super) async fn paged(&mut self) -> anyhow::Result<usize> {
        let began = std::time::Instant::now();
        while self.vendor.pages() < super::FAILURES && began.elapsed() < Duration::from_secs(10) {
            // Whoever sends alerts looks each second.
            let next = self.clock.now().after(Duration::from_secs(1));
            self.leap_to(next).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(self.vendor.pages())
    }

    /// Ends the worker in order.
    pub(super) async fn end(&mut self) {
        if let Some((mut child, stdin)) = self.worker.take() {
            drop(stdin);
            let _ = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
        }
    }

    /// Tells the worker something.
    pub(super) async fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        if let Some((_, stdin)) = &mut self.worker {
            stdin.write_all(format!("{line}\n").as_bytes()).await?;
            stdin.flush().await?;
        }
        Ok(())
    }

    /// Leaps, here and there.
    pub(super) async fn leap_to(&mut self, at: Timestamp) -> anyhow::Result<()> {
        self.clock.leap_to(at);
        let ahead = self.clock.ahead_us();
        self.tell(&format!("ahead {ahead}")).await
    }
}

/// The configuration, for this vendor and these files.
fn configuration(dir: &Path, url: &str) -> String {
    let dir = dir.display();
    format!(
        "[store]\nurl = \"sqlite://{dir}/steadfast.db\"\nspool = \"{dir}/spool\"\n\n\
         [warehouse]\nurl = \"sqlite://{dir}/warehouse.db\"\n\n\
         [[vendor]]\nname = \"acme_sales\"\nbase_url = \"{url}\"\nallow_private = true\n\
         pagination = {{ style = \"cursor\", param = \"cursor\", next = \"next_cursor\" }}\n\n\
         [vendor.fields]\n{FIELDS}\n\
         [vendor.totals]\nrows = \"row_count\"\nrevenue = \"total_revenue\"\n\
         column = \"revenue\"\ntolerance = \"0.01\"\n\n\
         [alerts.pagerduty]\nurl = \"{url}/pager\"\nrouting_key = \"file:{dir}/pager-key\"\n"
    )
}
