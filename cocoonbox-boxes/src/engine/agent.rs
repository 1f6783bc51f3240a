//! Boxes that outside agents make: what an agent sees, what it may have, and how many claims that is to a node.

use cocoonbox_core::machine::{AgentShare, BoxRecord, Limits, Tally};
use cocoonbox_core::{BoxId, BoxName, TenantName, UserId};

use super::{Engine, Inner, effect};
use crate::store::{Owned, Stored};
use crate::{AgentGrant, EngineError};

/// Claims that a user without a limit of boxes may hold on a node.
const ADMIN_CLAIMS: u32 = 1000;

impl Engine {
    /// Returns the engine as an outside agent has it: it sees the boxes alone that its grant made, and may have as many as
    /// the grant says. Without an agent it is the engine as its users have it.
    pub fn acting_for(&self, agent: Option<&AgentGrant>) -> Self {
        Self { inner: self.inner.clone(), agent: agent.cloned() }
    }

    /// Spells a request with the agent that makes it, so that nobody is answered with what another was.
    pub(super) fn spelled(&self, request: String) -> String {
        match &self.agent {
            Some(agent) => format!("{} {request}", agent.id),
            None => request,
        }
    }
}

/// Returns whether a box is there for a caller: an agent sees what its grant made, a user sees all.
pub(super) fn sees(agent: Option<&AgentGrant>, stored: &Stored) -> bool {
    agent.is_none_or(|agent| stored.grant.as_ref() == Some(&agent.id))
}

/// Returns whether a box may be meant where none is named: users have to name what their agents made.
pub(super) fn is_own(agent: Option<&AgentGrant>, stored: &Stored) -> bool {
    sees(agent, stored) && (agent.is_some() || !stored.record.agent)
}

/// Returns the share of an agent, `without` a box that is about to be decided on.
pub(super) fn share(
    agent: Option<&AgentGrant>,
    owned: &Owned,
    without: Option<&BoxId>,
) -> Option<AgentShare> {
    agent.map(|grant| {
        let made = owned.boxes.iter().filter(|stored| sees(agent, stored)).map(|stored| &stored.record);
        let made = made.filter(|record| Some(&record.id) != without);
        AgentShare::of(made, grant.max_boxes, grant.max_running)
    })
}

/// Returns a free name for a box that nobody named. Agents leave `main` to their users.
pub(super) fn free_name(agent: Option<&AgentGrant>, owned: &Owned) -> BoxName {
    let first = if agent.is_some() { "agent".to_owned() } else { BoxName::first().to_string() };
    let names = std::iter::once(first.clone()).chain((2..).map(|number| format!("{first}-{number}")));
    let taken = |name: &BoxName| owned.boxes.iter().any(|stored| stored.record.name == *name);
    let mut names = names.take(owned.boxes.len() + 1).filter_map(|name| name.parse().ok());
    names.find(|name| !taken(name)).unwrap_or_else(BoxName::first)
}

/// Returns how many claims a user may hold: one more than boxes, for an old and a new one side by side.
fn claims(limits: Limits, tally: Tally) -> u32 {
    let Some(most) = limits.max_boxes else { return ADMIN_CLAIMS };
    let agents = limits.max_agent_boxes.unwrap_or(u32::MAX).min(tally.agent_boxes);
    most.saturating_add(agents).saturating_add(1)
}

impl Inner {
    /// Tells the backend how many claims the owner of a box may hold.
    pub(super) async fn put_tenant(&self, record: &BoxRecord) -> Result<TenantName, EngineError> {
        let tenant = TenantName::from(&record.owner);
        if let Some(tenants) = self.backend.tenants() {
            // of two that count at once the later count is the last that is told
            let _turn = self.tenants.take(&record.owner).await;
            let cap = claims(record.limits, self.tally(&record.owner).await?);
            tenants.put_tenant(&tenant, cap).await.map_err(EngineError::Backend)?;
        }
        Ok(tenant)
    }

    /// Takes back the place that an agent's box had among the claims of its owner.
    pub(super) async fn agent_box_left(&self, record: &BoxRecord) {
        if let Err(error) = self.put_tenant(record).await {
            // the next claim tells it anew
            tracing::warn!(box_id = %record.id, error = effect::text(&error), "a tenant keeps the place of a box that is gone");
        }
    }

    pub(super) async fn tally(&self, owner: &UserId) -> Result<Tally, EngineError> {
        let owned = self.store.owned(owner).await?;
        Ok(Tally::of(owned.boxes.iter().map(|stored| &stored.record)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_a_users_boxes_the_agents_boxes_and_one() {
        let limits = |boxes, agents| Limits { max_boxes: boxes, max_running: None, max_agent_boxes: agents };
        for (limits, agent_boxes, expected) in [
            (limits(Some(1), None), 0, 2),
            (limits(Some(1), None), 3, 5),
            (limits(Some(1), Some(2)), 1, 3),
            (limits(Some(1), Some(2)), 3, 4),
            (limits(Some(4), Some(0)), 3, 5),
            (limits(None, Some(2)), 3, ADMIN_CLAIMS),
            (limits(Some(u32::MAX), None), u32::MAX, u32::MAX),
        ] {
            let tally = Tally { boxes: 9, running: 9, agent_boxes };
            assert_eq!(claims(limits, tally), expected, "{limits:?} {agent_boxes}");
        }
    }
}
