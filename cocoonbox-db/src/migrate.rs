//! Tables, as each crate that owns some brings them along.

use cocoonbox_core::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::{Db, DbError, Engine, on_tx};

/// One step that brings a crate's tables forward; never changed once released.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Migration {
    /// 1 for the first, ascending.
    pub version: i64,
    /// What it does, in a word or two.
    pub name: &'static str,
    /// Its statements, for both engines, or for SQLite alone when `postgres` is set.
    pub sql: &'static str,
    /// Its statements for PostgreSQL, where they must differ.
    pub postgres: Option<&'static str>,
}

impl Migration {
    /// Makes a step whose statements both engines take.
    pub const fn new(version: i64, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, sql, postgres: None }
    }

    /// Sets other statements for PostgreSQL.
    pub const fn with_postgres(mut self, sql: &'static str) -> Self {
        self.postgres = Some(sql);
        self
    }

    fn sql(&self, engine: Engine) -> &'static str {
        match engine {
            Engine::Sqlite => self.sql,
            Engine::Postgres => self.postgres.unwrap_or(self.sql),
        }
    }

    fn checksum(&self, engine: Engine) -> Vec<u8> {
        Sha256::digest(self.sql(engine).as_bytes()).to_vec()
    }
}

/// All steps of one crate, oldest first.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Migrations {
    /// The crate's short name, `[a-z]{1,20}`: its table is `<owner>_schema_migrations`.
    pub owner: &'static str,
    /// The steps.
    pub steps: &'static [Migration],
}

impl Migrations {
    /// Lists the steps of the crate called `owner`.
    pub const fn new(owner: &'static str, steps: &'static [Migration]) -> Self {
        Self { owner, steps }
    }
}

/// Why the tables are not brought forward; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// A newer program was here.
    #[error(
        "the database is newer than this program: {owner} tables are at version {found}, this program knows {known}"
    )]
    Newer {
        /// Whose tables.
        owner: &'static str,
        /// The database's version.
        found: i64,
        /// The program's.
        known: i64,
    },
    /// A step that was applied reads otherwise now.
    #[error("step {version} ({name}) of the {owner} tables was changed after it had been applied")]
    Changed {
        /// Whose tables.
        owner: &'static str,
        /// Which step.
        version: i64,
        /// Its name in this program.
        name: &'static str,
    },
    /// The database lacks a step below its version, or has one that this program never had.
    #[error("the {owner} tables have another history: step {version} is not where this program expects it")]
    Diverged {
        /// Whose tables.
        owner: &'static str,
        /// The first step that differs.
        version: i64,
    },
    /// The list of steps breaks its rules: a mistake in this program.
    #[error("the list of {owner} steps is wrong: {rule}")]
    Misuse {
        /// Whose tables.
        owner: &'static str,
        /// The rule.
        rule: &'static str,
    },
}

impl Db {
    /// Brings the tables of one crate forward to what this program knows; returns how many steps that took.
    ///
    /// # Behavior
    /// - All missing steps and their records are one transaction: a failure or a crash leaves the tables as they were.
    /// - Programs that start at once wait for one another (PostgreSQL: an advisory lock; SQLite: the write lock);
    ///   the second finds nothing to do.
    /// - A database that is newer, that has another history, or a step that was changed, is refused before anything
    ///   is written.
    ///
    /// # Errors
    /// [`DbError::Migration`], and what the database says.
    pub async fn migrate(&self, migrations: &Migrations, now: Timestamp) -> Result<usize, DbError> {
        let Migrations { owner, steps } = *migrations;
        check(owner, steps)?;
        let engine = self.engine();
        let mut tx = self.begin().await?;
        if let crate::tx::TxInner::Postgres(tx) = tx.inner() {
            // held to the end of the transaction, before the table is looked at
            sqlx::query("SELECT pg_advisory_xact_lock($1)")
                .bind(lock_key("migrations", owner))
                .execute(&mut **tx)
                .await?;
        }
        let table = format!("{owner}_schema_migrations");
        let create = format!(
            "CREATE TABLE IF NOT EXISTS {table} (version BIGINT PRIMARY KEY, name TEXT NOT NULL, \
             checksum BYTEA NOT NULL, applied_at BIGINT NOT NULL)"
        );
        let select = format!("SELECT version, checksum FROM {table} ORDER BY version");
        let insert =
            format!("INSERT INTO {table} (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)");
        // the owner's name was checked above, so nothing foreign is in these texts
        let (create, select) = (sqlx::AssertSqlSafe(create), sqlx::AssertSqlSafe(select));
        on_tx!(tx, c => sqlx::raw_sql(create).execute(c).await?.rows_affected());
        let applied: Vec<(i64, Vec<u8>)> = on_tx!(tx, c => sqlx::query_as(select).fetch_all(c).await?);
        compare(owner, steps, &applied, engine)?;

        let missing = &steps[applied.len()..];
        for step in missing {
            on_tx!(tx, c => {
                sqlx::raw_sql(step.sql(engine)).execute(&mut *c).await?;
                sqlx::query(sqlx::AssertSqlSafe(insert.as_str()))
                    .bind(step.version)
                    .bind(step.name)
                    .bind(step.checksum(engine))
                    .bind(now.micros())
                    .execute(c)
                    .await?;
            });
            tracing::info!(owner, version = step.version, name = step.name, "database step applied");
        }
        tx.commit().await?;
        Ok(missing.len())
    }
}

fn check(owner: &'static str, steps: &[Migration]) -> Result<(), MigrationError> {
    let refuse = |rule| Err(MigrationError::Misuse { owner, rule });
    if !(1..=20).contains(&owner.len()) || !owner.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return refuse("the owner is 1 to 20 of a-z");
    }
    if steps.first().is_some_and(|first| first.version < 1) {
        return refuse("versions start at 1");
    }
    if steps.windows(2).any(|pair| pair[0].version >= pair[1].version) {
        return refuse("versions ascend");
    }
    Ok(())
}

/// Holds when what was applied is exactly the first steps of the list.
fn compare(
    owner: &'static str,
    steps: &[Migration],
    applied: &[(i64, Vec<u8>)],
    engine: Engine,
) -> Result<(), MigrationError> {
    let known = steps.last().map_or(0, |step| step.version);
    if let Some((found, _)) = applied.last().filter(|(found, _)| *found > known) {
        return Err(MigrationError::Newer { owner, found: *found, known });
    }
    for (index, (version, checksum)) in applied.iter().enumerate() {
        match steps.get(index) {
            Some(step) if step.version == *version => {
                if step.checksum(engine) != *checksum {
                    return Err(MigrationError::Changed { owner, version: *version, name: step.name });
                }
            }
            _ => return Err(MigrationError::Diverged { owner, version: *version }),
        }
    }
    Ok(())
}

/// A lock of its own for each purpose and name, the same in every program.
pub(crate) fn lock_key(purpose: &str, name: &str) -> i64 {
    let digest = Sha256::digest(format!("cocoonbox {purpose} {name}").as_bytes());
    digest.iter().take(8).fold(0_i64, |key, byte| (key << 8) | i64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_list_is_refused() {
        let step = |version| Migration::new(version, "x", "SELECT 1");
        for (owner, steps, good) in [
            ("oauth", vec![step(1), step(2), step(5)], true),
            ("oauth", vec![], true),
            ("oauth", vec![step(0)], false),
            ("oauth", vec![step(2), step(2)], false),
            ("oauth", vec![step(2), step(1)], false),
            ("x; DROP", vec![], false),
            ("", vec![], false),
        ] {
            assert_eq!(check(owner, &steps).is_ok(), good, "{owner} {steps:?}");
        }
    }
}
