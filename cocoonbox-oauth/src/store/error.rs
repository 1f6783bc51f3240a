use std::error::Error;

use cocoonbox_core::{Retry, TokenId, UserId, UserName};

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserStoreError {
    /// Somebody has the name; nothing happened.
    #[error("the user name {name} is taken")]
    NameTaken {
        /// The name.
        name: UserName,
    },
    /// Somebody saved the user since it was read; nothing happened.
    #[error("user {id} changed since it was read")]
    Stale {
        /// Which user.
        id: UserId,
    },
    /// There is no such user.
    #[error("no user {id}")]
    NoUser {
        /// What was asked for.
        id: UserId,
    },
    /// The user has no such token.
    #[error("no token {id}")]
    NoToken {
        /// What was asked for.
        id: TokenId,
    },
    /// An id or a hash is in use; nothing happened. Draw anew.
    #[error("an id or a secret is in use already")]
    Taken,
    /// The link is unknown, spent, too old, or its user is shut out.
    #[error("the sign-in link is not valid: it works once and for ten minutes")]
    LinkRefused,
    /// A limit is reached; nothing happened.
    #[error("the user has {limit} {what} already; remove one first")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The store cannot be reached now; nothing happened.
    #[error("the store of users cannot be reached")]
    Unavailable {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The store was lost while it was asked; whether it happened is unknown.
    #[error("the store of users did not answer")]
    Uncertain {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The store is damaged or not of this program.
    #[error("the store of users does not work: {reason}")]
    Broken {
        /// What is wrong; no contents.
        reason: &'static str,
        /// The cause.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl UserStoreError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Stale { .. } | Self::Taken => Retry::Reread,
            Self::Unavailable { .. } => Retry::Later,
            Self::Uncertain { .. } => Retry::LookFirst,
            Self::NameTaken { .. }
            | Self::NoUser { .. }
            | Self::NoToken { .. }
            | Self::LinkRefused
            | Self::TooMany { .. }
            | Self::Broken { .. } => Retry::Never,
        }
    }
}
