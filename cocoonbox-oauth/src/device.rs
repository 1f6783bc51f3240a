//! The devices of a user, and the personal token beside them.

use cocoonbox_core::{TokenId, UserId};

use crate::{DEVICES_MAX, PAGE_MAX, TokenClass, TokenRecord, UserStore, UserStoreError};

// a personal token and all devices fit into one page
const _: () = assert!(DEVICES_MAX < PAGE_MAX);

/// Returns a user's devices, oldest first.
pub(crate) async fn devices(
    store: &dyn UserStore,
    user: &UserId,
) -> Result<Vec<TokenRecord>, UserStoreError> {
    let tokens = store.tokens(Some(user), None, PAGE_MAX).await?;
    let devices =
        tokens.into_iter().map(|(_, token)| token).filter(|token| token.class == TokenClass::Device);
    let mut devices: Vec<_> = devices.collect();
    devices.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    Ok(devices)
}

/// Returns a user's personal token, where there is one.
pub(crate) async fn personal(
    store: &dyn UserStore,
    user: &UserId,
) -> Result<Option<TokenRecord>, UserStoreError> {
    let tokens = store.tokens(Some(user), None, PAGE_MAX).await?;
    Ok(tokens.into_iter().map(|(_, token)| token).find(|token| token.class == TokenClass::Personal))
}

/// Removes a user's personal token; returns which it was, and none where there was none.
pub(crate) async fn remove_personal(
    store: &dyn UserStore,
    user: &UserId,
) -> Result<Option<TokenId>, UserStoreError> {
    let Some(token) = personal(store, user).await? else { return Ok(None) };
    match store.revoke_token(user, &token.id).await {
        Ok(()) | Err(UserStoreError::NoToken { .. }) => Ok(Some(token.id)),
        Err(error) => Err(error),
    }
}
