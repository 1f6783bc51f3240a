use std::error::Error;

use cocoonbox_core::{BoxId, BoxName, Retry};

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Somebody else wrote first; nothing happened.
    #[error("box {id} changed since it was read")]
    Conflict {
        /// Which.
        id: BoxId,
    },
    /// Another box of the owner has the name; nothing happened.
    #[error("another box is called {name}")]
    NameTaken {
        /// The name.
        name: BoxName,
    },
    /// The owner's key was used meanwhile; nothing happened.
    #[error("the idempotency key is in use")]
    KeyTaken,
    /// The store cannot be reached, or refuses; nothing happened.
    #[error("the store of boxes is not available")]
    Unavailable {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The store's disk is used up; nothing happened.
    #[error("the store of boxes has no room left")]
    Full {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The store broke off; it may have happened.
    #[error("the store of boxes broke off")]
    Unknown {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// What is stored cannot be read.
    #[error("the store holds a {what} that this version cannot read")]
    Corrupt {
        /// What kind of thing.
        what: &'static str,
        /// The cause.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl StoreError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Conflict { .. } | Self::KeyTaken => Retry::Reread,
            Self::NameTaken { .. } | Self::Corrupt { .. } => Retry::Never,
            Self::Unavailable { .. } | Self::Full { .. } => Retry::Later,
            Self::Unknown { .. } => Retry::LookFirst,
        }
    }
}
