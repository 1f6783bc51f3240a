use cocoonbox_core::machine::Limits;
use cocoonbox_core::{TokenId, UserId};
use tokio_util::sync::CancellationToken;

/// Who calls: what the edge puts into a request's extensions once it knows.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the edge builds it from what the token says")]
pub struct Caller {
    /// The user.
    pub user: UserId,
    /// Whether the user is an administrator.
    pub admin: bool,
    /// The token that was shown.
    pub token: TokenId,
    /// How much the user may have.
    pub limits: Limits,
    /// Cancelled when the token ends.
    pub ended: CancellationToken,
}
