use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::defence::{Defence, Weakened};
use super::limit::Limits;
use crate::doors::{DoorHandler, NoPolicy};

/// How a [`BwrapBackend`](crate::BwrapBackend) is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BwrapConfig {
    /// The directory that holds everything the backend keeps; made when it is not there.
    pub data: PathBuf,
    /// The guest's binary, `cocoonbox-agent`, linked so that it runs in any root file system.
    pub agent: PathBuf,
    /// The program `bwrap`: a path, or a bare name that is looked for where systems keep programs.
    pub bwrap: PathBuf,
    /// How many claims the node holds, hibernated ones included.
    pub max_claims: u32,
    /// The host uids that boxes get, one each, where the backend runs as root; absent: a range of 4,096 that follows
    /// from the data directory's path.
    pub uids: Option<Range<u32>>,
    /// How long the processes of a box have to be gone after they were ended.
    pub end_limit: Duration,
    /// Who answers what a guest sends through its doors.
    pub doors: Arc<dyn DoorHandler>,
    weakened: Weakened,
    /// How boxes are limited.
    pub limits: Limits,
}

impl BwrapConfig {
    /// Makes a configuration with `bwrap` from the system, 1,000 claims at most, doors that lead nowhere, and limits by the best
    /// that the machine has.
    pub fn new(data: impl Into<PathBuf>, agent: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            agent: agent.into(),
            bwrap: "bwrap".into(),
            max_claims: 1000,
            uids: None,
            end_limit: Duration::from_secs(20),
            doors: Arc::new(NoPolicy),
            weakened: Weakened::default(),
            limits: Limits::default(),
        }
    }
    /// Sets the program `bwrap`.
    pub fn with_bwrap(mut self, bwrap: impl Into<PathBuf>) -> Self {
        self.bwrap = bwrap.into();
        self
    }
    /// Sets how many claims the node holds.
    pub const fn with_max_claims(mut self, max_claims: u32) -> Self {
        self.max_claims = max_claims;
        self
    }
    /// Sets the host uids that boxes get.
    pub fn with_uids(mut self, uids: Range<u32>) -> Self {
        self.uids = Some(uids);
        self
    }
    /// Sets how long the processes of a box have to be gone.
    pub const fn with_end_limit(mut self, limit: Duration) -> Self {
        self.end_limit = limit;
        self
    }
    /// Sets who answers the doors.
    pub fn with_doors(mut self, doors: Arc<dyn DoorHandler>) -> Self {
        self.doors = doors;
        self
    }
    /// Leaves one defence out of every box: for tests alone, which show that it is this one that refuses an attack.
    #[cfg(feature = "testkit")]
    pub fn with_weakened(mut self, defence: Defence) -> Self {
        self.weakened = self.weakened.with(defence);
        self
    }

    /// Whether boxes have this defence.
    pub(super) fn holds(&self, defence: Defence) -> bool {
        self.weakened.holds(defence)
    }
    /// Sets how boxes are limited.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}
