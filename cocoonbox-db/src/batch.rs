//! Statements that go to the database together.

use std::fmt::Write as _;

use futures::TryStreamExt as _;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, AssertSqlSafe, Either, Executor as _};

use crate::DbError;
use crate::tx::{Tx, TxInner};

/// A value that a statement of a [`Batch`] is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// TEXT, or NULL.
    Text(Option<String>),
    /// BIGINT, or NULL.
    Integer(Option<i64>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(Some(number))
    }
}

/// Statements that go to the database together and are run in their order, as part of a [`Tx`].
///
/// What it saves: SQLite's driver runs each statement on a thread of its own and is woken twice for it. A batch goes
/// over once, however many statements it has. PostgreSQL takes one after the other.
///
/// A `$` followed by a digit must be a placeholder, also inside quotes.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    statements: Vec<(&'static str, Vec<Value>)>,
}

/// What came of a [`Batch`]: the rows that each statement touched, up to the first that failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct BatchDone {
    /// Rows that each statement which succeeded touched, in their order.
    pub rows: Vec<u64>,
    /// Why the next one failed; none when all succeeded. The transaction can only be undone then.
    pub failed: Option<DbError>,
}

impl Batch {
    /// Makes one without statements.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a statement with what `$1`, `$2` and so on of it stand for; returns its place in the order.
    pub fn push(&mut self, statement: &'static str, values: impl IntoIterator<Item = Value>) -> usize {
        self.statements.push((statement, values.into_iter().collect()));
        self.statements.len() - 1
    }

    /// Returns whether there is no statement in it.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// Writes all statements as one text for SQLite, where a number means one value of the whole text.
    fn joined(&self) -> String {
        let mut text = String::new();
        let mut before = 0;
        for (statement, values) in &self.statements {
            let mut parts = statement.split('$');
            text.push_str(parts.next().unwrap_or_default());
            for part in parts {
                let digits = part.bytes().take_while(u8::is_ascii_digit).count();
                let (number, rest) = part.split_at(digits);
                match number.parse::<usize>() {
                    Ok(number) => drop(write!(text, "${}{rest}", number + before)),
                    Err(_) => drop(write!(text, "${part}")),
                }
            }
            text.push(';');
            before += values.len();
        }
        text
    }
}

impl Tx {
    /// Runs a batch to its end or to the first statement that fails.
    ///
    /// # Errors
    /// None of its own: what the database says of a statement is in [`BatchDone::failed`].
    pub async fn run(&mut self, batch: Batch) -> BatchDone {
        let mut rows = Vec::with_capacity(batch.statements.len());
        let failed = match self.inner() {
            TxInner::Sqlite(_) if batch.is_empty() => None,
            TxInner::Sqlite(tx) => {
                let text = batch.joined();
                let mut arguments = SqliteArguments::default();
                for value in batch.statements.into_iter().flat_map(|(_, values)| values) {
                    let added = match value {
                        Value::Text(text) => arguments.add(text),
                        Value::Integer(number) => arguments.add(number),
                    };
                    if let Err(error) = added {
                        return BatchDone { rows, failed: Some(sqlx::Error::Encode(error).into()) };
                    }
                }
                // the text is made of constants: values are bound
                let query = sqlx::query_with(AssertSqlSafe(text), arguments);
                let mut done = tx.fetch_many(query);
                loop {
                    match done.try_next().await {
                        Ok(Some(Either::Left(done))) => rows.push(done.rows_affected()),
                        Ok(Some(Either::Right(_))) => {}
                        Ok(None) => break None,
                        Err(error) => break Some(error.into()),
                    }
                }
            }
            TxInner::Postgres(tx) => {
                let mut failed = None;
                for (statement, values) in batch.statements {
                    let mut query = sqlx::query(statement);
                    for value in values {
                        query = match value {
                            Value::Text(text) => query.bind(text),
                            Value::Integer(number) => query.bind(number),
                        };
                    }
                    match query.execute(&mut **tx).await {
                        Ok(done) => rows.push(done.rows_affected()),
                        Err(error) => {
                            failed = Some(error.into());
                            break;
                        }
                    }
                }
                failed
            }
        };
        BatchDone { rows, failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statement_keeps_its_own_values() {
        let mut batch = Batch::new();
        assert_eq!(batch.push("UPDATE t SET a = $2 WHERE b = $1", ["x".into(), 1.into()]), 0);
        assert_eq!(batch.push("DELETE FROM t WHERE a = '$' AND c = $10", [2.into()]), 1);
        assert_eq!(batch.push("INSERT INTO t VALUES ($1)", [Value::from(None)]), 2);
        assert_eq!(
            batch.joined(),
            "UPDATE t SET a = $2 WHERE b = $1;DELETE FROM t WHERE a = '$' AND c = $12;INSERT INTO t VALUES ($4);"
        );
    }
}
