//! One node of several: how it stands, and what was last known of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cocoonbox_core::backend::{Capabilities, Claim, ClaimFilter, ClaimRef, ClaimState, SandboxId};
use cocoonbox_core::{Entropy, TenantName, Timestamp};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Notify;

use super::NodeConfig;
use super::flight::Flight;
use super::memory::Known;
use crate::message::{About, Room};
use crate::remote::call::{BACKEND, CallError};
use crate::remote::node::NodeClient;

/// A node's own name: 1 to 32 of `[a-z0-9]`, so that it ends at the first dash of a sandbox's id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeName(Box<str>);

impl NodeName {
    /// Takes a name in; none when it is none.
    pub(super) fn read(text: &str) -> Option<Self> {
        let good = (1..=32).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        good.then(|| Self(text.into()))
    }
}
impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Takes a sandbox's id apart: its node, and that node's own id.
pub(super) fn split(id: &SandboxId) -> Option<(NodeName, SandboxId)> {
    let (node, own) = id.as_str().split_once('-')?;
    Some((NodeName::read(node)?, own.parse().ok()?))
}

/// Puts a sandbox's id together; none when it gets too long.
fn join(node: &NodeName, own: &SandboxId) -> Option<SandboxId> {
    format!("{node}-{own}").parse().ok()
}

/// How a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// It answers.
    Answers,
    /// It does not, or not as it should.
    Away {
        /// Since when and how, in words.
        reason: String,
    },
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// Where it is reached.
    pub address: String,
    /// How it stands.
    pub state: NodeState,
    /// How many claims it holds.
    pub claimed: u32,
    /// How many it may hold; absent is no cap.
    pub max_claims: Option<u32>,
}

/// One node.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) client: NodeClient,
    status: Mutex<Status>,
    suspected: Notify,
}

#[derive(Debug)]
struct Status {
    node: Option<NodeName>,
    capabilities: Option<Capabilities>,
    room: Option<Room>,
    answers: bool,
    answered_at: Option<Timestamp>,
    /// What it did instead of keeping silent.
    misdeed: Option<String>,
    /// What it held when it was last seen, by its own ids; each with the id that we give it.
    claims: BTreeMap<SandboxId, Claim>,
    /// References of claims that it was asked for and gave no answer to: it may have made them.
    doubts: BTreeMap<ClaimRef, Flight>,
    /// Claims that are on their way to it.
    coming: u32,
    /// The caps that it was told.
    caps: BTreeMap<TenantName, u32>,
}

/// A claim on its way to a node.
pub(super) struct Coming<'a>(&'a Member);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut status = self.0.status();
        status.coming = status.coming.saturating_sub(1);
    }
}

impl Member {
    pub(super) fn new(config: NodeConfig, entropy: Arc<dyn Entropy>, memory: &Known) -> Self {
        let met = memory.of(&config.address);
        let status = Status {
            node: met.as_ref().and_then(|met| NodeName::read(&met.node)),
            capabilities: met.map(|met| met.capabilities.read(BACKEND)),
            room: None,
            answers: false,
            answered_at: None,
            misdeed: None,
            claims: BTreeMap::new(),
            doubts: BTreeMap::new(),
            coming: 0,
            caps: BTreeMap::new(),
        };
        let client = NodeClient::new(config.address, config.token, entropy);
        Self { client, status: Mutex::new(status), suspected: Notify::new() }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn node(&self) -> Option<NodeName> {
        self.status().node.clone()
    }

    pub(super) fn capabilities(&self) -> Option<Capabilities> {
        self.status().capabilities.clone()
    }

    pub(super) fn answers(&self) -> bool {
        self.status().answers
    }

    /// Returns its room, less what is on its way to it.
    pub(super) fn room(&self) -> Option<Room> {
        let status = self.status();
        let mut room = status.room?;
        room.claimed = room.claimed.saturating_add(status.coming);
        Some(room)
    }

    pub(super) fn report(&self) -> NodeReport {
        let reason = self.absence();
        let status = self.status();
        NodeReport {
            address: self.client.address().to_string(),
            state: if status.answers { NodeState::Answers } else { NodeState::Away { reason } },
            claimed: status.room.map_or(0, |room| room.claimed),
            max_claims: status.room.and_then(|room| room.max_claims),
        }
    }

    /// Says why nothing on it can be reached.
    pub(super) fn absence(&self) -> String {
        let status = self.status();
        let node = self.client.address().authority();
        let what = match &status.misdeed {
            Some(misdeed) => format!("node {node} cannot be used: {misdeed}"),
            None => format!("node {node} has not answered"),
        };
        let at =
            status.answered_at.and_then(|at| OffsetDateTime::from_unix_timestamp(at.millis() / 1000).ok());
        match at.and_then(|at| at.format(&Rfc3339).ok()) {
            Some(at) if status.misdeed.is_none() => format!("{what} since {at}"),
            Some(at) => format!("{what} (last seen {at})"),
            None => format!("{what} since this server started"),
        }
    }

    /// Takes in what it says of itself, and what it holds; returns whether it was away.
    pub(super) fn met(
        &self,
        node: NodeName,
        about: &About,
        claims: Option<Vec<Claim>>,
        now: Timestamp,
    ) -> bool {
        let mut status = self.status();
        let back = !status.answers;
        if status.node.as_ref() != Some(&node) {
            // another one than before: it has nothing of what that one had
            status.claims.clear();
            std::mem::take(&mut status.doubts).into_values().for_each(Flight::landed);
            status.node = Some(node);
        }
        if back {
            // it may have lost what it was told
            status.caps.clear();
        }
        status.capabilities = Some(about.capabilities.read(BACKEND));
        status.room = Some(about.room);
        status.answers = true;
        status.answered_at = Some(now);
        status.misdeed = None;
        drop(status);
        if let Some(claims) = claims {
            self.saw(&ClaimFilter::all(), claims);
        }
        back
    }

    /// Notes that it is away; returns whether it was not before.
    pub(super) fn lost(&self, error: &CallError) -> bool {
        let mut status = self.status();
        status.misdeed = if error.is_silence() { None } else { Some(error.to_string()) };
        std::mem::replace(&mut status.answers, false)
    }

    /// Asks for it to be looked after.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Waits until somebody asks for it to be looked after.
    pub(super) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    /// Counts a claim that is on its way to it.
    pub(super) fn coming(&self) -> Coming<'_> {
        self.status().coming += 1;
        Coming(self)
    }

    /// Takes in a claim that it made, and returns it under the id that we give it.
    pub(super) fn made(&self, claim: Claim) -> Claim {
        let mut status = self.status();
        if let Some(room) = &mut status.room {
            room.claimed = room.claimed.saturating_add(1);
        }
        let (own, claim) = (claim.id.clone(), named(status.node.as_ref(), claim));
        status.claims.insert(own, claim.clone());
        claim
    }

    /// Notes that it may have made a claim of this reference.
    pub(super) fn doubt(&self, claim_ref: &ClaimRef, flight: Flight) {
        if let Some(earlier) = self.status().doubts.insert(claim_ref.clone(), flight) {
            earlier.landed();
        }
    }

    /// Whether it may have made a claim that a filter asks for, and nobody knows.
    pub(super) fn is_in_doubt(&self, filter: &ClaimFilter) -> bool {
        filter.claim_ref.as_ref().is_some_and(|asked| self.status().doubts.contains_key(asked))
    }

    pub(super) fn released(&self, own: &SandboxId) {
        let mut status = self.status();
        if let Some(room) = &mut status.room {
            room.claimed = room.claimed.saturating_sub(1);
        }
        status.claims.remove(own);
    }

    /// Takes in what it answered, and returns it under the ids that we give.
    pub(super) fn saw(&self, filter: &ClaimFilter, claims: Vec<Claim>) -> Vec<Claim> {
        let mut status = self.status();
        if let Some(flight) = filter.claim_ref.as_ref().and_then(|asked| status.doubts.remove(asked)) {
            flight.landed();
        }
        // what matches and was not answered is gone
        status.claims.retain(|own, claim| {
            let mut before = claim.clone();
            before.id = own.clone();
            !filter.matches(&before)
        });
        let node = status.node.clone();
        claims
            .into_iter()
            .map(|claim| {
                let (own, claim) = (claim.id.clone(), named(node.as_ref(), claim));
                status.claims.insert(own, claim.clone());
                claim
            })
            .collect()
    }

    /// Returns what it held when it was last seen and matches, as claims that are away.
    pub(super) fn known(&self, filter: &ClaimFilter) -> Vec<Claim> {
        let reason = self.absence();
        let status = self.status();
        let mut known: Vec<Claim> = status
            .claims
            .iter()
            .filter(|(own, claim)| {
                let mut before = (*claim).clone();
                before.id = (*own).clone();
                filter.matches(&before)
            })
            .map(|(_, claim)| {
                let mut claim = claim.clone();
                claim.state = ClaimState::Away { reason: reason.clone() };
                claim
            })
            .collect();
        known.sort_by_key(|claim| claim.claimed_at);
        known
    }

    /// Returns its own ids of the claims that it is known to hold.
    pub(super) fn held(&self, which: impl Fn(&Claim) -> bool) -> Vec<SandboxId> {
        let status = self.status();
        status.claims.iter().filter(|(_, claim)| which(claim)).map(|(own, _)| own.clone()).collect()
    }

    pub(super) fn knows_cap(&self, tenant: &TenantName, cap: u32) -> bool {
        self.status().caps.get(tenant) == Some(&cap)
    }

    pub(super) fn learnt_cap(&self, tenant: &TenantName, cap: u32) {
        self.status().caps.insert(tenant.clone(), cap);
    }
}

/// Gives a claim the id that says which node holds it.
fn named(node: Option<&NodeName>, mut claim: Claim) -> Claim {
    if let Some(id) = node.and_then(|node| join(node, &claim.id)) {
        claim.id = id;
    }
    claim
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_is_taken_apart_as_it_was_put_together(node in "[a-z0-9]{1,32}", own in "[A-Za-z0-9_-]{1,95}") {
            let (node, own): (_, SandboxId) = (NodeName::read(&node).unwrap(), own.parse().unwrap());
            prop_assert_eq!(split(&join(&node, &own).unwrap()), Some((node, own)));
        }

        #[test]
        fn no_id_makes_it_panic(id in "[A-Za-z0-9_-]{1,128}") {
            let id: SandboxId = id.parse().unwrap();
            if let Some((node, own)) = split(&id) {
                prop_assert_eq!(join(&node, &own), Some(id));
            }
        }
    }
}
