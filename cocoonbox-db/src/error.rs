//! What goes wrong with a database, by what the caller can do next.

use std::error::Error;
use std::io;

use cocoonbox_core::Retry;

use crate::{DatabaseUrlError, MigrationError};

/// Why a database did not do what it was asked.
///
/// Holds codes, names of constraints and columns, and causes from the operating system; never a row's contents, a
/// bound value or a URL. The driver's own errors do, and are therefore not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DbError {
    /// The database cannot be reached now; nothing happened.
    #[error("the database is not available: {reason}")]
    Unavailable {
        /// What is missing.
        reason: &'static str,
        /// What the operating system said.
        #[source]
        source: Option<io::Error>,
    },
    /// The connection broke while it was asked; whether it happened is unknown.
    #[error("the connection to the database broke: {reason}")]
    Interrupted {
        /// What broke.
        reason: &'static str,
        /// What the operating system said.
        #[source]
        source: Option<io::Error>,
    },
    /// Somebody else was writing the same; nothing happened.
    #[error("the database is busy with another writer (code {code})")]
    Busy {
        /// The database's code.
        code: String,
    },
    /// The disk or another resource of the database is used up; nothing happened.
    #[error("the database has no room (code {code})")]
    Full {
        /// The database's code.
        code: String,
    },
    /// The database, or its file, does not let us in.
    #[error("the database refuses access: {reason}")]
    Denied {
        /// What is refused.
        reason: String,
        /// What the operating system said.
        #[source]
        source: Option<io::Error>,
    },
    /// A unique constraint stands against it; nothing happened.
    #[error("{constraint} holds already")]
    UniqueViolation {
        /// `table_column_key` or `table_pkey`, the same on both engines.
        constraint: String,
    },
    /// Another constraint stands against it; nothing happened.
    #[error("a constraint refuses it: {constraint}")]
    ConstraintViolation {
        /// Its name, or its kind where the engine tells no name.
        constraint: String,
    },
    /// What is stored is not what this program stores.
    #[error("the database holds what it should not: {what}")]
    Corrupt {
        /// Which column or file; not its contents.
        what: String,
    },
    /// The tables are not those of this program.
    #[error(transparent)]
    Migration(#[from] MigrationError),
    /// The text names no database.
    #[error(transparent)]
    Url(#[from] DatabaseUrlError),
    /// A channel's name or a payload breaks a limit; nothing happened.
    #[error("not a notice: {rule}")]
    InvalidNotice {
        /// The limit.
        rule: &'static str,
    },
    /// A statement is wrong: a mistake in this program.
    #[error("the database does not take a statement (code {code}): {message}")]
    Misuse {
        /// The database's code.
        code: String,
        /// The database's words, where they speak of the statement and not of values.
        message: String,
    },
}

impl DbError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Unavailable { .. } | Self::Full { .. } => Retry::Later,
            Self::Interrupted { .. } => Retry::LookFirst,
            Self::Busy { .. } | Self::UniqueViolation { .. } => Retry::Reread,
            Self::Denied { .. }
            | Self::ConstraintViolation { .. }
            | Self::Corrupt { .. }
            | Self::Migration(_)
            | Self::Url(_)
            | Self::InvalidNotice { .. }
            | Self::Misuse { .. } => Retry::Never,
        }
    }

    /// Returns whether this is a violation of the unique constraint `name`.
    pub fn violates(&self, name: &str) -> bool {
        matches!(self, Self::UniqueViolation { constraint } if constraint == name)
    }

    /// Says that a column or a value in it is not what this program writes.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }

    pub(crate) fn file(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::Denied {
                reason: "the file cannot be opened for writing".to_owned(),
                source: Some(error),
            },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { code: "file".to_owned() }
            }
            _ => Self::Unavailable { reason: "the file cannot be opened", source: Some(error) },
        }
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => from_database(&*error),
            sqlx::Error::Io(error) => from_io(error),
            sqlx::Error::Tls(error) => Self::Interrupted {
                reason: "TLS failed",
                source: error.downcast::<io::Error>().ok().map(|error| *error),
            },
            sqlx::Error::PoolTimedOut => {
                Self::Unavailable { reason: "no connection became free in time", source: None }
            }
            sqlx::Error::PoolClosed => Self::Unavailable { reason: "it was closed", source: None },
            sqlx::Error::WorkerCrashed => Self::Interrupted { reason: "its worker ended", source: None },
            sqlx::Error::Protocol(_) => {
                Self::Interrupted { reason: "the server broke the protocol", source: None }
            }
            sqlx::Error::RowNotFound => Self::corrupt("a row that must exist is missing"),
            sqlx::Error::ColumnDecode { index, .. } => Self::corrupt(format!("column {index}")),
            sqlx::Error::ColumnNotFound(name) => Self::corrupt(format!("no column {name}")),
            sqlx::Error::Decode(_) => Self::corrupt("a value does not decode"),
            sqlx::Error::Configuration(_) => Self::Url(DatabaseUrlError { rule: "the driver refuses it" }),
            other => Self::Misuse { code: "driver".to_owned(), message: variant(&other).to_owned() },
        }
    }
}

fn variant(error: &sqlx::Error) -> &'static str {
    match error {
        sqlx::Error::Encode(_) => "a value does not encode",
        sqlx::Error::TypeNotFound { .. } => "a type is unknown",
        sqlx::Error::ColumnIndexOutOfBounds { .. } => "a column's index is out of bounds",
        sqlx::Error::InvalidSavePointStatement | sqlx::Error::BeginFailed => "a transaction did not begin",
        _ => "the driver refuses it",
    }
}

fn from_io(error: io::Error) -> DbError {
    use io::ErrorKind::{
        ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound, PermissionDenied, TimedOut,
    };
    match error.kind() {
        // these come from connecting, so nothing was asked yet
        ConnectionRefused | HostUnreachable | NetworkUnreachable | NotFound | TimedOut => {
            DbError::Unavailable { reason: "it cannot be reached", source: Some(error) }
        }
        PermissionDenied => {
            DbError::Denied { reason: "its socket is closed to this user".to_owned(), source: Some(error) }
        }
        _ => DbError::Interrupted { reason: "reading or writing failed", source: Some(error) },
    }
}

fn from_database(error: &dyn sqlx::error::DatabaseError) -> DbError {
    let code = error.code().map(std::borrow::Cow::into_owned).unwrap_or_default();
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        from_sqlite(code, error)
    } else {
        from_postgres(code, error)
    }
}

fn from_sqlite(code: String, error: &dyn sqlx::error::DatabaseError) -> DbError {
    let extended = code.parse::<i32>().unwrap_or_default();
    match (extended & 0xff, extended) {
        (5 | 6, _) => DbError::Busy { code },
        (13, _) => DbError::Full { code },
        (3 | 8 | 23, _) => DbError::Denied { reason: format!("code {code}"), source: None },
        (14, _) => DbError::Unavailable { reason: "the file cannot be opened", source: None },
        (10, _) => DbError::Interrupted { reason: "reading or writing the file failed", source: None },
        (11, _) => DbError::corrupt("the file is damaged"),
        (26, _) => DbError::corrupt("the file is no SQLite database"),
        (19, 1555 | 2067) => {
            DbError::UniqueViolation { constraint: sqlite_constraint(error.message(), extended == 1555) }
        }
        (19, _) => {
            // the words are `CHECK constraint failed: name` and the like: names alone
            let name = error.message().rsplit_once(": ").map_or(error.message(), |(_, name)| name);
            DbError::ConstraintViolation { constraint: name.to_owned() }
        }
        // SQLITE_ERROR and SQLITE_RANGE speak of the statement
        (1 | 25, _) => DbError::Misuse { code, message: error.message().to_owned() },
        _ => DbError::Misuse { code, message: "unexpected code".to_owned() },
    }
}

/// Turns `UNIQUE constraint failed: t.a, t.b` into the name that PostgreSQL gives the same constraint.
fn sqlite_constraint(message: &str, primary: bool) -> String {
    let columns = message.rsplit_once(": ").map_or(message, |(_, columns)| columns);
    if let Some(name) = columns.strip_prefix("index '") {
        return name.trim_end_matches('\'').to_owned();
    }
    let mut parts = columns.split(", ").filter_map(|part| part.split_once('.'));
    let Some((table, first)) = parts.next() else { return columns.to_owned() };
    if primary {
        return format!("{table}_pkey");
    }
    let mut name = format!("{table}_{first}");
    for (_, column) in parts {
        name.push('_');
        name.push_str(column);
    }
    name.push_str("_key");
    name
}

fn from_postgres(code: String, error: &dyn sqlx::error::DatabaseError) -> DbError {
    let constraint = || error.constraint().unwrap_or("unnamed").to_owned();
    match (code.get(..2).unwrap_or_default(), code.as_str()) {
        (_, "23505") => DbError::UniqueViolation { constraint: constraint() },
        ("23", _) => DbError::ConstraintViolation { constraint: constraint() },
        (_, "53100" | "53200") => DbError::Full { code },
        (_, "40001" | "40P01" | "55P03") => DbError::Busy { code },
        (_, "57P03" | "53300" | "53400") => {
            DbError::Unavailable { reason: "the server takes no connections now", source: None }
        }
        ("57" | "08" | "40", _) => DbError::Interrupted { reason: "the server ended the work", source: None },
        ("28", _) => DbError::Denied { reason: "user or password is wrong".to_owned(), source: None },
        (_, "42501") => DbError::Denied { reason: "the user lacks a privilege".to_owned(), source: None },
        (_, "3D000") => DbError::Denied { reason: "there is no such database".to_owned(), source: None },
        ("XX", _) => DbError::corrupt(format!("the server reports code {code}")),
        // class 42 speaks of the statement, which is a constant of the program
        ("42", _) => DbError::Misuse { code, message: error.message().to_owned() },
        _ => DbError::Misuse {
            code,
            message: "the server's words may hold values and are left out".to_owned(),
        },
    }
}

/// Walks an error's causes into one line, for logs.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlites_words_become_postgresqls_names() {
        for (message, primary, name) in [
            ("UNIQUE constraint failed: users.name", false, "users_name_key"),
            ("UNIQUE constraint failed: users.id", true, "users_pkey"),
            ("UNIQUE constraint failed: t.a, t.b", false, "t_a_b_key"),
            ("UNIQUE constraint failed: index 'one_personal_key'", false, "one_personal_key"),
        ] {
            assert_eq!(sqlite_constraint(message, primary), name);
        }
    }
}
