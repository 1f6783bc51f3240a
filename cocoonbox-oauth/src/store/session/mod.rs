//! The port for passwords and the console's sessions.

mod memory;
#[cfg(feature = "sql")]
mod sql;

use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::{ConsoleSessionId, Timestamp, UserId};

use super::{User, UserStoreError};
use crate::{PasswordHash, TokenHash};
#[cfg(all(test, feature = "sql"))]
pub(super) use sql::STATEMENTS;

/// The most sessions of one user; a further one ends the oldest.
pub const SESSIONS_MAX: usize = 32;
/// How long a session lasts.
pub const SESSION_LIFE: Duration = Duration::from_hours(30 * 24);

/// A session of the console, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct SessionRecord {
    /// Names it; no secret.
    pub id: ConsoleSessionId,
    /// Whose it is.
    pub user: UserId,
    /// All that is kept of the cookie.
    pub hash: TokenHash,
    /// When it began.
    pub created_at: Timestamp,
    /// From when on it is refused.
    pub expires_at: Timestamp,
}

/// Where passwords and the console's sessions live, beside the users of a [`UserStore`](super::UserStore).
///
/// # Behavior
/// - Each call is one step: seen whole by others, or not at all; a refused call changes nothing.
/// - What was answered `Ok` survives a crash of the process and, with a durable store, a loss of power.
#[async_trait]
pub trait SessionStore: std::fmt::Debug + Send + Sync + 'static {
    /// Returns what is kept of a user's password; none when the user never had one.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoUser`] when there is no such user.
    async fn password(&self, user: &UserId) -> Result<Option<PasswordHash>, UserStoreError>;

    /// Puts a password in the place of the one before, and ends the user's sessions but `keep`. Tokens and grants stay.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoUser`] when there is no such user.
    async fn set_password(
        &self,
        user: &UserId,
        password: &PasswordHash,
        keep: Option<&ConsoleSessionId>,
    ) -> Result<(), UserStoreError>;

    /// Spends a sign-in link: sets the password of its user, ends the user's sessions and begins one; returns the user.
    /// The record's `user` is the link's, whatever `session` says.
    ///
    /// # Behavior
    /// - As [`UserStore::redeem_link`](super::UserStore::redeem_link): one caller succeeds, the others get
    ///   [`UserStoreError::LinkRefused`].
    async fn redeem_link_with_password(
        &self,
        link: &TokenHash,
        password: &PasswordHash,
        session: &SessionRecord,
    ) -> Result<User, UserStoreError>;

    /// Begins a session. Those of the user that are over are forgotten; of more than [`SESSIONS_MAX`] the oldest ends.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoUser`] when there is no such user, [`UserStoreError::Taken`].
    async fn begin_session(&self, session: &SessionRecord) -> Result<(), UserStoreError>;

    /// Returns a session and its user; none when it is unknown, over, or the user shut out.
    async fn session(
        &self,
        hash: &TokenHash,
        now: Timestamp,
    ) -> Result<Option<(User, SessionRecord)>, UserStoreError>;

    /// Ends a session; one that is not there has ended already.
    async fn end_session(&self, hash: &TokenHash) -> Result<(), UserStoreError>;

    /// Ends all sessions and tokens of a user, personal and devices', in one step. Grants are ended before, by
    /// [`GrantStore::end_grants`](super::GrantStore::end_grants): a failure between leaves the rest for another try.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoUser`] when there is no such user.
    async fn sign_out_everywhere(&self, user: &UserId) -> Result<(), UserStoreError>;
}
