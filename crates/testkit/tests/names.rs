//! What two workers of one name log: neither goes on without a word.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steadfast::{Cx, Result, Steadfast};
use steadfast_testkit::db::TestDb;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;
    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

impl Lines {
    fn having(&self, text: &str) -> Vec<String> {
        let all = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

async fn idle(_: Cx, _: ()) -> Result<()> {
    Ok(())
}

/// On every database. A restart after a shutdown says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn both_workers_of_a_name_say_so() {
    let lines = Lines::default();
    let shown = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false);
    tracing::subscriber::set_global_default(shown.finish()).unwrap();
    for db in TestDb::all() {
        let name = format!("box-{:?}", db.kind());
        let start = async || {
            let fabric = Steadfast::open(&db.url).workflow(idle).worker_name(&name);
            fabric.lease(Duration::from_secs(2)).start().await.unwrap()
        };
        let over =
            format!("took the name \"{name}\" over from a worker that was last seen 0 s ago");
        start().await.shutdown().await;
        let first = start().await;
        assert_eq!(lines.having(&over), [] as [&str; 0], "it had signed off");
        let second = start().await;
        let warned = lines.having(&over);
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(warned[0].contains("WARN") && warned[0].contains(first.worker_id()), "{warned:?}");
        let fault = first.run_until_stopped().await.unwrap_err();
        assert_eq!(fault.code(), "SF-0309");
        let stopped = lines.having(&format!("was superseded by \"{}\"", second.worker_id()));
        assert_eq!(stopped.len(), 1, "{stopped:?}");
        assert!(stopped[0].contains("ERROR"), "{stopped:?}");
        second.shutdown().await;
    }
}
