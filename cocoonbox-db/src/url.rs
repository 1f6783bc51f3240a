//! Where the database is; a secret, because it may carry a password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;

/// The longest text taken for a database's place.
const MAX: usize = 4096;

cocoonbox_core::secret! {
    /// A PostgreSQL URL, password and all.
    pub(crate) struct PostgresUrl;
}

/// A text that names no database. It does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a place of a database: {rule}")]
#[non_exhaustive]
pub struct DatabaseUrlError {
    /// The rule it breaks, in words a person can act on.
    pub rule: &'static str,
}

pub(crate) enum Place {
    Sqlite(PathBuf),
    Postgres { url: PostgresUrl, options: Box<PgConnectOptions> },
}

/// Where a database is: a SQLite file or a PostgreSQL server.
///
/// Reads `postgres://…`, `postgresql://…`, `sqlite:PATH` and a bare path with a `/` in it. Prints as the file's path,
/// or as server and database without user, password and parameters.
///
/// ```
/// let url: cocoonbox_db::DatabaseUrl = "postgres://me:hunter2@db.example/boxes?sslmode=require".parse()?;
/// assert_eq!(url.to_string(), "postgres://db.example:5432/boxes");
/// # Ok::<(), cocoonbox_db::DatabaseUrlError>(())
/// ```
pub struct DatabaseUrl(pub(crate) Place);

impl DatabaseUrl {
    /// Names a SQLite file.
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self(Place::Sqlite(path.into()))
    }

    /// Returns the SQLite file's path; none for PostgreSQL.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Place::Sqlite(path) => Some(path),
            Place::Postgres { .. } => None,
        }
    }

    /// Lends the whole text, password and all, for handing it to another process.
    pub fn reveal(&self) -> String {
        match &self.0 {
            Place::Sqlite(path) => format!("sqlite:{}", path.display()),
            Place::Postgres { url, .. } => url.reveal().to_owned(),
        }
    }
}

impl FromStr for DatabaseUrl {
    type Err = DatabaseUrlError;

    fn from_str(text: &str) -> Result<Self, DatabaseUrlError> {
        if text.len() > MAX || text.contains('\0') {
            return Err(DatabaseUrlError { rule: "at most 4096 bytes, none of them zero" });
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            // the driver's error repeats parts of the URL, so it ends here
            let options = PgConnectOptions::from_str(text)
                .map_err(|_| DatabaseUrlError { rule: "write postgres://user:password@host:port/database" })?
                .application_name("cocoonbox");
            let url = PostgresUrl::new(text.to_owned());
            return Ok(Self(Place::Postgres { url, options: Box::new(options) }));
        }
        let path = text.strip_prefix("sqlite:").unwrap_or(text);
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.contains('?') || path == ":memory:" {
            return Err(DatabaseUrlError { rule: "write sqlite:PATH, a plain file and no parameters" });
        }
        if !text.starts_with("sqlite:") && !path.contains('/') {
            return Err(DatabaseUrlError {
                rule: "write postgres://…, sqlite:PATH, or a path with a / in it",
            });
        }
        if !text.starts_with("sqlite:") && path.contains("://") {
            return Err(DatabaseUrlError { rule: "only postgres:// and sqlite: are known" });
        }
        Ok(Self::sqlite(path))
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Place::Postgres { options, .. } => {
                match options.get_socket() {
                    Some(folder) => write!(f, "postgres://[{}]:{}", folder.display(), options.get_port())?,
                    None => write!(f, "postgres://{}:{}", options.get_host(), options.get_port())?,
                }
                write!(f, "/{}", options.get_database().unwrap_or_default())
            }
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_place_prints_without_its_secrets() {
        for text in [
            "postgres://canaryuser:canarypass@h/d?sslmode=require&password=canarytoo",
            "postgresql://canaryuser:canarypass@localhost/d?host=/run/pg",
        ] {
            let url: DatabaseUrl = text.parse().expect(text);
            assert!(!format!("{url} {url:?}").contains("canary"), "{url}");
            assert_eq!(url.reveal(), text);
        }
    }

    #[test]
    fn what_names_no_database_is_refused_without_being_repeated() {
        let long = format!("/{}", "a".repeat(MAX));
        for text in [
            "",
            "sqlite:",
            "users.db",
            "mysql://canary",
            "sqlite:a?mode=canary",
            "/a\0canary",
            &long,
            "postgres://canary:canary@h:canary/d",
        ] {
            let error = text.parse::<DatabaseUrl>().expect_err(text);
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }

    #[test]
    fn paths_are_sqlite_files() {
        for (text, path) in [
            ("sqlite:a.db", "a.db"),
            ("sqlite:///v/a.db", "/v/a.db"),
            ("./a.db", "./a.db"),
            ("/v/a.db", "/v/a.db"),
        ] {
            assert_eq!(text.parse::<DatabaseUrl>().expect(text).path(), Some(Path::new(path)));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}") {
            let _ = text.parse::<DatabaseUrl>();
            let _ = format!("postgres://{text}").parse::<DatabaseUrl>();
        }
    }
}
