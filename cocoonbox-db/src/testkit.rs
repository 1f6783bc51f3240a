//! Throw-away databases for the suites of stores, and a guard over their statements.

use std::ops::Deref;
use std::time::Duration;

use cocoonbox_core::{Entropy as _, SystemEntropy};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqlSafeStr as _};

use crate::{DatabaseUrl, Db, DbError, DbOptions, on};

/// Names the environment variable with an administrator's URL of a PostgreSQL server, or `skip`.
pub const POSTGRES_ENV: &str = "COCOONBOX_TEST_POSTGRES";

/// A database of one test's own; gone when dropped. Use it where a [`Db`] is wanted.
#[derive(Debug)]
pub struct TestDb {
    db: Db,
    url: String,
    _folder: Option<tempfile::TempDir>,
    _dropper: Option<Dropper>,
}

impl TestDb {
    /// Makes a SQLite file in a temporary folder.
    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = DatabaseUrl::sqlite(folder.path().join("test.db"));
        let db = Db::open(&url, &options()).await.expect("a fresh SQLite file opens");
        Self { db, url: url.reveal(), _folder: Some(folder), _dropper: None }
    }

    /// Makes a database on the server that `COCOONBOX_TEST_POSTGRES` names; none when it says `skip`.
    ///
    /// # Panics
    /// When the variable is not set, or the server does not answer: a test that needs PostgreSQL must not pass
    /// without one by accident.
    pub async fn postgres() -> Option<Self> {
        let admin = std::env::var(POSTGRES_ENV).unwrap_or_else(|_| {
            panic!(
                "this test needs PostgreSQL: run `make test`, which starts one, or set {POSTGRES_ENV} to an \
                 administrator's postgres:// URL, or to `skip` to leave these tests out"
            )
        });
        if admin == "skip" {
            return None;
        }
        let mut random = [0_u8; 8];
        SystemEntropy.fill(&mut random).expect("randomness");
        let name = format!("cocoonbox_test_{:016x}", u64::from_le_bytes(random));
        administer(&admin, format!("CREATE DATABASE {name}")).await.unwrap_or_else(|error| {
            panic!("the server that {POSTGRES_ENV} names makes no database: {error}");
        });
        let dropper = Dropper { admin: admin.clone(), name: name.clone() };
        let url = with_database(&admin, &name);
        let parsed: DatabaseUrl = url.parse().expect("the administrator's URL with another database");
        let db = Db::open(&parsed, &options()).await.expect("the fresh database opens");
        Some(Self { db, url, _folder: None, _dropper: Some(dropper) })
    }

    /// Returns where it is, for other processes; the password is in it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens it once more, as another program would.
    pub async fn reopen(&self) -> Db {
        let url: DatabaseUrl = self.url.parse().expect("it was opened by this URL");
        Db::open(&url, &options()).await.expect("it opens again")
    }
}

impl Deref for TestDb {
    type Target = Db;

    fn deref(&self) -> &Db {
        &self.db
    }
}

fn options() -> DbOptions {
    // other tests of the same run keep the disk busy
    DbOptions::default().with_max_connections(4).with_patience(Duration::from_mins(1))
}

#[derive(Debug)]
struct Dropper {
    admin: String,
    name: String,
}

impl Drop for Dropper {
    fn drop(&mut self) {
        let (admin, sql) =
            (self.admin.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        // a thread of its own, because a test's runtime may be ending and cannot be blocked on from inside
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime {
                // a leftover goes with the test run's server
                let _ = runtime.block_on(administer(&admin, sql));
            }
        });
        let _ = thread.join();
    }
}

async fn administer(admin: &str, sql: String) -> Result<(), DbError> {
    let mut connection = sqlx::PgConnection::connect(admin).await?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

/// Puts another database into a URL of the form `postgres://authority/database?parameters`.
fn with_database(url: &str, name: &str) -> String {
    let (front, parameters) = url.split_once('?').map_or((url, None), |(front, rest)| (front, Some(rest)));
    let start = front.find("://").map_or(0, |at| at + 3);
    let end = front[start..].find('/').map_or(front.len(), |at| start + at);
    let mut text = format!("{}/{name}", &front[..end]);
    if let Some(parameters) = parameters {
        text.push('?');
        text.push_str(parameters);
    }
    text
}

/// Prepares each statement on `db` without running it: a wrong table, column or function fails here and not in
/// production. Keep all statements of a store in one list of `(sqlite, postgres)` or equal pairs and test it on both.
///
/// # Panics
/// With the statement and the database's words when one is refused.
pub async fn statements_are_taken(db: &Db, statements: &[&'static str]) {
    for statement in statements {
        let outcome = on!(db, pool => match pool.acquire().await {
            Ok(mut connection) => (*connection).prepare(statement.into_sql_str()).await.map(drop),
            Err(error) => Err(error),
        });
        if let Err(error) = outcome {
            panic!("{:?} does not take {statement:?}: {}", db.engine(), DbError::from(error));
        }
    }
}

/// Makes tests of async functions `fn name(db: &TestDb)`, each on a database of its own: `both_engines! { a b c }`
/// declares `sqlite::a`, `postgres::a` and so on. Needs `tokio` with `macros` and `rt-multi-thread`.
///
/// ```
/// # mod outer {
/// async fn it_answers(db: &cocoonbox_db::testkit::TestDb) {
///     db.ping().await.expect("an answer");
/// }
/// cocoonbox_db::both_engines! { it_answers }
/// # }
/// ```
#[macro_export]
macro_rules! both_engines {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&$crate::testkit::TestDb::sqlite().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if let Some(db) = $crate::testkit::TestDb::postgres().await {
                    super::$name(&db).await;
                }
            })*
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_takes_another_database() {
        for (url, expected) in [
            ("postgres://u:p@h:1/a?x=/y", "postgres://u:p@h:1/n?x=/y"),
            ("postgres://u@h", "postgres://u@h/n"),
            ("postgres:///a?host=/s", "postgres:///n?host=/s"),
        ] {
            assert_eq!(with_database(url, "n"), expected);
        }
    }
}
