//! The end of every sign-in of a user.

use cocoonbox_core::{Timestamp, UserId};

use crate::{AccountStore, AgentIndex, TokenIndex, UserStoreError};

/// Ends every session, token and grant of a user, and all that is open on them here; other processes hear of it.
///
/// The grants go first, then sessions and tokens in one step: a failure leaves the rest for another try.
///
/// # Errors
/// What the store says.
pub async fn sign_out_everywhere(
    store: &dyn AccountStore,
    tokens: &TokenIndex,
    agents: &AgentIndex,
    user: &UserId,
    now: Timestamp,
) -> Result<(), UserStoreError> {
    store.end_grants(user, now).await?;
    agents.end_all(user, now);
    store.sign_out_everywhere(user).await?;
    tokens.reload(store).await?;
    tracing::info!(%user, "a user signed out everywhere");
    Ok(())
}
