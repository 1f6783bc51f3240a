//! The first user, and how anybody gets in at all.

use std::time::Duration;

use cocoonbox_core::{Entropy, EntropyError, Id, Timestamp, TokenId, UserId, UserName};

use crate::{
    AccessToken, Credential, Label, LinkRecord, LinkToken, TokenClass, TokenRecord, User, UserStore,
    UserStoreError,
};

/// How long a sign-in link works.
pub(crate) const LINK_LIFE: Duration = Duration::from_mins(10);
/// The name of the first user.
const ADMIN: &str = "admin";

/// What the first start hands to its operator; it cannot be had again.
#[derive(Debug)]
#[non_exhaustive]
pub struct FirstStart {
    /// The user that was made.
    pub user: User,
    /// Signs a person in, once, within ten minutes.
    pub link: LinkToken,
    /// The personal token, for the command line on this machine.
    pub token: AccessToken,
}

/// Why a user or a credential was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] UserStoreError),
    /// No secret could be drawn.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// A constant is not of its own grammar: a mistake in this program.
    #[error(transparent)]
    Name(#[from] cocoonbox_core::NameError),
}

/// Makes user `admin` with a personal token and a sign-in link, if there is no such user.
///
/// # Behavior
/// - Returns none when `admin` exists. Of servers that start at once on one store exactly one gets the [`FirstStart`].
/// - A start that dies before the operator saw it leaves `admin` without a known token: [`renew_admin`] starts over.
///
/// # Errors
/// What the store says.
pub async fn ensure_admin(
    store: &dyn UserStore,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<Option<FirstStart>, SetupError> {
    if admin(store).await?.is_some() {
        return Ok(None);
    }
    let name = ADMIN.parse()?;
    let user = new_user(name, true, now, entropy)?;
    let (token, personal) = draw_personal(&user.id, now, entropy)?;
    let (link, record) = draw_link(&user.id, now, entropy)?;
    match store.create_user(&user, &[Credential::Token(personal), Credential::Link(record)]).await {
        Ok(()) => Ok(Some(FirstStart { user, link, token })),
        // another server was faster
        Err(UserStoreError::NameTaken { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns a user that is to be made.
pub(crate) fn new_user(
    name: UserName,
    admin: bool,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<User, EntropyError> {
    let id = Id::random(entropy)?;
    Ok(User { id, name, admin, disabled: false, max_agent_boxes: None, created_at: now, revision: 1 })
}

/// Hands `admin` out anew: another personal token, in place of the one before, and another sign-in link.
///
/// For a first start that was cut off before anybody saw its secrets. Returns none when there is no `admin`.
///
/// # Errors
/// What the store says.
pub async fn renew_admin(
    store: &dyn UserStore,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<Option<FirstStart>, SetupError> {
    let Some(user) = admin(store).await? else { return Ok(None) };
    let link = sign_in_link(store, &user.id, now, entropy).await?;
    let token = renew_personal_token(store, &user.id, now, entropy).await?;
    Ok(Some(FirstStart { user, link, token }))
}

/// Makes a sign-in link for `admin`, good once and for ten minutes: the way back in for whoever runs the server.
///
/// Returns none when there is no `admin`.
///
/// # Errors
/// What the store says.
pub async fn admin_link(
    store: &dyn UserStore,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<Option<LinkToken>, SetupError> {
    match admin(store).await? {
        Some(user) => sign_in_link(store, &user.id, now, entropy).await.map(Some),
        None => Ok(None),
    }
}

async fn admin(store: &dyn UserStore) -> Result<Option<User>, SetupError> {
    let name: UserName = ADMIN.parse()?;
    Ok(store.user(crate::UserKey::Name(&name)).await?)
}

/// Replaces a user's personal token; calls open on the one before end.
///
/// # Errors
/// What the store says.
pub async fn renew_personal_token(
    store: &dyn UserStore,
    user: &UserId,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<AccessToken, SetupError> {
    let (token, record) = draw_personal(user, now, entropy)?;
    store.issue(&Credential::Token(record)).await?;
    Ok(token)
}

/// Makes a sign-in link for a user, good once and for ten minutes.
///
/// # Errors
/// What the store says.
pub async fn sign_in_link(
    store: &dyn UserStore,
    user: &UserId,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<LinkToken, SetupError> {
    let (link, record) = draw_link(user, now, entropy)?;
    store.issue(&Credential::Link(record)).await?;
    Ok(link)
}

fn draw_personal(
    user: &UserId,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<(AccessToken, TokenRecord), EntropyError> {
    let token = AccessToken::random(entropy)?;
    let record = TokenRecord {
        id: TokenId::random(entropy)?,
        user: user.clone(),
        class: TokenClass::Personal,
        label: Label::personal(),
        client: None,
        hash: token.hash(),
        created_at: now,
        used_at: None,
    };
    Ok((token, record))
}

fn draw_link(
    user: &UserId,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<(LinkToken, LinkRecord), EntropyError> {
    let link = LinkToken::random(entropy)?;
    let record = LinkRecord {
        id: Id::random(entropy)?,
        user: user.clone(),
        hash: link.hash(),
        created_at: now,
        expires_at: now.plus(LINK_LIFE),
    };
    Ok((link, record))
}
