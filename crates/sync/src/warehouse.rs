//! The tables of the warehouse: what they must look like, and making those that are missing.
//!
//! Invariants: a table that is there is never changed; the partition's columns come first in the
//! key, so that a day's rows lie together.

use steadfast::Result;
use steadfast_connectors::sql::{Column, ColumnKind, Shape};

use crate::config::{Config, Kind};
use crate::job;

/// The table of rows and the table of what was loaded, as the file needs them.
pub fn shapes(config: &Config) -> Vec<Shape> {
    let mut partition = Vec::new();
    if let Some(column) = &config.warehouse.tenant_column {
        partition.push(Column::new(column.as_str(), ColumnKind::Name));
    }
    partition.push(Column::new("vendor_name", ColumnKind::Name));
    partition.push(Column::new("target_date", ColumnKind::Date));
    let by_day: Vec<String> = partition.iter().map(|column| column.name.clone()).collect();

    let mut rows = Shape::new(config.warehouse.table.as_str(), partition.clone(), &by_day);
    for (column, field) in config.vendors.iter().flat_map(|vendor| &vendor.fields) {
        if rows.columns.iter().any(|known| known.name == column.as_str()) {
            continue;
        }
        let column = Column::new(column.as_str(), kind(field.kind, field.key));
        if field.key {
            rows.key.push(column.name.clone());
            rows.columns.push(column);
        } else {
            rows.columns.push(column.optional());
        }
    }

    partition.extend([
        Column::new("content_hash", ColumnKind::Name),
        Column::new("snapshot_id", ColumnKind::Text),
        Column::new("signal", ColumnKind::Text),
        Column::new("row_count", ColumnKind::Integer),
        Column::new("command_key", ColumnKind::Text).optional(),
    ]);
    let state = Shape::new(config.warehouse.state_table.as_str(), partition, &by_day);
    vec![rows, state]
}

fn kind(kind: Kind, key: bool) -> ColumnKind {
    match kind {
        // Keys have a length on MySQL.
        Kind::Text if key => ColumnKind::Name,
        Kind::Text => ColumnKind::Text,
        Kind::Integer => ColumnKind::Integer,
        Kind::Decimal => ColumnKind::Decimal,
        Kind::Date => ColumnKind::Date,
        Kind::Timestamp => ColumnKind::Timestamp,
        Kind::Boolean => ColumnKind::Boolean,
    }
}

/// Makes the tables that are missing, and the file where the warehouse is one.
pub async fn create(config: &Config) -> Result<()> {
    job::warehouse(config)?.create(&shapes(config)).await
}
