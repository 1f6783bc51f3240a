//! Looks at the machine while the storm goes on: caps hold at every moment, and journals are whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::machine::{Cgroups, claims};
use crate::worker::Notes;

/// What may never be exceeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    pub(crate) max_boxes: u32,
    pub(crate) max_running: u32,
}

/// Looks until the storm is over; returns how often it looked and the cgroups that it saw.
pub(crate) fn sample(node: &Path, caps: Caps, notes: &Notes) -> (u64, Cgroups) {
    let mut cgroups = Cgroups::default();
    let mut looks = 0;
    while !notes.is_over() {
        match look(node, caps) {
            Ok(()) => {}
            Err(fault) => notes.fault(fault),
        }
        if let Ok(claims) = claims(node) {
            cgroups.look(&claims);
        }
        looks += 1;
        sleep(Duration::from_millis(20));
    }
    (looks, cgroups)
}

/// Checks the caps once.
///
/// Files are read one after the other while boxes change, so that a box counts as running only when three looks in a
/// row found it so, with the same first process.
fn look(node: &Path, caps: Caps) -> Result<(), String> {
    let mut running: Option<BTreeSet<(String, String, i32)>> = None;
    for _ in 0..3 {
        let claims = claims(node)?;
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        for claim in &claims {
            *held.entry(claim.tenant.as_deref().unwrap_or_default()).or_default() += 1;
        }
        // one more than boxes: a box that is on its way out
        if let Some((tenant, count)) = held.into_iter().find(|(_, count)| *count > caps.max_boxes + 1) {
            return Err(format!("{tenant} holds {count} claims, of at most {} and one", caps.max_boxes));
        }
        let now: BTreeSet<_> = claims
            .into_iter()
            .filter(|claim| claim.phase == "running")
            .filter_map(|claim| Some((claim.tenant.unwrap_or_default(), claim.id, claim.first?)))
            .collect();
        running = Some(match running {
            None => now,
            Some(before) => before.intersection(&now).cloned().collect(),
        });
    }
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (tenant, _, _) in running.unwrap_or_default() {
        *counts.entry(tenant).or_default() += 1;
    }
    match counts.into_iter().find(|(_, count)| *count > caps.max_running) {
        Some((tenant, count)) => Err(format!("{tenant} runs {count} boxes, of at most {}", caps.max_running)),
        None => Ok(()),
    }
}
