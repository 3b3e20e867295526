//! L1: a partition of `n` rows into Postgres, by the sync's load and by a plain COPY of the same
//! rows into a table of the same shape, in turns.

use std::fs::File;
use std::io::{BufWriter, Cursor, Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use bench_kit::{Args, report, round};
use futures::SinkExt as _;
use serde_json::{Value, json};
use steadfast::connector::{Connector, Operation, Outbound};
use steadfast::{Error, Result};
use steadfast_connectors::spool::Spool;
use steadfast_connectors::sql::{Column, ColumnKind, Shape};
use steadfast_connectors::{Sql, SqlConnector};
use tokio_postgres::{Client, NoTls};

/// Rows of a page.
const PAGE: usize = 5000;
/// How often each way is gone; the middle one counts.
const ROUNDS: usize = 3;

pub(crate) async fn load(args: &Args) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("steadfast-l1-{}", std::process::id()));
    let spool = Spool::at(dir.join("spool"));
    let file = dir.join("url");
    std::fs::create_dir_all(&dir).map_err(Error::from_any)?;
    std::fs::write(&file, &args.url).map_err(Error::from_any)?;
    let way = Sql::connect("warehouse", format!("file:{}", file.display()))
        .allow(Operation::write("load l1.ours").keyed())
        .spool(spool.clone())
        .timeout(std::time::Duration::from_secs(600))
        .build()?;
    way.create(&[shape("l1.ours"), shape("l1.plain")]).await?;
    let (client, connection) =
        tokio_postgres::connect(&args.url, NoTls).await.map_err(Error::from_any)?;
    tokio::spawn(connection);
    let lines = dir.join("lines");
    written(&lines, args.n).map_err(Error::from_any)?;
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for turn in 0..ROUNDS {
        for table in ["l1.ours", "l1.plain"] {
            let emptied = format!("TRUNCATE {table}");
            client.batch_execute(&emptied).await.map_err(Error::from_any)?;
        }
        plain.push(copied(&client, &lines, args.n).await?);
        let pages = spooled(&spool, args.n)?;
        ours.push(loaded(&way, &pages, args.n, turn).await?);
    }
    let middle = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    };
    let (ours, plain) = (middle(ours), middle(plain));
    let details = json!({
        "copy": round(plain), "of_copy": round(ours / plain), "peak_mb": round(peak_mb()),
    });
    report(ours, details);
    std::fs::remove_dir_all(&dir).map_err(Error::from_any)
}

fn shape(table: &str) -> Shape {
    let key = ["vendor_name", "target_date", "sku"].map(str::to_owned);
    let columns = vec![
        Column::new("vendor_name", ColumnKind::Name),
        Column::new("target_date", ColumnKind::Date),
        Column::new("sku", ColumnKind::Name),
        Column::new("region", ColumnKind::Text),
        Column::new("quantity", ColumnKind::Integer),
        Column::new("revenue", ColumnKind::Decimal),
    ];
    Shape::new(table, columns, &key)
}

fn row(at: usize) -> (String, &'static str, usize, String) {
    let revenue = format!("{}.{:02}", at % 900, at % 100);
    (format!("sku-{at:08}"), ["north", "south"][at % 2], at % 7, revenue)
}

/// The pages, as a vendor's connector would have left them.
fn spooled(spool: &Spool, rows: usize) -> Result<Vec<Value>> {
    let mut pages = Vec::new();
    for from in (0..rows).step_by(PAGE) {
        let here = PAGE.min(rows - from);
        let mut lines = String::with_capacity(here * 64);
        for at in from..from + here {
            let (sku, region, quantity, revenue) = row(at);
            lines.push_str(&format!("[{quantity},\"{region}\",\"{revenue}\",\"{sku}\"]\n"));
        }
        pages.push(json!({ "name": spool.put("l1", lines.as_bytes())?, "rows": here }));
    }
    Ok(pages)
}

/// Rows a second by the load, which has the database count and sum them before it commits.
async fn loaded(way: &SqlConnector, pages: &[Value], rows: usize, turn: usize) -> Result<f64> {
    let cents: usize = (0..rows).map(|at| at % 900 * 100 + at % 100).sum();
    let total = format!("{}.{:02}", cents / 100, cents % 100);
    let input = json!({
        "partition": { "vendor_name": "acme_sales", "target_date": "2026-06-01" },
        "key": ["vendor_name", "target_date", "sku"],
        "columns": ["quantity", "region", "revenue", "sku"],
        "pages": pages,
        "expect": { "rows": rows, "sum": { "column": "revenue", "is": total, "within": "0" } },
    });
    let key = Some(format!("l1-{}-{turn}", std::process::id()));
    let asked = Outbound { key, ..Outbound::new("load l1.ours", input) };
    let begun = Instant::now();
    way.send(&asked).await?;
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}

/// The same rows as COPY reads them, in a file.
fn written(file: &Path, rows: usize) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    for at in 0..rows {
        let (sku, region, quantity, revenue) = row(at);
        writeln!(out, "{quantity}\t{region}\t{revenue}\t{sku}\tacme_sales\t2026-06-01")?;
    }
    out.flush()
}

/// Rows a second by COPY from the file.
async fn copied(client: &Client, file: &Path, rows: usize) -> Result<f64> {
    let begun = Instant::now();
    let sql = "COPY l1.plain (quantity, region, revenue, sku, vendor_name, target_date) FROM STDIN";
    let sink = client.copy_in::<_, Cursor<Vec<u8>>>(sql).await.map_err(Error::from_any)?;
    futures::pin_mut!(sink);
    let mut file = File::open(file).map_err(Error::from_any)?;
    loop {
        let mut piece = vec![0; 256 * 1024];
        let n = file.read(&mut piece).map_err(Error::from_any)?;
        if n == 0 {
            break;
        }
        piece.truncate(n);
        sink.send(Cursor::new(piece)).await.map_err(Error::from_any)?;
    }
    sink.finish().await.map_err(Error::from_any)?;
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}

/// The most memory that this process had, in megabytes.
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
