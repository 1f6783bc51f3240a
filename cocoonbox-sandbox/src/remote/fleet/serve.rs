//! Looks after the nodes: who answers, and whose leases run out.

use std::collections::HashMap;
use std::time::Duration;

use cocoonbox_core::BoxId;
use cocoonbox_core::backend::{Claim, ClaimFilter, SandboxId};
use futures::future::join_all;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::member::Member;
use super::{Fleet, Inner};
use crate::remote::node::LEASE;
use crate::remote::serve::GRACE;

/// How often each node is asked whether it is there.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// The least time between two questions.
const PROBE_AT_MOST_EVERY: Duration = Duration::from_millis(250);
/// How often leases are looked at.
const RENEW_EVERY: Duration = Duration::from_hours(1);

impl Fleet {
    /// Looks after the nodes until `shutdown`: who goes away and is back is known within seconds, and the leases of
    /// boxes (claims whose reference is a box's id) are made whole at half their length.
    pub async fn serve(&self, shutdown: CancellationToken) {
        let inner = &self.inner;
        let watches = join_all(inner.members.iter().map(|member| watch(inner, member)));
        let leases = join_all(inner.members.iter().map(|member| keep(member)));
        tokio::select! {
            () = shutdown.cancelled() => {}
            _ = watches => {}
            _ = leases => {}
        }
    }
}

async fn watch(inner: &Inner, member: &Member) {
    let mut silent_since: Option<Instant> = None;
    loop {
        tokio::select! {
            () = sleep(PROBE_EVERY) => {}
            () = member.suspected() => sleep(PROBE_AT_MOST_EVERY).await,
        }
        match inner.meet(member).await {
            Ok(()) => silent_since = None,
            Err(error) => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= GRACE {
                    inner.lost(member, &error);
                }
            }
        }
    }
}

async fn keep(member: &Member) {
    let mut hours = interval(RENEW_EVERY);
    hours.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut renewals = Renewals::default();
    loop {
        hours.tick().await;
        if !member.answers() {
            continue;
        }
        let filter = ClaimFilter::all();
        if let Ok(claims) = member.client.find(&filter, crate::remote::node::QUICK).await {
            member.saw(&filter, claims);
        }
        let ours = member.held(|claim: &Claim| claim.claim_ref.as_str().parse::<BoxId>().is_ok());
        for own in renewals.due(ours, Instant::now()) {
            match member.client.renew(&own).await {
                Ok(()) => renewals.done(own, Instant::now()),
                // one that was put away has no lease until it wakes
                Err(error) => tracing::debug!(sandbox = %own, %error, "a lease was not renewed"),
            }
        }
    }
}

/// When each lease was last made whole.
#[derive(Debug, Default)]
struct Renewals(HashMap<SandboxId, Instant>);

impl Renewals {
    /// Returns those of `held` whose lease has half its length or less, as far as is known; what is not held any more is
    /// forgotten.
    fn due(&mut self, held: Vec<SandboxId>, now: Instant) -> Vec<SandboxId> {
        self.0.retain(|own, _| held.contains(own));
        let whole = |own: &SandboxId| self.0.get(own).is_some_and(|at| now.duration_since(*at) < LEASE / 2);
        held.into_iter().filter(|own| !whole(own)).collect()
    }

    fn done(&mut self, own: SandboxId, now: Instant) {
        self.0.insert(own, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_made_whole_at_half_its_length() {
        let [one, two]: [SandboxId; 2] = ["one", "two"].map(|id| id.parse().unwrap());
        let mut renewals = Renewals::default();
        let start = Instant::now();
        // nobody knows how much the leases of an earlier process have left
        assert_eq!(renewals.due(vec![one.clone(), two.clone()], start), [one.clone(), two.clone()]);
        renewals.done(one.clone(), start);
        let just = start + LEASE / 2 - Duration::from_secs(1);
        assert_eq!(
            renewals.due(vec![one.clone(), two.clone()], just),
            std::slice::from_ref(&two),
            "it failed before"
        );
        renewals.done(two.clone(), just);
        assert_eq!(renewals.due(vec![one.clone(), two.clone()], start + LEASE / 2), [one]);
        assert_eq!(renewals.due(Vec::new(), just), []);
        assert_eq!(renewals.due(vec![two.clone()], just), [two], "it was gone in between");
        // every look comes before the other half is over
        assert!(RENEW_EVERY < LEASE / 2);
    }
}
