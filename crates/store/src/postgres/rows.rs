//! Rows of a table as one parameter: an array of the table's own row type.
//!
//! Invariants: columns are matched by their names, so their order in the database is free; what a
//! row does not have is null. One array makes the server unpack one value, where a column each
//! would make it keep as many lists.

use std::error::Error;

use tokio_postgres::types::{Field, IsNull, Kind, Type, private::BytesMut};

use crate::gate::{Fields, Value};

/// The columns of an array of rows.
pub(super) fn columns(ty: &Type) -> Option<&[Field]> {
    let Kind::Array(row) = ty.kind() else { return None };
    match row.kind() {
        Kind::Composite(columns) => Some(columns),
        _ => None,
    }
}

/// Writes rows as the server wants them. All rows have the same fields, in the same order.
pub(super) fn write(
    rows: &[Fields<'_>],
    ty: &Type,
    out: &mut BytesMut,
) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
    let (Kind::Array(row), Some(columns)) = (ty.kind(), columns(ty)) else {
        return Err("not an array of rows".into());
    };
    let given = rows.first().map(Vec::as_slice).unwrap_or_default();
    let place = |column: &Field| given.iter().position(|(name, _)| *name == column.name());
    let order: Vec<_> = columns.iter().map(|c| (c.type_().oid().to_be_bytes(), place(c))).collect();
    let count = i32::try_from(columns.len())?.to_be_bytes();
    // One dimension, perhaps with nulls inside, of so many rows, counted from one.
    out.extend_from_slice(&1i32.to_be_bytes());
    out.extend_from_slice(&0i32.to_be_bytes());
    out.extend_from_slice(&row.oid().to_be_bytes());
    out.extend_from_slice(&i32::try_from(rows.len())?.to_be_bytes());
    out.extend_from_slice(&1i32.to_be_bytes());
    for row in rows {
        let begin = out.len();
        out.extend_from_slice(&0i32.to_be_bytes());
        out.extend_from_slice(&count);
        for (oid, place) in &order {
            out.extend_from_slice(oid);
            cell(place.map(|at| &row[at].1), out)?;
        }
        let len = i32::try_from(out.len() - begin - 4)?;
        out[begin..begin + 4].copy_from_slice(&len.to_be_bytes());
    }
    Ok(IsNull::No)
}

fn cell(value: Option<&Value<'_>>, out: &mut BytesMut) -> Result<(), Box<dyn Error + Sync + Send>> {
    match value {
        None | Some(Value::Int(None) | Value::Text(None)) => {
            out.extend_from_slice(&(-1i32).to_be_bytes());
        }
        Some(Value::Int(Some(number))) => {
            out.extend_from_slice(&8i32.to_be_bytes());
            out.extend_from_slice(&number.to_be_bytes());
        }
        Some(Value::Text(Some(text))) => {
            out.extend_from_slice(&i32::try_from(text.len())?.to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        Some(other) => unreachable!("invariant: a row holds no {other:?}"),
    }
    Ok(())
}
