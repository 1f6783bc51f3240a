//! The catalog of saves in SQLite or PostgreSQL.

use std::error::Error;

use async_trait::async_trait;
use cocoonbox_core::Timestamp;
use cocoonbox_db::{Db, DbError, Migration, Migrations, on, sqlx};
use cocoonbox_state::{Catalog, CatalogError, Label, Ledger, Revision};

/// The table of this module.
pub const MIGRATIONS: Migrations = Migrations::new(
    "state",
    &[Migration::new(1, "ledgers", include_str!("../../migrations/0001_state.sql"))],
);

const LOAD: &str = "SELECT ledger, revision FROM state_ledgers WHERE owner = $1";
const FIRST: &str =
    "INSERT INTO state_ledgers (owner, revision, ledger) VALUES ($1, 1, $2) ON CONFLICT (owner) DO NOTHING";
const NEXT: &str =
    "UPDATE state_ledgers SET ledger = $1, revision = revision + 1 WHERE owner = $2 AND revision = $3";

/// Every statement, for a test that both engines take each.
pub const STATEMENTS: &[&str] = &[LOAD, FIRST, NEXT];

/// A [`Catalog`] over [`Db`].
#[derive(Clone, Debug)]
pub struct SqlCatalog {
    db: Db,
}

impl SqlCatalog {
    /// Brings the table forward, noting `now` as the time, and answers the catalog.
    ///
    /// # Errors
    /// What the database says.
    pub async fn open(db: Db, now: Timestamp) -> Result<Self, CatalogError> {
        db.migrate(&MIGRATIONS, now).await.map_err(failed)?;
        Ok(Self { db })
    }
}

fn failed(error: DbError) -> CatalogError {
    match error {
        DbError::Corrupt { .. } | DbError::Migration(_) => corrupt(error),
        other => CatalogError::Unavailable { source: Box::new(other) },
    }
}

fn corrupt(error: impl Into<Box<dyn Error + Send + Sync>>) -> CatalogError {
    CatalogError::Corrupt { source: error.into() }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Catalog for SqlCatalog {
    async fn load(&self, uid: &Label) -> Result<(Ledger, Revision), CatalogError> {
        let row: Option<(String, i64)> =
            on!(self.db, pool => sqlx::query_as(LOAD).bind(uid.as_str()).fetch_optional(pool).await)
                .map_err(|error| failed(error.into()))?;
        let Some((ledger, revision)) = row else { return Ok((Ledger::default(), 0)) };
        Ok((serde_json::from_str(&ledger).map_err(corrupt)?, revision as u64))
    }

    async fn store(&self, uid: &Label, ledger: &Ledger, expect: Revision) -> Result<Revision, CatalogError> {
        let text = serde_json::to_string(ledger).map_err(corrupt)?;
        let written = on!(self.db, pool => if expect == 0 {
            sqlx::query(FIRST).bind(uid.as_str()).bind(text).execute(pool).await.map(|done| done.rows_affected())
        } else {
            sqlx::query(NEXT).bind(text).bind(uid.as_str()).bind(expect as i64)
                .execute(pool).await.map(|done| done.rows_affected())
        })
        .map_err(|error| failed(error.into()))?;
        if written == 1 { Ok(expect + 1) } else { Err(CatalogError::Conflict { uid: uid.clone() }) }
    }
}
