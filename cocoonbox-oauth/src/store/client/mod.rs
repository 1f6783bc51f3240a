//! The port for clients that registered themselves.

mod memory;
#[cfg(feature = "sql")]
mod sql;

use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::Timestamp;

use super::UserStoreError;
use crate::{Client, ClientId};
#[cfg(all(test, feature = "sql"))]
pub(super) use sql::STATEMENTS;

/// The most registered clients.
pub const CLIENTS_MAX: usize = 1000;
/// How long a client is kept that nobody ever allowed.
pub const UNUSED_FOR: Duration = Duration::from_hours(24);

/// Where registered clients live.
///
/// # Behavior
/// - As [`UserStore`](super::UserStore): each call is one step, and what was answered `Ok` is durable.
#[async_trait]
pub trait ClientStore: std::fmt::Debug + Send + Sync + 'static {
    /// Keeps a client. Those that nobody allowed within [`UNUSED_FOR`] are forgotten; when there are
    /// [`CLIENTS_MAX`], the oldest that nobody ever allowed makes room.
    ///
    /// # Behavior
    /// - [`UserStoreError::TooMany`] when every one of them was allowed once; [`UserStoreError::Taken`].
    async fn register_client(&self, client: &Client, now: Timestamp) -> Result<(), UserStoreError>;

    /// Returns a client; none when it is unknown.
    async fn client(&self, id: &ClientId) -> Result<Option<Client>, UserStoreError>;

    /// Notes that a user allowed a client; one that is not there is passed over.
    async fn allow_client(&self, id: &ClientId, now: Timestamp) -> Result<(), UserStoreError>;
}
