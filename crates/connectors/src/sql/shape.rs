//! Tables as data: what they must look like, for those who let us make them.
//!
//! Invariants: names are checked and quoted; a table that is there is left as it is; money is exact
//! on every database that can be.

use serde_json::Value;
use steadfast_core::error::Result;

use super::dialect::Dialect;
use super::request;
use super::session::Session;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// A short text that can be in a key.
    Name,
    /// Text.
    Text,
    /// A whole number.
    Integer,
    /// An exact number.
    Decimal,
    /// A day.
    Date,
    /// A moment.
    Timestamp,
    /// Yes or no.
    Boolean,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: ColumnKind,
    /// Whether it may be empty.
    pub null: bool,
}

impl Column {
    /// A column that every row fills.
    pub fn new(name: impl Into<String>, kind: ColumnKind) -> Self {
        Self { name: name.into(), kind, null: false }
    }

    /// It may be empty.
    pub fn optional(mut self) -> Self {
        self.null = true;
        self
    }
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Its name, perhaps with its schema.
    pub table: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// What tells its rows apart.
    pub key: Vec<String>,
}

impl Shape {
    /// A table with these columns and this key.
    pub fn new(table: impl Into<String>, columns: Vec<Column>, key: &[String]) -> Self {
        Self { table: table.into(), columns, key: key.to_vec() }
    }
}

/// Makes a table, and its schema, where there is none.
pub(super) async fn create(session: &mut Session, shape: &Shape) -> Result<()> {
    request::target(&format!("select {}", shape.table))?;
    request::check_names(shape.columns.iter().map(|column| &column.name).chain(&shape.key))?;
    let dialect = session.dialect();
    let seen = format!("SELECT 1 AS one FROM {} WHERE 1 = 0", dialect.quoted(&shape.table));
    if session.query(seen, Vec::<Value>::new()).await.is_ok() {
        return Ok(());
    }
    let made = session.plain(&dialect.create(shape)).await;
    // Perhaps for lack of its schema; whoever may not make one is not asked to without need.
    match shape.table.split_once('.') {
        Some((schema, _)) if made.is_err() && dialect != Dialect::Sqlite => {
            let sql = format!("CREATE SCHEMA IF NOT EXISTS {}", dialect.quoted(schema));
            session.plain(&sql).await?;
            session.plain(&dialect.create(shape)).await
        }
        _ => made,
    }
}

impl Dialect {
    fn create(self, shape: &Shape) -> String {
        let column = |column: &Column| {
            let null = if column.null { "" } else { " NOT NULL" };
            format!("{} {}{null}", self.quoted(&column.name), self.kind(column.kind))
        };
        let columns: Vec<_> = shape.columns.iter().map(column).collect();
        format!(
            "CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))",
            self.quoted(&shape.table),
            columns.join(", "),
            self.list(&shape.key)
        )
    }

    fn kind(self, kind: ColumnKind) -> &'static str {
        match (kind, self) {
            (ColumnKind::Name, Self::Mysql) => {
                "VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
            }
            (ColumnKind::Name | ColumnKind::Text, Self::Postgres | Self::Sqlite) => "TEXT",
            (ColumnKind::Text, Self::Mysql) => "LONGTEXT CHARACTER SET utf8mb4",
            (ColumnKind::Integer, _) => "BIGINT",
            (ColumnKind::Decimal, Self::Sqlite) => "NUMERIC",
            (ColumnKind::Decimal, _) => "NUMERIC(36, 9)",
            (ColumnKind::Date, Self::Sqlite) => "TEXT",
            (ColumnKind::Date, _) => "DATE",
            (ColumnKind::Timestamp, Self::Sqlite) => "TEXT",
            (ColumnKind::Timestamp, Self::Postgres) => "TIMESTAMPTZ",
            (ColumnKind::Timestamp, Self::Mysql) => "DATETIME(6)",
            (ColumnKind::Boolean, _) => "BOOLEAN",
        }
    }
}
