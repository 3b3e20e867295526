//! W8: several processes serve one queue.

use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bench_kit::{Args, report, round};
use serde_json::json;
use steadfast::{Client, Result, Steadfast};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::{DONE, QUEUE, queue, single, start_all};

/// Fills a paused queue, lets `conc` processes serve it together, and waits until it is empty.
pub(crate) async fn drain(args: &Args) -> Result<()> {
    let client = Client::connect(&args.url).await?;
    client.put_queue(queue().paused(true)).await?;
    start_all(&client, args.n, QUEUE, single).await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut servers = Vec::new();
    for number in 0..args.conc {
        let mut server = spawn(args, number).expect("this program can be started again");
        let lines = server.stdout.take().expect("its output is a pipe");
        let tell = tell.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(lines).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // Whoever listens has enough by then.
                let _ = tell.send((number, line));
            }
        });
        servers.push(server);
    }
    let mut ready = 0;
    while ready < args.conc {
        told.recv().await.expect("a server that starts says so");
        ready += 1;
    }
    let begun = Instant::now();
    client.put_queue(queue()).await?;
    let mut done = vec![0; args.conc];
    while done.iter().sum::<usize>() < args.n {
        let (number, line) = told.recv().await.expect("a server reports until the end");
        done[number] = line.parse().expect("a number of runs");
    }
    let took = begun.elapsed().as_secs_f64();
    for mut server in servers {
        server.kill().await.expect("a server can be stopped");
    }
    report(args.n as f64 / took, json!({ "shares": done, "seconds": round(took) }));
    Ok(())
}

fn spawn(args: &Args, number: usize) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["w8-serve", "--url", &args.url, "--n", &number.to_string()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// One of those processes: says that it is ready, and how many runs it has brought to their end.
#[allow(clippy::print_stdout, reason = "the lines are what the parent reads")]
pub(crate) async fn serve(args: &Args) -> Result<()> {
    let _fabric = Steadfast::open(args.url.as_str())
        .workflow(single)
        .worker_name(format!("bench-{}", args.n))
        .start()
        .await?;
    println!("ready");
    let mut told = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let done = DONE.load(Ordering::Relaxed);
        if done != told {
            println!("{done}");
            told = done;
        }
    }
}
