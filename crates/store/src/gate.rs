//! The gate: the few values and calls through which operations reach any driver.
//!
//! Invariants: only integers and text cross it, nullable or not; a statement is named, its
//! parameters too. Deliberately absent: driver types above it, SQL text below `statement`.

use std::time::Duration;

use steadfast_core::Timestamp;

use crate::error::Error;

/// A value in or out of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    /// Several texts for `IN (:name)`.
    Texts(Vec<String>),
}

impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Value::Int(Some(v))
    }
}
impl From<usize> for Value {
    fn from(v: usize) -> Self {
        Value::Int(Some(i64::try_from(v).unwrap_or(i64::MAX)))
    }
}
impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Value::Int(Some(i64::from(v)))
    }
}
impl From<Option<i64>> for Value {
    fn from(v: Option<i64>) -> Self {
        Value::Int(v)
    }
}
impl From<Timestamp> for Value {
    fn from(v: Timestamp) -> Self {
        Value::Int(Some(v.as_micros()))
    }
}
impl From<Option<Timestamp>> for Value {
    fn from(v: Option<Timestamp>) -> Self {
        Value::Int(v.map(Timestamp::as_micros))
    }
}
impl From<Option<Duration>> for Value {
    fn from(v: Option<Duration>) -> Self {
        Value::Int(v.map(steadfast_core::time::micros))
    }
}
impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Text(Some(v.to_owned()))
    }
}
impl From<&String> for Value {
    fn from(v: &String) -> Self {
        Value::Text(Some(v.clone()))
    }
}
impl From<String> for Value {
    fn from(v: String) -> Self {
        Value::Text(Some(v))
    }
}
impl From<Option<String>> for Value {
    fn from(v: Option<String>) -> Self {
        Value::Text(v)
    }
}
impl From<Vec<String>> for Value {
    fn from(v: Vec<String>) -> Self {
        Value::Texts(v)
    }
}

/// Named parameters of one call.
pub(crate) type Params<'a> = &'a [(&'static str, Value)];

/// Writes named parameters: `params! { workspace: &ws, now: now }`.
macro_rules! params {
    ($($name:ident : $value:expr),* $(,)?) => {
        &[$((stringify!($name), $crate::gate::Value::from($value))),*]
    };
}
pub(crate) use params;

/// One row, read column by column in statement order.
#[derive(Debug)]
pub(crate) struct Row(std::vec::IntoIter<Value>);

impl Row {
    pub(crate) fn new(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }

    pub(crate) fn int(&mut self) -> Result<i64, Error> {
        self.opt_int()?.ok_or_else(|| unexpected("a number", "null"))
    }

    pub(crate) fn opt_int(&mut self) -> Result<Option<i64>, Error> {
        match self.0.next() {
            Some(Value::Int(v)) => Ok(v),
            Some(Value::Text(None)) => Ok(None),
            other => Err(unexpected("a number", &format!("{other:?}"))),
        }
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        Ok(self.int()? != 0)
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, Error> {
        Ok(Timestamp::from_micros(self.int()?))
    }

    pub(crate) fn opt_time(&mut self) -> Result<Option<Timestamp>, Error> {
        Ok(self.opt_int()?.map(Timestamp::from_micros))
    }

    pub(crate) fn text(&mut self) -> Result<String, Error> {
        self.opt_text()?.ok_or_else(|| unexpected("text", "null"))
    }

    pub(crate) fn opt_text(&mut self) -> Result<Option<String>, Error> {
        match self.0.next() {
            Some(Value::Text(v)) => Ok(v),
            Some(Value::Int(None)) => Ok(None),
            other => Err(unexpected("text", &format!("{other:?}"))),
        }
    }
}

fn unexpected(wanted: &str, found: &str) -> Error {
    Error::Incompatible(format!("expected {wanted} in a column, found {found}"))
}

/// An open transaction (or a read), on whatever driver.
pub(crate) trait Tx {
    /// Runs a named statement; gives the number of rows it changed.
    async fn execute(&mut self, statement: &'static str, params: Params<'_>) -> Result<u64, Error>;

    /// Runs a named query whose hole `{{conditions}}`, if it has one, is filled with the given
    /// text, which is made of fixed texts of ours and never holds a caller's value.
    async fn query_where(
        &mut self,
        statement: &'static str,
        conditions: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error>;

    /// Runs a named query.
    async fn query(
        &mut self,
        statement: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        self.query_where(statement, "", params).await
    }
}

/// The first row of a query, if any.
pub(crate) async fn first(
    tx: &mut impl Tx,
    statement: &'static str,
    params: Params<'_>,
) -> Result<Option<Row>, Error> {
    Ok(tx.query(statement, params).await?.into_iter().next())
}
