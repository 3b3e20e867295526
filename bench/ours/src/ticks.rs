//! S1: one tick of the scheduler over many schedules, of which one in `conc` is due.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench_kit::{Args, report, round};
use serde_json::json;
use steadfast::parts::store::{self, StoreExt, op};
use steadfast::{Client, CommandType, Cron, Result, Timestamp, TokioEnv, Trigger, When};

/// Schedules written at the same time while the table is filled.
const TOGETHER: usize = 256;

/// Ticks that are measured; the last one counts, when everything is warm.
const ROUNDS: usize = 3;

/// Fills the table, then ticks: once with nothing due, and then with others due each time.
pub(crate) async fn tick(args: &Args) -> Result<()> {
    let opened = store::open(&args.url).await?;
    let client = Client::over(Arc::new(TokioEnv::current()), opened.clone(), "default")?;
    let all: Vec<usize> = (0..args.n).collect();
    put(&opened, &all, 0, false).await?;
    client.tick().await?;
    let before = client.tally();
    client.tick().await?;
    let idle_statements = client.tally().since(before).statements;
    for nth in 0..ROUNDS {
        let due: Vec<_> = all.iter().copied().filter(|n| n % args.conc == nth).collect();
        put(&opened, &due, 1, true).await?;
        let before = client.tally();
        let (cpu, begun) = (cpu_ms(), Instant::now());
        let slots = client.tick().await?;
        let (cpu, took) = (cpu_ms() - cpu, begun.elapsed());
        let spent = client.tally().since(before);
        let details = json!({
            "slots": slots,
            "wall_ms": round_off(took),
            "idle_statements": idle_statements,
            "commits": spent.commits,
            "statements_per_slot": round(spent.statements as f64 / slots.max(1) as f64),
        });
        report(cpu, details);
    }
    Ok(())
}

fn round_off(took: Duration) -> f64 {
    round(took.as_secs_f64() * 1e3)
}

/// Writes schedules: due since a moment, or not for hours.
async fn put(opened: &store::OpenStore, which: &[usize], version: i64, due: bool) -> Result<()> {
    let now = Timestamp::from_micros(now_us());
    let (due_at, cursor) = match due {
        true => (now.before(Duration::from_secs(5)), now.before(Duration::from_secs(60))),
        false => (now.after(Duration::from_secs(9_000)), now),
    };
    for chunk in which.chunks(TOGETHER) {
        let puts = chunk.iter().map(|n| {
            // Every minute, so that a slot is due; or once a day.
            let cron = match due {
                true => "* * * * *".to_owned(),
                false => format!("{} {} * * *", n % 60, n % 24),
            };
            let mut trigger = row(*n, &cron, cursor, due_at);
            (trigger.version, trigger.revision) = (version, version + 1);
            let opened = opened.clone();
            async move { opened.ask(op::PutTrigger { workspace: "default".into(), trigger }).await }
        });
        for put in all_of(puts).await {
            put?;
        }
    }
    Ok(())
}

/// Carries them out at the same time.
async fn all_of<F>(all: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let tasks: Vec<_> = all.map(tokio::spawn).collect();
    let mut done = Vec::with_capacity(tasks.len());
    for task in tasks {
        done.push(task.await.expect("a write does not panic"));
    }
    done
}

fn row(n: usize, cron: &str, cursor_at: Timestamp, due_at: Timestamp) -> op::TriggerRow {
    let trigger = Trigger {
        trigger_id: format!("schedule-{n:06}"),
        enabled: true,
        when: When::Cron(Cron::cron(cron)),
        command: CommandType {
            key_template: Some("sync:{vendor}:{at}".to_owned()),
            ..CommandType::new("sync")
        },
        payload: json!({ "vendor": format!("v{n}"), "at": "{scheduled_for}" }),
    };
    op::TriggerRow {
        trigger_id: trigger.trigger_id.clone(),
        kind: "cron".to_owned(),
        spec: serde_json::to_string(&trigger).expect("a trigger is plain data"),
        revision: 1,
        source: "bench".to_owned(),
        state: steadfast::TriggerState::Active,
        reason: String::new(),
        absent_from: cursor_at,
        absent_until: cursor_at,
        cursor_at,
        gap: String::new(),
        due_at,
        version: 0,
        created_at: cursor_at,
        updated_at: cursor_at,
    }
}

fn now_us() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(i64::MAX)
}

/// The processor time of this process, in milliseconds: all threads, user and system.
fn cpu_ms() -> f64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e6
}
