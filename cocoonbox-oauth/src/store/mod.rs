//! The port for users and what they sign in with.

mod client;
mod error;
mod faulty;
mod grant;
mod memory;
mod session;
mod sign_in;
#[cfg(feature = "sql")]
mod sql;

use std::fmt;

use async_trait::async_trait;
use cocoonbox_core::{SignInLinkId, Timestamp, TokenId, UserId, UserName};

use crate::{ClientId, Label, TokenHash};
pub use client::{CLIENTS_MAX, ClientStore, UNUSED_FOR};
pub use error::UserStoreError;
pub use faulty::{Fault, FaultyUserStore};
#[cfg(feature = "sql")]
pub use grant::GRANT_CHANNEL;
pub use grant::{
    CODE_LIFE, CodeRecord, GrantChange, GrantChanges, GrantStore, LivingGrant, Promise, Spent, Which,
};
pub use memory::MemoryUserStore;
pub use session::{SESSION_LIFE, SESSIONS_MAX, SessionRecord, SessionStore};
pub use sign_in::{Door, SIGN_INS_FOR, SIGN_INS_MAX, SignInRecord, SignInStore};
#[cfg(feature = "sql")]
pub use sql::{CHANNEL, SqlUserStore};

/// The most devices of one user.
pub const DEVICES_MAX: usize = 64;
/// The most open sign-in links of one user.
pub const LINKS_MAX: usize = 16;
/// The most tokens in one page.
pub const PAGE_MAX: usize = 1000;

/// Who owns things.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct User {
    /// Never changes.
    pub id: UserId,
    /// Unique.
    pub name: UserName,
    /// Whether the user may administer the server.
    pub admin: bool,
    /// Whether the user is shut out: no token and no link of theirs works.
    pub disabled: bool,
    /// The most boxes that all outside agents of the user may have together; none: no cap.
    pub max_agent_boxes: Option<u32>,
    /// When it was made.
    pub created_at: Timestamp,
    /// 1 when new; each save adds one.
    pub revision: i64,
}

/// How a token came to be and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "callers decide for each")]
pub enum TokenClass {
    /// The one of its user, for the command line.
    Personal,
    /// One of many, made by redeeming a link.
    Device,
}

/// A token as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct TokenRecord {
    /// Names it; no secret.
    pub id: TokenId,
    /// Whose it is.
    pub user: UserId,
    /// Its class.
    pub class: TokenClass,
    /// What its owner calls it.
    pub label: Label,
    /// The program that a device signed in with; none for a link, and for the personal token.
    pub client: Option<ClientId>,
    /// All that is kept of the secret.
    pub hash: TokenHash,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, to the minute; none before the first time.
    pub used_at: Option<Timestamp>,
}

/// A sign-in link as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct LinkRecord {
    /// Names it; no secret.
    pub id: SignInLinkId,
    /// Whom it signs in.
    pub user: UserId,
    /// All that is kept of the secret.
    pub hash: TokenHash,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it is refused.
    pub expires_at: Timestamp,
}

/// The device that redeeming a link makes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct NewDevice {
    /// Its token's id.
    pub id: TokenId,
    /// What its owner calls it.
    pub label: Label,
    /// Its token's hash.
    pub hash: TokenHash,
}

impl NewDevice {
    fn record(&self, user: &UserId, now: Timestamp) -> TokenRecord {
        TokenRecord {
            id: self.id.clone(),
            user: user.clone(),
            class: TokenClass::Device,
            label: self.label.clone(),
            client: None,
            hash: self.hash,
            created_at: now,
            used_at: None,
        }
    }
}

/// Something a user signs in with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "every store handles each")]
pub enum Credential {
    /// A token.
    Token(TokenRecord),
    /// A sign-in link.
    Link(LinkRecord),
}

impl Credential {
    /// Returns whose it is.
    pub const fn user(&self) -> &UserId {
        match self {
            Self::Token(token) => &token.user,
            Self::Link(link) => &link.user,
        }
    }
}

/// How a user is looked up.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "every store handles each")]
pub enum UserKey<'a> {
    /// By id.
    Id(&'a UserId),
    /// By name.
    Name(&'a UserName),
}

/// Where users, their tokens and their sign-in links live.
///
/// # Behavior
/// - Each call is one step: seen whole by others, or not at all; a refused call changes nothing.
/// - What was answered `Ok` survives a crash of the process and, with a durable store, a loss of power.
/// - Each change of a user or a token (not [`UserStore::touch`]) wakes every [`UserChanges`] of the store.
/// - Dropping a call's future leaves it done or not done; look before trying again, as after
///   [`UserStoreError::Uncertain`].
/// - Ids and hashes are unique in all: a second of either is [`UserStoreError::Taken`].
#[async_trait]
pub trait UserStore: fmt::Debug + Send + Sync + 'static {
    /// Makes a user together with its first credentials.
    ///
    /// # Behavior
    /// - Of callers that race for one name exactly one succeeds; the others get [`UserStoreError::NameTaken`],
    ///   which goes before [`UserStoreError::Taken`] when the id is in use, too.
    /// - The revision is stored as 1, whatever `user` says.
    async fn create_user(&self, user: &User, credentials: &[Credential]) -> Result<(), UserStoreError>;

    /// Returns a user, disabled ones too; none when there is no such.
    async fn user(&self, key: UserKey<'_>) -> Result<Option<User>, UserStoreError>;

    /// Writes name, `admin`, `disabled` and `max_agent_boxes` if the user still is at `user.revision`; returns the new revision.
    ///
    /// # Behavior
    /// - [`UserStoreError::Stale`] when somebody saved since it was read, [`UserStoreError::NoUser`],
    ///   [`UserStoreError::NameTaken`].
    async fn save_user(&self, user: &User) -> Result<i64, UserStoreError>;

    /// Adds a credential to its user.
    ///
    /// # Behavior
    /// - A personal token replaces the one before it in the same step.
    /// - More than [`DEVICES_MAX`] devices or [`LINKS_MAX`] open links are [`UserStoreError::TooMany`]. Links that
    ///   expired before the new link was made are forgotten and do not count.
    async fn issue(&self, credential: &Credential) -> Result<(), UserStoreError>;

    /// Spends a link: makes the device for the link's user and returns the user.
    ///
    /// # Behavior
    /// - Of callers that race for one link exactly one succeeds.
    /// - [`UserStoreError::LinkRefused`], without saying which, when the link is unknown, spent, expired
    ///   (`now >= expires_at`), or its user is disabled. [`UserStoreError::TooMany`] leaves the link unspent.
    async fn redeem_link(
        &self,
        link: &TokenHash,
        device: &NewDevice,
        now: Timestamp,
    ) -> Result<User, UserStoreError>;

    /// Removes a token of a user.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoToken`] when the user has no such token, also when another user has.
    async fn revoke_token(&self, user: &UserId, token: &TokenId) -> Result<(), UserStoreError>;

    /// Returns tokens with their users in one order that does not change: those of one user, or of all; those after `after`; at most
    /// `limit`, capped to 1..=[`PAGE_MAX`]. Fewer than that say that there are no more.
    async fn tokens(
        &self,
        of: Option<&UserId>,
        after: Option<&TokenId>,
        limit: usize,
    ) -> Result<Vec<(User, TokenRecord)>, UserStoreError>;

    /// Records when tokens were used. A time never goes back; tokens that are gone are passed over.
    async fn touch(&self, used: &[(TokenId, Timestamp)]) -> Result<(), UserStoreError>;

    /// Returns users in one order that does not change: those after `after`, at most [`PAGE_MAX`], fewer when there are
    /// no more.
    async fn users(&self, after: Option<&UserId>) -> Result<Vec<User>, UserStoreError>;

    /// Removes a user with all that hangs on it: tokens, links, sessions, sign-ins, codes and grants.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoUser`] when there is no such user, [`UserStoreError::Stale`] when somebody saved since it
    ///   was read at `revision`.
    async fn remove_user(&self, user: &UserId, revision: i64) -> Result<(), UserStoreError>;
}

/// Keeps what seals each user's saves: the user's state key, itself sealed by whoever hands it in.
#[async_trait]
pub trait StateKeyStore: fmt::Debug + Send + Sync + 'static {
    /// Returns a user's sealed key; none before the first was put.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoUser`] when there is no such user.
    async fn sealed_state_key(&self, user: &UserId) -> Result<Option<Vec<u8>>, UserStoreError>;

    /// Puts a sealed key in the place of `before`; returns whether it did.
    ///
    /// # Behavior
    /// - Comparing and putting is one step: of callers that expect one key, or none, exactly one succeeds.
    async fn put_sealed_state_key(
        &self,
        user: &UserId,
        sealed: &[u8],
        before: Option<&[u8]>,
    ) -> Result<bool, UserStoreError>;

    /// Returns the users that have a key, after `after`, in one order that does not change: at most [`PAGE_MAX`], fewer
    /// when there are no more.
    async fn users_with_state_keys(&self, after: Option<&UserId>) -> Result<Vec<UserId>, UserStoreError>;
}

/// Keeps the key that agents' tokens are derived with, itself sealed by whoever hands it in.
#[async_trait]
pub trait OauthKeyStore: fmt::Debug + Send + Sync + 'static {
    /// Returns the sealed key; none before the first was put.
    async fn sealed_oauth_key(&self) -> Result<Option<Vec<u8>>, UserStoreError>;

    /// Puts a sealed key in the place of `before`; returns whether it did.
    ///
    /// # Behavior
    /// - Comparing and putting is one step: of callers that expect one key, or none, exactly one succeeds.
    async fn put_sealed_oauth_key(
        &self,
        sealed: &[u8],
        before: Option<&[u8]>,
    ) -> Result<bool, UserStoreError>;
}

/// All that is kept of accounts, in one store.
pub trait AccountStore: UserStore + SessionStore + GrantStore + ClientStore + SignInStore {}
impl<T: UserStore + SessionStore + GrantStore + ClientStore + SignInStore> AccountStore for T {}

/// Tells that users or tokens changed.
#[async_trait]
pub trait UserChanges: fmt::Debug + Send + 'static {
    /// Waits until something may have changed since the last call. Safe to cancel.
    async fn next(&mut self);
}

fn page(limit: usize) -> usize {
    limit.clamp(1, PAGE_MAX)
}
