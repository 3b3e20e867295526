//! What commands have in common: where the store is, and how results are shown.
//!
//! Invariants: tables are for people, JSON lines for programs, and both hold the same rows; ids are
//! shown whole, so that they can be copied.

use anyhow::Context as _;
use steadfast::Client;

/// Where, and how.
#[derive(clap::Args)]
pub(crate) struct At {
    /// The store: sqlite://file, postgres://… or mysql://…. @FILE reads that from a file, - from
    /// standard input: other users see the arguments of a process.
    #[arg(long, env = "STEADFAST_STORE", hide_env_values = true, global = true)]
    store: Option<String>,
    /// The workspace.
    #[arg(long, default_value = "default", env = "STEADFAST_WORKSPACE", global = true)]
    workspace: String,
    /// How results are shown.
    #[arg(short, long, value_enum, default_value_t = Output::Table, global = true)]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// Columns.
    Table,
    /// One JSON object a line.
    Json,
    /// The first column alone.
    Ids,
}

impl At {
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let Some(given) = &self.store else {
            anyhow::bail!("name the store with --store URL or STEADFAST_STORE");
        };
        let store = &address(given)?;
        // A reader must not leave an empty database behind where there was none.
        if let Some(file) = store.strip_prefix("sqlite://")
            && !std::path::Path::new(file).exists()
        {
            anyhow::bail!("there is no SQLite file {file}");
        }
        Ok(Client::connect_to(store, &self.workspace).await?)
    }

    /// Who asks, as events will tell.
    pub(crate) fn requested_by(&self) -> String {
        let user = std::env::var("USER").unwrap_or_default();
        format!("user:{}", if user.is_empty() { "cli" } else { &user })
    }
}

/// The address of a store, which may be in a file (`@FILE`) or come by standard input (`-`).
pub(crate) fn address(given: &str) -> anyhow::Result<String> {
    let text = match given.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file)
            .with_context(|| format!("the address of the store is to be in {file}"))?,
        None if given == "-" => std::io::read_to_string(std::io::stdin())
            .context("the address of the store is to come by standard input")?,
        None => return Ok(given.to_owned()),
    };
    match text.trim() {
        "" => anyhow::bail!("the address of the store is empty"),
        text => Ok(text.to_owned()),
    }
}

/// Reads one of a kind by its spelling; otherwise says which there are.
pub(crate) fn spelled<T: Copy>(
    what: &str,
    text: &str,
    all: &[T],
    spelling: fn(T) -> &'static str,
) -> Result<T, String> {
    let found = all.iter().copied().find(|one| spelling(*one) == text);
    found.ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|one| spelling(*one)).collect();
        format!("there is no {what} {text}; there are: {}", known.join(", "))
    })
}

/// Rows, shown when they are all there.
pub(crate) struct Table<const N: usize> {
    head: [&'static str; N],
    rows: Vec<([String; N], serde_json::Value)>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(head: [&'static str; N]) -> Self {
        Self { head, rows: Vec::new() }
    }

    /// A row, as a person and as a program want it.
    pub(crate) fn row(&mut self, cells: [String; N], whole: serde_json::Value) {
        self.rows.push((cells, whole));
    }

    pub(crate) fn print(&self, how: Output) {
        match how {
            Output::Json => self.rows.iter().for_each(|(_, whole)| println!("{whole}")),
            Output::Ids => self.rows.iter().for_each(|(cells, _)| println!("{}", cells[0])),
            Output::Table => self.columns(),
        }
    }

    fn columns(&self) {
        let mut widths = self.head.map(str::len);
        for (cells, _) in &self.rows {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: [&str; N]| {
            let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        println!("{}", line(self.head));
        for (cells, _) in &self.rows {
            println!("{}", line(std::array::from_fn(|at| cells[at].as_str())));
        }
    }
}
