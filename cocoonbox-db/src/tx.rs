//! A transaction on either engine.

use std::fmt;
use std::sync::Arc;

use sqlx::{Postgres, Sqlite, Transaction};

use crate::notice::{self, Hub};
use crate::{DbError, Notice};

/// The transaction of one engine, for [`on_tx!`](crate::on_tx).
#[doc(hidden)]
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "the macros match on both")]
pub enum TxInner {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
}

/// A transaction; dropping it undoes it.
///
/// # Behavior
/// - On SQLite it holds the write lock from its start (`BEGIN IMMEDIATE`), so that what it reads stays true until it
///   commits. On PostgreSQL it is READ COMMITTED: use conditional writes, or `SELECT … FOR UPDATE`, for the same.
/// - Notices sent inside are published by the commit, and not at all when it is undone.
/// - When [`Tx::commit`] fails with [`DbError::Interrupted`], it may have been committed.
pub struct Tx {
    inner: TxInner,
    hub: Option<Arc<Hub>>,
    pending: Vec<(String, String)>,
}

impl Tx {
    pub(crate) fn sqlite(tx: Transaction<'static, Sqlite>, hub: Arc<Hub>) -> Self {
        Self { inner: TxInner::Sqlite(tx), hub: Some(hub), pending: Vec::new() }
    }

    pub(crate) fn postgres(tx: Transaction<'static, Postgres>) -> Self {
        Self { inner: TxInner::Postgres(tx), hub: None, pending: Vec::new() }
    }

    /// Lends the engine's transaction to [`on_tx!`](crate::on_tx).
    #[doc(hidden)]
    pub fn inner(&mut self) -> &mut TxInner {
        &mut self.inner
    }

    /// Returns `sqlite` or `postgres`, whichever this engine is.
    pub fn pick<T>(&self, sqlite: T, postgres: T) -> T {
        match self.inner {
            TxInner::Sqlite(_) => sqlite,
            TxInner::Postgres(_) => postgres,
        }
    }

    /// Sends a notice that the commit publishes.
    ///
    /// # Errors
    /// [`DbError::InvalidNotice`] for a channel or payload over its limit, and what the database says.
    pub async fn notify(&mut self, channel: &str, payload: &str) -> Result<(), DbError> {
        notice::check(channel, payload)?;
        match &mut self.inner {
            TxInner::Sqlite(_) => self.pending.push((channel.to_owned(), payload.to_owned())),
            TxInner::Postgres(tx) => {
                sqlx::query("SELECT pg_notify($1, $2)")
                    .bind(channel)
                    .bind(payload)
                    .execute(&mut **tx)
                    .await?;
            }
        }
        Ok(())
    }

    /// Makes it durable and publishes its notices.
    ///
    /// # Errors
    /// What the database says; after [`DbError::Interrupted`] look whether it happened.
    pub async fn commit(self) -> Result<(), DbError> {
        match self.inner {
            TxInner::Sqlite(tx) => tx.commit().await?,
            TxInner::Postgres(tx) => tx.commit().await?,
        }
        if let Some(hub) = self.hub {
            for (channel, payload) in self.pending {
                hub.publish(&channel, Notice::Changed { payload });
            }
        }
        Ok(())
    }

    /// Undoes it.
    ///
    /// # Errors
    /// What the database says; it is undone all the same.
    pub async fn rollback(self) -> Result<(), DbError> {
        match self.inner {
            TxInner::Sqlite(tx) => tx.rollback().await?,
            TxInner::Postgres(tx) => tx.rollback().await?,
        }
        Ok(())
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("engine", &self.pick("sqlite", "postgres")).finish_non_exhaustive()
    }
}
