//! Why a verb did not do what it was asked, and the exit status that says so.

use std::io;

use cocoonbox_core::Retry;

use crate::exec::ExecError;
use crate::{ClientError, Endpoint, StoreError};

/// The exit statuses.
pub mod exit {
    /// Done.
    pub const DONE: u8 = 0;
    /// It failed.
    pub const FAILED: u8 = 1;
    /// The words on the command line are wrong.
    pub const USAGE: u8 = 2;
    /// The server, or the person, refused.
    pub const REFUSED: u8 = 3;
    /// Interrupted by Ctrl-C.
    pub const INTERRUPTED: u8 = 130;
    /// `rsh` does not know how the command ended.
    pub const UNKNOWN: u8 = 255;
}

/// Why a verb did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// The words on the command line are wrong.
    #[error("{0}")]
    Usage(String),
    /// There is no token for the server.
    #[error("not signed in to {endpoint}")]
    NotSignedIn {
        /// Which server.
        endpoint: Endpoint,
    },
    /// The person, or a safeguard, refused.
    #[error("{message}")]
    Refused {
        /// What was refused.
        message: String,
        /// What to do next.
        hint: Option<&'static str>,
    },
    /// Something here failed.
    #[error("{message}")]
    Failed {
        /// What.
        message: String,
        /// What to do next.
        hint: Option<&'static str>,
        /// Why.
        #[source]
        source: Option<io::Error>,
    },
    /// Interrupted while an operation went on.
    #[error("interrupted; the operation {operation} goes on")]
    Interrupted {
        /// Which operation.
        operation: String,
    },
    /// A call on the server failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A command in a box failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The store of tokens failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CliError {
    pub(super) fn failed(message: impl Into<String>, hint: Option<&'static str>) -> Self {
        Self::Failed { message: message.into(), hint, source: None }
    }

    pub(super) fn io(message: impl Into<String>, source: io::Error) -> Self {
        Self::Failed { message: message.into(), hint: None, source: Some(source) }
    }

    /// Returns the exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => exit::USAGE,
            Self::NotSignedIn { .. } | Self::Refused { .. } => exit::REFUSED,
            Self::Interrupted { .. } => exit::INTERRUPTED,
            Self::Client(error) | Self::Exec(ExecError::Call(error)) => client_status(error),
            Self::Failed { .. } | Self::Exec(_) | Self::Store(_) => exit::FAILED,
        }
    }

    /// Returns a word for the kind, for programs.
    pub fn kind(&self) -> &'static str {
        match self.status() {
            exit::USAGE => "usage",
            exit::REFUSED => "refused",
            exit::INTERRUPTED => "interrupted",
            _ => "failed",
        }
    }

    /// Returns what to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage(_) => Some("`--help` after any command shows what it takes".to_owned()),
            Self::NotSignedIn { .. } => Some(
                "sign in with `cocoonbox login`, or with `cocoonbox login --link` and the link that the first `cocoonbox up` printed"
                    .to_owned(),
            ),
            Self::Refused { hint, .. } | Self::Failed { hint, .. } => hint.map(str::to_owned),
            Self::Interrupted { .. } => Some("`cocoonbox box ls` shows how far it is".to_owned()),
            Self::Client(error) => error.next_step().map(str::to_owned),
            Self::Exec(error) => error.next_step().map(str::to_owned),
            Self::Store(error) => Some(error.next_step()),
        }
    }

    /// Returns what a caller may do after this.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Usage(_) | Self::NotSignedIn { .. } | Self::Refused { .. } => Retry::Never,
            Self::Failed { .. } | Self::Interrupted { .. } => Retry::LookFirst,
            Self::Client(error) => error.retry(),
            Self::Exec(error) => error.retry(),
            Self::Store(error) => error.retry(),
        }
    }
}

fn client_status(error: &ClientError) -> u8 {
    match error {
        ClientError::NotSignedIn { .. } | ClientError::Refused { .. } => exit::REFUSED,
        ClientError::Invalid { .. } => exit::USAGE,
        _ => exit::FAILED,
    }
}
