//! The gate: the few values and calls through which operations reach any driver.
//!
//! Invariants: only integers and text cross it, nullable or not; a statement is named, its
//! parameters too. Deliberately absent: driver types above it, SQL text below `statement`.

use std::borrow::Cow;
use std::time::Duration;

use steadfast_core::Timestamp;

use crate::error::Error;
use crate::op::QueueRow;

#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only it takes columns"))]
/// A value in or out of a statement. Parameters borrow, so that none is copied on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Int(Option<i64>),
    Text(Option<Cow<'a, str>>),
    /// Several texts for `IN (:name)`.
    Texts(Vec<Cow<'a, str>>),
    /// A column of numbers or texts, where a database takes columns side by side.
    IntColumn(Vec<Option<i64>>),
    TextColumn(Vec<Option<Cow<'a, str>>>),
    /// Rows of a table, where a database takes them as one value.
    Rows(Vec<Fields<'a>>),
}

impl Value<'_> {
    /// Whether a text in it holds a NUL character.
    pub(crate) fn holds_nul(&self) -> bool {
        let nul = |text: &str| text.as_bytes().contains(&0);
        match self {
            Self::Int(_) | Self::IntColumn(_) => false,
            Self::Text(text) => text.as_deref().is_some_and(nul),
            Self::Texts(texts) => texts.iter().any(|text| nul(text)),
            Self::TextColumn(texts) => texts.iter().flatten().any(|text| nul(text)),
            Self::Rows(rows) => rows.iter().flatten().any(|(_, value)| value.holds_nul()),
        }
    }
}

/// A parameter in its place: lists are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound<'a> {
    Int(Option<i64>),
    Text(Option<&'a str>),
    IntColumn(&'a [Option<i64>]),
    TextColumn(&'a [Option<Cow<'a, str>>]),
    Rows(&'a [Fields<'a>]),
    /// A list that is not spread, where a database takes arrays.
    Texts(&'a [Cow<'a, str>]),
}

macro_rules! value_from {
    ($($type:ty, $value:ident => $made:expr;)+) => {
        $(impl<'a> From<$type> for Value<'a> {
            fn from($value: $type) -> Self {
                $made
            }
        })+
    };
}

value_from! {
    i64, v => Value::Int(Some(v));
    usize, v => Value::Int(Some(i64::try_from(v).unwrap_or(i64::MAX)));
    bool, v => Value::Int(Some(i64::from(v)));
    Option<i64>, v => Value::Int(v);
    Timestamp, v => Value::Int(Some(v.as_micros()));
    Option<Timestamp>, v => Value::Int(v.map(Timestamp::as_micros));
    Duration, v => Value::Int(Some(steadfast_core::time::micros(v)));
    Option<Duration>, v => Value::Int(v.map(steadfast_core::time::micros));
    &'a str, v => Value::Text(Some(Cow::Borrowed(v)));
    &'a String, v => Value::Text(Some(Cow::Borrowed(v)));
    String, v => Value::Text(Some(Cow::Owned(v)));
    Option<&'a str>, v => Value::Text(v.map(Cow::Borrowed));
    Option<String>, v => Value::Text(v.map(Cow::Owned));
    Vec<String>, v => Value::Texts(v.into_iter().map(Cow::Owned).collect());
    Vec<&'a str>, v => Value::Texts(v.into_iter().map(Cow::Borrowed).collect());
    Vec<Fields<'a>>, v => Value::Rows(v);
}

/// Named parameters of one call.
pub(crate) type Params<'a> = &'a [(&'static str, Value<'a>)];

/// Named parameters that somebody keeps.
pub(crate) type Fields<'a> = Vec<(&'static str, Value<'a>)>;

#[cfg(feature = "postgres")]
/// Turns rows of the same fields into columns.
pub(crate) fn columns<'a>(rows: Vec<Fields<'a>>) -> Fields<'a> {
    let count = rows.len();
    let mut rows = rows.into_iter();
    let column = |(name, value)| match value {
        Value::Int(v) => (name, Value::IntColumn(column_of(count, v))),
        Value::Text(v) => (name, Value::TextColumn(column_of(count, v))),
        other => (name, other),
    };
    let mut columns: Fields<'a> = rows.next().into_iter().flatten().map(column).collect();
    for row in rows {
        for ((name, column), (field, value)) in columns.iter_mut().zip(row) {
            debug_assert_eq!(*name, field, "invariant: rows have the same fields");
            match (column, value) {
                (Value::IntColumn(column), Value::Int(v)) => column.push(v),
                (Value::TextColumn(column), Value::Text(v)) => column.push(v),
                (column, value) => unreachable!("invariant: {value:?} fits {column:?}"),
            }
        }
    }
    columns
}

#[cfg(feature = "postgres")]
/// A column with its first value, and room for the others.
fn column_of<T>(count: usize, first: T) -> Vec<T> {
    let mut column = Vec::with_capacity(count);
    column.push(first);
    column
}

/// Writes named parameters as [`Fields`].
macro_rules! fields {
    ($($name:ident : $value:expr),* $(,)?) => {
        vec![$((stringify!($name), $crate::gate::Value::from($value))),*]
    };
}
pub(crate) use fields;

/// Writes named parameters: `params! { workspace: &ws, now: now }`.
macro_rules! params {
    ($($name:ident : $value:expr),* $(,)?) => {
        &[$((stringify!($name), $crate::gate::Value::from($value))),*]
    };
}
pub(crate) use params;

/// One row, read column by column in statement order.
#[derive(Debug)]
pub(crate) struct Row(std::vec::IntoIter<Value<'static>>);

impl Row {
    pub(crate) fn new(values: Vec<Value<'static>>) -> Self {
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
            Some(Value::Text(v)) => Ok(v.map(Cow::into_owned)),
            Some(Value::Int(None)) => Ok(None),
            other => Err(unexpected("text", &format!("{other:?}"))),
        }
    }
}

fn unexpected(wanted: &str, found: &str) -> Error {
    Error::Incompatible(format!("expected {wanted} in a column, found {found}"))
}

/// Queues as they were read in the current transaction, by workspace and name.
#[derive(Debug, Default)]
pub(crate) struct Memo(Vec<(String, String, Option<QueueRow>)>);

impl Memo {
    pub(crate) fn get(&self, workspace: &str, name: &str) -> Option<&Option<QueueRow>> {
        let same = |(ws, queue, _): &&(String, String, _)| ws == workspace && queue == name;
        self.0.iter().find(same).map(|(_, _, row)| row)
    }

    pub(crate) fn put(&mut self, workspace: &str, name: &str, row: Option<QueueRow>) {
        self.0.push((workspace.to_owned(), name.to_owned(), row));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// An open transaction (or a read), on whatever driver.
pub(crate) trait Tx {
    /// What is remembered of queues until the transaction ends, where many operations share one.
    fn memo(&mut self) -> Option<&mut Memo> {
        None
    }

    /// By how much a claim that is not flushed raises the epoch of a run.
    fn claim_stride(&self) -> i64 {
        1
    }

    /// Whether a statement is no way to a server and back, so that one in vain costs next to
    /// nothing.
    fn is_near(&self) -> bool {
        false
    }

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
