//! The port for codes, grants and their access tokens.

mod memory;
#[cfg(feature = "sql")]
mod moves;
#[cfg(feature = "sql")]
mod sql;

use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::{GrantId, Timestamp, TokenId, UserId};

use super::{User, UserStoreError};
use crate::{AccessRecord, ClientId, GrantRecord, Label, TokenHash};
#[cfg(feature = "sql")]
pub(super) use moves::Moves;
#[cfg(feature = "sql")]
pub use sql::GRANT_CHANNEL;
#[cfg(all(test, feature = "sql"))]
pub(super) use sql::STATEMENTS;

/// How long a code works.
pub const CODE_LIFE: Duration = Duration::from_mins(1);
/// How long a spent code is remembered, so that a second use of it is seen.
pub(crate) const SPENT_FOR: Duration = Duration::from_mins(10);

/// What a code is exchanged for. Ids are drawn when the user allows it, so that a second use of the code finds what the
/// first one made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "every store handles each")]
pub enum Promise {
    /// A device of the user's own.
    Device {
        /// Its token's id.
        token: TokenId,
        /// What it is called.
        label: Label,
    },
    /// A grant for an outside agent.
    Grant(Box<GrantRecord>),
}

/// An authorization code, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct CodeRecord {
    /// All that is kept of the code.
    pub hash: TokenHash,
    /// For which client it is.
    pub client: ClientId,
    /// Who allowed it.
    pub user: UserId,
    /// Where the browser was sent; the exchange names it again.
    pub redirect_uri: String,
    /// The S256 challenge.
    pub challenge: String,
    /// What it is exchanged for.
    pub promise: Promise,
    /// From when on it is refused.
    pub expires_at: Timestamp,
}

/// What came of spending a code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers decide for each")]
pub enum Spent {
    /// It is the first use.
    First(Box<CodeRecord>),
    /// It was used before: whatever the first use made must end (RFC 6749, section 4.1.2).
    Again(Box<CodeRecord>),
    /// It is unknown or over.
    Unknown,
}

/// A grant that stands, with whoever gave it and what of its access tokens works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct LivingGrant {
    /// Who gave it.
    pub user: User,
    /// The grant.
    pub grant: GrantRecord,
    /// Its access tokens: the newest, and those before it that are not over.
    pub access: Vec<AccessRecord>,
}

/// Where the authorization server keeps codes and grants, beside the users of a [`UserStore`](super::UserStore).
///
/// # Behavior
/// - Each call is one step: seen whole by others, or not at all; a refused call changes nothing.
/// - What was answered `Ok` survives a crash of the process and, with a durable store, a loss of power.
/// - Each change of a grant or its tokens (not [`GrantStore::touch_grants`]) wakes the [`GrantChanges`] of
///   [`GrantStore::grant_changes`].
#[async_trait]
pub trait GrantStore: std::fmt::Debug + Send + Sync + 'static {
    /// Keeps a code. Codes that were over ten minutes ago are forgotten.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoUser`], [`UserStoreError::Taken`].
    async fn put_code(&self, code: &CodeRecord, now: Timestamp) -> Result<(), UserStoreError>;

    /// Spends a code. Of callers that race for one exactly one gets [`Spent::First`].
    async fn spend_code(&self, hash: &TokenHash, now: Timestamp) -> Result<Spent, UserStoreError>;

    /// Begins a grant with its first access token.
    ///
    /// # Behavior
    /// - [`UserStoreError::TooMany`] over [`GRANTS_MAX`](crate::GRANTS_MAX) that stand; those that are over or ended
    ///   longer than ten minutes ago are forgotten.
    /// - [`UserStoreError::NoUser`] when there is no such user or it is shut out, [`UserStoreError::Taken`].
    async fn begin_grant(
        &self,
        grant: &GrantRecord,
        access: &AccessRecord,
        now: Timestamp,
    ) -> Result<(), UserStoreError>;

    /// Returns a grant and its user, also one that ended; none when it is unknown.
    async fn grant(&self, id: &GrantId) -> Result<Option<(User, GrantRecord)>, UserStoreError>;

    /// Moves a grant to the next generation if `access.generation` is the one after the newest, and adds its access
    /// token; or, where `access` is of the newest, lets that token work until `access.expires_at`. Access tokens two
    /// generations back go. Returns whether it did: no says that the grant changed or does not stand.
    async fn put_access(&self, access: &AccessRecord, now: Timestamp) -> Result<bool, UserStoreError>;

    /// Ends a grant and its tokens; `of` restricts it to one user's. Returns whether it stood.
    async fn end_grant(
        &self,
        id: &GrantId,
        of: Option<&UserId>,
        now: Timestamp,
    ) -> Result<bool, UserStoreError>;

    /// Ends all grants of a user.
    async fn end_grants(&self, of: &UserId, now: Timestamp) -> Result<(), UserStoreError>;

    /// Returns the grants that stand, with their access tokens, in one order that does not change: of one user, one
    /// grant, or all; those after `after`; at most [`PAGE_MAX`](crate::PAGE_MAX), fewer when there are no more. Those of users that are shut out
    /// are among them.
    async fn living(
        &self,
        which: Which<'_>,
        after: Option<&GrantId>,
        now: Timestamp,
    ) -> Result<Vec<LivingGrant>, UserStoreError>;

    /// Notes that a user has seen the list of its grants.
    async fn see_grants(&self, of: &UserId) -> Result<(), UserStoreError>;

    /// Records when grants were used. A time never goes back; grants that are gone are passed over.
    async fn touch_grants(&self, used: &[(GrantId, Timestamp)]) -> Result<(), UserStoreError>;

    /// Starts to hear changes of grants.
    async fn grant_changes(&self) -> Result<Box<dyn GrantChanges>, UserStoreError>;
}

/// A change of one grant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores build it whole")]
pub struct GrantChange {
    /// Which grant.
    pub grant: GrantId,
    /// The generation that it was moved to, when that is all that changed: whoever knows that one need not read it.
    pub generation: Option<i64>,
}

/// Tells which grants changed.
#[async_trait]
pub trait GrantChanges: std::fmt::Debug + Send + 'static {
    /// Waits for the next change of one grant; none when any may have changed. Safe to cancel.
    async fn next(&mut self) -> Option<GrantChange>;
}

/// Which grants are looked for.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "every store handles each")]
pub enum Which<'a> {
    /// All.
    All,
    /// Those that a user gave.
    Of(&'a UserId),
    /// One.
    One(&'a GrantId),
}
