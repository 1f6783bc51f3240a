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
    let mut renewed: HashMap<SandboxId, Instant> = HashMap::new();
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
        renewed.retain(|own, _| ours.contains(own));
        for own in ours {
            if renewed.get(&own).is_some_and(|at| at.elapsed() < LEASE / 2) {
                continue;
            }
            match member.client.renew(&own).await {
                Ok(()) => drop(renewed.insert(own, Instant::now())),
                // one that was put away has no lease until it wakes
                Err(error) => tracing::debug!(sandbox = %own, %error, "a lease was not renewed"),
            }
        }
    }
}
