//! Which saves there are: the one thing that is written by compare-and-set.

mod ledger;
mod memory;
mod store;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

use std::error::Error;
use std::fmt;

use async_trait::async_trait;
use cocoonbox_core::Retry;

use crate::Label;

pub use ledger::{BoxSaves, CommitRefusal, Keep, KeepRule, Ledger, Mark, SaveEntry};
pub use memory::MemoryCatalog;
pub use store::{ObjectCatalog, recover};

/// Counts the writes of one user's ledger; 0 before the first.
pub type Revision = u64;

/// Why a catalog did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// Somebody else wrote first; nothing happened.
    #[error("the catalog of {uid} changed since it was read")]
    Conflict {
        /// Whose.
        uid: Label,
    },
    /// It cannot be reached; a write may have happened.
    #[error("the catalog is not available")]
    Unavailable {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// What is stored cannot be read.
    #[error("the catalog holds what this version cannot read")]
    Corrupt {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl CatalogError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Conflict { .. } => Retry::Reread,
            Self::Unavailable { .. } => Retry::LookFirst,
            Self::Corrupt { .. } => Retry::Never,
        }
    }
}

/// Where each user's [`Ledger`] is kept.
///
/// # Behavior
/// - Comparing the revision and writing is one step: of several writes that expect one revision, one succeeds, the
///   others are [`CatalogError::Conflict`] and change nothing. A finished write is durable.
/// - What was never written is the empty ledger at revision 0. Revisions only grow.
/// - Users do not see each other.
#[async_trait]
pub trait Catalog: fmt::Debug + Send + Sync + 'static {
    /// Returns a user's ledger and the revision it was read at.
    async fn load(&self, uid: &Label) -> Result<(Ledger, Revision), CatalogError>;
    /// Writes the ledger if the revision is still this one; returns the new one.
    async fn store(&self, uid: &Label, ledger: &Ledger, expect: Revision) -> Result<Revision, CatalogError>;
}

/// Reads, lets `decide` change the ledger, writes; reads anew when somebody else wrote first, eight times at most. A
/// ledger that `decide` leaves as it was is not written.
///
/// # Errors
/// What `decide` says, and the catalog's; [`CatalogError::Conflict`] when others never stopped writing.
pub async fn update<T, E: From<CatalogError>>(
    catalog: &dyn Catalog,
    uid: &Label,
    mut decide: impl FnMut(&mut Ledger) -> Result<T, E>,
) -> Result<T, E> {
    let mut left = 8;
    loop {
        let (mut ledger, revision) = catalog.load(uid).await?;
        let before = ledger.clone();
        let decided = decide(&mut ledger)?;
        if ledger == before {
            return Ok(decided);
        }
        match catalog.store(uid, &ledger, revision).await {
            Err(CatalogError::Conflict { .. }) if left > 0 => left -= 1,
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(decided),
        }
    }
}
