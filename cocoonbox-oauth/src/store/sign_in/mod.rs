//! The port for the record of who came in, and who was turned away.

mod memory;
#[cfg(feature = "sql")]
mod sql;

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::{SignInId, Timestamp, UserId};

use super::UserStoreError;
#[cfg(all(test, feature = "sql"))]
pub(super) use sql::STATEMENTS;

/// How long a sign-in is remembered.
pub const SIGN_INS_FOR: Duration = Duration::from_hours(90 * 24);
/// The most that are remembered of one user, and of nobody in particular; the oldest go.
pub const SIGN_INS_MAX: usize = 500;

/// The door that somebody came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "stores and pages tell each")]
pub enum Door {
    /// Name and password.
    Password,
    /// A one-time link.
    Link,
    /// A device of the user's own, which was allowed in a browser.
    Device,
    /// An outside agent.
    Agent,
}

impl Door {
    /// All doors.
    pub const ALL: [Self; 4] = [Self::Password, Self::Link, Self::Device, Self::Agent];

    /// Returns the door's name, as it is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Link => "link",
            Self::Device => "device",
            Self::Agent => "agent",
        }
    }
}

/// One sign-in, or an attempt at one. It has nothing that anybody could sign in with, and no name that nobody has: people
/// type passwords there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct SignInRecord {
    /// Names it.
    pub id: SignInId,
    /// Whose it is; none when no such user was found.
    pub user: Option<UserId>,
    /// When it was.
    pub at: Timestamp,
    /// Which door.
    pub door: Door,
    /// Whether the door opened.
    pub let_in: bool,
    /// From where, as far as it is known.
    pub from: Option<IpAddr>,
    /// What came: a device's label or an agent's name; empty for a browser.
    pub what: String,
}

/// Where sign-ins are remembered.
///
/// # Behavior
/// - As [`UserStore`](super::UserStore): each call is one step, and what was answered `Ok` is durable.
/// - What is a user's goes with the user.
#[async_trait]
pub trait SignInStore: std::fmt::Debug + Send + Sync + 'static {
    /// Remembers one. Those that are older than [`SIGN_INS_FOR`] at its time are forgotten, and of more than
    /// [`SIGN_INS_MAX`] of its user, or of nobody, the oldest.
    ///
    /// # Behavior
    /// - [`UserStoreError::NoUser`] when its user is not there, [`UserStoreError::Taken`].
    async fn remember_sign_in(&self, sign_in: &SignInRecord) -> Result<(), UserStoreError>;

    /// Returns those of a user, or of all, the newest first: those before `before`, at most `limit`, capped to
    /// 1..=[`PAGE_MAX`](super::PAGE_MAX).
    async fn sign_ins(
        &self,
        of: Option<&UserId>,
        before: Option<(Timestamp, &SignInId)>,
        limit: usize,
    ) -> Result<Vec<SignInRecord>, UserStoreError>;
}
