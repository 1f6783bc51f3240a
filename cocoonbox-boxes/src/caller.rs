use cocoonbox_core::machine::Limits;
use cocoonbox_core::{GrantId, UserId};
use tokio_util::sync::CancellationToken;

/// Who calls: what the edge puts into a request's extensions once it knows.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the edge builds it from what the token says")]
pub struct Caller {
    /// The user.
    pub user: UserId,
    /// Whether the user is an administrator.
    pub admin: bool,
    /// The grant that the call comes in by, where an outside agent calls: it sees the boxes alone that this grant made.
    pub agent: Option<AgentGrant>,
    /// How much the user may have.
    pub limits: Limits,
    /// Cancelled when the token ends.
    pub ended: CancellationToken,
}

/// What a user allowed an outside agent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the edge builds it from what the token says")]
pub struct AgentGrant {
    /// The grant.
    pub id: GrantId,
    /// How many boxes it may have made.
    pub max_boxes: u32,
    /// How many of them may run at once.
    pub max_running: u32,
}
