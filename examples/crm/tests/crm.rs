//! The example against a real server, killed again and again: nothing is done twice.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crm::Crm;

fn spawn(store: &str, url: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_crm"))
        .args([store, url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs it to its end, killing it after ever longer times; gives how often, and what the last one
/// printed.
async fn through_kills(url: &str) -> (u32, String) {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("crm.db").display());
    let mut kills = 0;
    loop {
        let mut child = spawn(&store, url);
        let patience = Duration::from_millis(60) + Duration::from_millis(90) * kills;
        let ended = tokio::task::spawn_blocking(move || {
            let until = Instant::now() + patience;
            while Instant::now() < until {
                if child.try_wait().unwrap().is_some() {
                    return Some(child.wait_with_output().unwrap());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            // SIGKILL: it has no time for anything.
            child.kill().unwrap();
            child.wait().unwrap();
            None
        });
        if let Some(output) = ended.await.unwrap() {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            return (kills, String::from_utf8(output.stdout).unwrap());
        }
        kills += 1;
    }
}

/// R110, R112, R115, R122, R123
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_made_once_through_kills() {
    let crm = Crm::default();
    let url = crm.listen().await.unwrap();
    let (kills, told) = through_kills(&url).await;
    assert!(kills > 2, "it was too quick to be killed");
    assert!(told.contains("is succeeded"), "{told}");
    assert_eq!(crm.done(), ["POST /deals", "POST /mails", "POST /followups"]);
}

/// R110, R111
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_refused_is_taken_back_once_through_kills() {
    let crm = Crm::default();
    crm.refuse("POST /followups");
    let url = crm.listen().await.unwrap();
    let (_, told) = through_kills(&url).await;
    assert!(told.contains("is compensated") && told.contains("because: "), "{told}");
    let wanted = ["POST /deals", "POST /mails", "POST /apologies", "POST /deals/cancel"];
    assert_eq!(crm.done(), wanted);
}
