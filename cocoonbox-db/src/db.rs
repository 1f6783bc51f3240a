//! The pool over both engines and the macros that write a statement once for both.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection as _, PgPool, SqlitePool};
use tokio::fs::OpenOptions;

use crate::notice::{self, Hub};
use crate::url::Place;
use crate::{DatabaseUrl, DbError, Notice, Tx};

/// How long a connection to a server lies unused before it is asked whether it still stands.
const TESTED_AFTER: Duration = Duration::from_secs(1);

/// Which database answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers match on each")]
pub enum Engine {
    /// A SQLite file.
    Sqlite,
    /// A PostgreSQL server.
    Postgres,
}

/// The pool of either engine, for [`on!`](crate::on).
#[derive(Clone)]
#[expect(clippy::exhaustive_enums, reason = "the macros match on both")]
pub enum Pools {
    /// A SQLite file's connections.
    Sqlite(SqlitePool),
    /// Connections to a PostgreSQL server.
    Postgres(PgPool),
}

/// How a database is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DbOptions {
    /// The most connections at a time; 8 unless told.
    pub max_connections: u32,
    /// How long a caller waits for a free connection or for another writer; 10 s unless told.
    pub patience: Duration,
}

impl Default for DbOptions {
    fn default() -> Self {
        Self { max_connections: 8, patience: Duration::from_secs(10) }
    }
}

impl DbOptions {
    /// Sets the most connections at a time; at least one.
    pub fn with_max_connections(mut self, most: u32) -> Self {
        self.max_connections = most.max(1);
        self
    }

    /// Sets how long a caller waits for a free connection or for another writer.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// A database: cheap to clone, one pool behind all clones.
#[derive(Clone)]
pub struct Db {
    pools: Pools,
    hub: Option<Arc<Hub>>,
    file: Option<Arc<Path>>,
}

impl Db {
    /// Opens the database that `url` names.
    ///
    /// # Behavior
    /// - A SQLite file is made when it is missing, readable by its owner alone (0600; an existing file is tightened to
    ///   that); its folder must exist. WAL, foreign keys on, `synchronous = FULL`: a commit survives power loss.
    /// - PostgreSQL must answer: one connection is made at once.
    ///
    /// # Errors
    /// [`DbError::Unavailable`], [`DbError::Denied`], [`DbError::Corrupt`] (the file is no database).
    pub async fn open(url: &DatabaseUrl, options: &DbOptions) -> Result<Self, DbError> {
        match &url.0 {
            Place::Sqlite(path) => Self::open_sqlite(path, options).await,
            Place::Postgres { options: connect, .. } => {
                let pool = PgPoolOptions::new()
                    .max_connections(options.max_connections)
                    .acquire_timeout(options.patience)
                    // one that was in use a moment ago is good, and asking it costs as much as a statement
                    .test_before_acquire(false)
                    .before_acquire(|connection, seen| {
                        Box::pin(async move {
                            if seen.idle_for > TESTED_AFTER {
                                connection.ping().await?;
                            }
                            Ok(true)
                        })
                    })
                    .connect_with((**connect).clone())
                    .await?;
                Ok(Self { pools: Pools::Postgres(pool), hub: None, file: None })
            }
        }
    }

    async fn open_sqlite(path: &Path, options: &DbOptions) -> Result<Self, DbError> {
        create_private(path).await.map_err(DbError::file)?;
        let path = tokio::fs::canonicalize(path).await.map_err(DbError::file)?;
        let connect = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(options.patience);
        let pool = SqlitePoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.patience)
            // a file does not go away as a server does
            .test_before_acquire(false)
            // a commit that found no room has undone itself, which its connection does not know: it would begin nothing
            .before_acquire(|connection, _| {
                let usable = !connection.is_in_transaction();
                Box::pin(async move { Ok(usable) })
            })
            .connect_with(connect)
            .await?;
        let hub = Hub::of(&path);
        Ok(Self { pools: Pools::Sqlite(pool), hub: Some(hub), file: Some(path.into()) })
    }

    /// Returns which database answers.
    pub const fn engine(&self) -> Engine {
        match self.pools {
            Pools::Sqlite(_) => Engine::Sqlite,
            Pools::Postgres(_) => Engine::Postgres,
        }
    }

    /// Returns `sqlite` or `postgres`, whichever this engine is: for the few statements that must differ.
    pub fn pick<T>(&self, sqlite: T, postgres: T) -> T {
        match self.pools {
            Pools::Sqlite(_) => sqlite,
            Pools::Postgres(_) => postgres,
        }
    }

    /// Lends the pool to [`on!`](crate::on).
    pub const fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Returns the file of a SQLite database.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(crate) fn hub(&self) -> Option<&Arc<Hub>> {
        self.hub.as_ref()
    }

    /// Starts a transaction; on SQLite one that holds the write lock.
    ///
    /// # Errors
    /// [`DbError::Busy`] when another writer does not end in time; what the database says.
    pub async fn begin(&self) -> Result<Tx, DbError> {
        match (&self.pools, &self.hub) {
            (Pools::Sqlite(pool), Some(hub)) => {
                Ok(Tx::sqlite(pool.begin_with("BEGIN IMMEDIATE").await?, Arc::clone(hub)))
            }
            (Pools::Sqlite(pool), None) => {
                Ok(Tx::sqlite(pool.begin_with("BEGIN IMMEDIATE").await?, Arc::new(Hub::default())))
            }
            (Pools::Postgres(pool), _) => Ok(Tx::postgres(pool.begin().await?)),
        }
    }

    /// Sends a notice at once; inside a transaction use [`Tx::notify`].
    ///
    /// # Errors
    /// [`DbError::InvalidNotice`] for a channel or payload over its limit, and what the database says.
    pub async fn notify(&self, channel: &str, payload: &str) -> Result<(), DbError> {
        notice::check(channel, payload)?;
        match &self.pools {
            Pools::Sqlite(_) => {
                if let Some(hub) = &self.hub {
                    hub.publish(channel, Notice::Changed { payload: payload.to_owned() });
                }
            }
            Pools::Postgres(pool) => {
                sqlx::query("SELECT pg_notify($1, $2)").bind(channel).bind(payload).execute(pool).await?;
            }
        }
        Ok(())
    }

    /// Asks the database for one row, for health checks.
    ///
    /// # Errors
    /// What the database says.
    pub async fn ping(&self) -> Result<(), DbError> {
        crate::on!(self, pool => sqlx::query("SELECT 1").execute(pool).await.map(drop))?;
        Ok(())
    }

    /// Waits for what runs and closes all connections; later calls are [`DbError::Unavailable`].
    pub async fn close(&self) {
        crate::on!(self, pool => pool.close().await);
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // the pools' own Debug prints connect options
        f.debug_struct("Db").field("engine", &self.engine()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite(_) => "Sqlite(..)",
            Self::Postgres(_) => "Postgres(..)",
        })
    }
}

/// Makes the file, readable by its owner alone, before the driver would make it with the process's umask. The
/// `-wal` and `-shm` files beside it take its mode.
async fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).await {
        Ok(file) => {
            file.sync_all().await?;
            // without this the file's name may be gone after a power loss
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            tokio::fs::File::open(folder).await?.sync_all().await
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let mode = tokio::fs::metadata(path).await?.permissions().mode();
            // nothing for group and others
            if mode.trailing_zeros() >= 6 {
                return Ok(());
            }
            tokio::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & 0o7700)).await
        }
        Err(error) => Err(error),
    }
}

/// Runs one expression on whichever engine a [`Db`] is: `on!(db, pool => expression)`.
///
/// The expression is written once and compiled twice, with `pool: &SqlitePool` and with `pool: &PgPool`, so each copy
/// is checked against its concrete driver. It must have the same type in both; it may `.await`, use `?` and `return`.
/// It answers the driver's `Result`; `?` in a function that returns [`DbError`](crate::DbError) translates.
///
/// ```
/// use cocoonbox_db::{Db, DbError, on, sqlx};
///
/// async fn rename(db: &Db, id: &str, name: &str, revision: i64) -> Result<bool, DbError> {
///     const RENAME: &str = "UPDATE boxes SET name = $1, revision = revision + 1 WHERE id = $2 AND revision = $3";
///     let done = on!(db, pool => {
///         sqlx::query(RENAME).bind(name).bind(id).bind(revision).execute(pool).await?.rows_affected()
///     });
///     Ok(done == 1)
/// }
/// ```
#[macro_export]
macro_rules! on {
    ($db:expr, $pool:ident => $body:expr) => {
        match $db.pools() {
            $crate::Pools::Sqlite($pool) => $body,
            $crate::Pools::Postgres($pool) => $body,
        }
    };
}

/// Runs one expression inside a [`Tx`]: `on_tx!(tx, connection => expression)`.
///
/// As [`on!`](crate::on), with `connection: &mut SqliteConnection` or `&mut PgConnection`; for several statements in
/// one expression lend it anew: `&mut *connection`.
///
/// ```
/// use cocoonbox_db::{Db, DbError, on_tx, sqlx};
///
/// async fn move_one(db: &Db, from: &str, to: &str) -> Result<(), DbError> {
///     let mut tx = db.begin().await?;
///     on_tx!(tx, c => {
///         sqlx::query("UPDATE jar SET n = n - 1 WHERE id = $1").bind(from).execute(&mut *c).await?;
///         sqlx::query("UPDATE jar SET n = n + 1 WHERE id = $1").bind(to).execute(c).await?;
///     });
///     tx.notify("jars", to).await?;
///     tx.commit().await
/// }
/// ```
#[macro_export]
macro_rules! on_tx {
    ($tx:expr, $connection:ident => $body:expr) => {
        match $tx.inner() {
            $crate::__private::TxInner::Sqlite(tx) => {
                let $connection = &mut **tx;
                $body
            }
            $crate::__private::TxInner::Postgres(tx) => {
                let $connection = &mut **tx;
                $body
            }
        }
    };
}
