//! `steadfast audit`: whether events are still what they were when they were written.

use std::process::ExitCode;

use serde_json::json;
use steadfast::Anchor;

use crate::output::{At, Output};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Walks the whole chain of events. Exit code 0 if it is whole, 1 if it is broken.
    Verify {
        /// An earlier end of the chain, as this command has shown it: what was rewritten as a whole
        /// is found out too.
        #[arg(long, value_name = "NUMBER:LINK", value_parser = anchor)]
        anchor: Option<Anchor>,
    },
}

fn anchor(text: &str) -> Result<Anchor, String> {
    let parts = text.split_once(':').and_then(|(seq, hash)| Some((seq.parse().ok()?, hash)));
    match parts {
        Some((seq, hash)) if hash.len() == 64 => Ok(Anchor { seq, hash: hash.to_owned() }),
        _ => Err("a number and a link of 64 digits, with a colon between them".to_owned()),
    }
}

pub(crate) async fn audit(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.at.connect().await?;
    let Verb::Verify { anchor } = args.verb;
    let found = client.verify_events(anchor.as_ref()).await?;
    let end = format!("{}:{}", found.whole.seq, found.whole.hash);
    if args.at.output == Output::Json {
        let broken = found.broken.as_ref();
        println!(
            "{}",
            json!({
                "whole": broken.is_none(), "kept": found.kept, "removed": found.removed,
                "begins_behind": found.base.seq, "anchor": end,
                "broken": broken.map(|at| json!({
                    "seq": at.seq(), "kind": at.kind(), "message": at.to_string(),
                })),
            })
        );
    }
    if let Some(broken) = &found.broken {
        eprintln!("{broken} [SF-0902]");
        eprintln!("up to number {} the chain is whole", found.whole.seq);
        return Ok(ExitCode::FAILURE);
    }
    if let Some(noted) = anchor.filter(|noted| noted.seq < found.base.seq) {
        eprintln!(
            "retention has removed everything up to number {}: number {} cannot be compared; \
             note a newer end [SF-0902]",
            found.base.seq, noted.seq
        );
        return Ok(ExitCode::FAILURE);
    }
    if args.at.output != Output::Json {
        println!("{end}");
    }
    eprintln!("whole: {} events are as they were written", found.kept);
    if found.removed > 0 || found.base.seq > 0 {
        let (removed, behind) = (found.removed, found.base.seq);
        eprintln!("{removed} were removed by retention, and everything up to number {behind}");
    }
    Ok(ExitCode::SUCCESS)
}
