//! Saying that a database is in use: who would harm what others keep in it finds out before.

use std::fmt;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use sqlx::{Connection as _, PgConnection, PgPool};

use crate::{Db, DbError, Pools};

/// Whether others may use the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a lock is one or the other")]
pub enum Use {
    /// Nobody else, of either kind.
    Alone,
    /// Others who share it.
    Shared,
}

/// Holds a name in a database until it is dropped or its process ends.
///
/// On PostgreSQL it is a connection of its own, outside the pool; a server that restarts forgets it, and the holder is
/// not told. What it guards must bear that: it keeps people from a mistake, and is no fence.
pub struct Hold(#[expect(dead_code, reason = "held for its drop")] Held);

enum Held {
    File(#[expect(dead_code, reason = "held for its drop")] File),
    Session(#[expect(dead_code, reason = "held for its drop")] PgConnection),
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold(..)")
    }
}

impl Db {
    /// Takes hold of `name` (1 to 20 of a-z) for this process, and answers at once: nothing when somebody holds it in
    /// a way that excludes `share`.
    ///
    /// On SQLite a file `<database>-<name>.lock` beside the database is locked, on PostgreSQL an advisory lock of the
    /// session. A holder that a network cut off is forgotten after some 40 seconds.
    ///
    /// # Errors
    /// What the database or the file system says.
    pub async fn hold(&self, name: &'static str, share: Use) -> Result<Option<Hold>, DbError> {
        debug_assert!((1..=20).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase()));
        match (self.pools(), self.file()) {
            (Pools::Postgres(pool), _) => session(pool, name, share).await,
            (Pools::Sqlite(_), Some(path)) => file(path, name, share).map_err(DbError::file),
            (Pools::Sqlite(_), None) => Err(DbError::file(std::io::ErrorKind::NotFound.into())),
        }
    }
}

fn file(database: &Path, name: &str, share: Use) -> std::io::Result<Option<Hold>> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut path = database.as_os_str().to_owned();
    path.push(format!("-{name}.lock"));
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(PathBuf::from(path))?;
    let taken = match share {
        Use::Alone => file.try_lock(),
        Use::Shared => file.try_lock_shared(),
    };
    match taken {
        Ok(()) => Ok(Some(Hold(Held::File(file)))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

async fn session(pool: &PgPool, name: &str, share: Use) -> Result<Option<Hold>, DbError> {
    // not one of the pool's, which come and go
    let mut connection = PgConnection::connect_with(&pool.connect_options()).await?;
    // no effect on a socket of the same machine, where the kernel tells at once
    const WATCHED: &str =
        "SET tcp_keepalives_idle = 20; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4";
    sqlx::raw_sql(WATCHED).execute(&mut connection).await?;
    let take = match share {
        Use::Alone => "SELECT pg_try_advisory_lock($1)",
        Use::Shared => "SELECT pg_try_advisory_lock_shared($1)",
    };
    let key = crate::migrate::lock_key("hold", name);
    let taken: bool = sqlx::query_scalar(take).bind(key).fetch_one(&mut connection).await?;
    if taken {
        return Ok(Some(Hold(Held::Session(connection))));
    }
    connection.close().await?;
    Ok(None)
}
