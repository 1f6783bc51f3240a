//! What a box uses, and how its limits hold.

use std::fs;

use async_trait::async_trait;
use cocoonbox_core::backend::{BackendError, Enforcement, LimitCapabilities, Measurement, Meter, SandboxId};

use super::advice::Advice;
use super::control::Controller;
use super::journal::{Phase, Process};
use super::limit::{DiskLimit, ProcessLimit, Tier};
use super::{BwrapBackend, Inner, process, serve};

impl Inner {
    /// How the limits of this node's boxes hold.
    pub(super) fn limits(&self) -> LimitCapabilities {
        let by = |controller, without| match self.config.limits.processes {
            _ if self.cgroups.limits(controller) => Enforcement::Enforced,
            ProcessLimit::Off => Enforcement::Absent,
            _ => without,
        };
        let mut limits = LimitCapabilities::all(Enforcement::Absent);
        limits.memory = by(Controller::Memory, Enforcement::Absent);
        limits.cpu = by(Controller::Cpu, Enforcement::Advisory);
        limits.pids = by(Controller::Pids, Enforcement::Advisory);
        limits.disk = match self.config.limits.disk {
            DiskLimit::Off => Enforcement::Absent,
            DiskLimit::Watch => Enforcement::Watched,
            DiskLimit::Loop => Enforcement::Enforced,
        };
        limits
    }

    /// What a box of this tier starts with.
    pub(super) fn advice(&self, tier: &Tier) -> Advice {
        let limited = |controller| self.cgroups.limits(controller);
        Advice::new(&self.config.limits, tier, limited(Controller::Cpu), limited(Controller::Pids))
    }
}

#[async_trait]
impl Meter for BwrapBackend {
    async fn measure(&self, id: &SandboxId) -> Result<Measurement, BackendError> {
        let (inner, entry) = self.inner.of(id)?;
        let (phase, first, size) = {
            let record = inner.turn(&entry).await?;
            (record.phase.clone(), record.process.clone(), record.size)
        };
        serve::blocking(move || {
            let limited = inner.cgroups.limits(Controller::Memory);
            let limit = limited.then(|| inner.config.limits.tier(size).memory_bytes);
            let used = match first {
                Some(first) if process::is_alive(&first) => {
                    let cgroup = inner.cgroup_of(&entry.id, &first).ok().flatten();
                    cgroup.and_then(|cgroup| cgroup.memory_used()).or_else(|| tree_memory(&first))
                }
                // nothing of it is left in memory
                _ if phase != Phase::Running => Some(0),
                _ => None,
            };
            let now = Measurement::new(inner.clock.now());
            Ok(now.with_memory_limit_bytes(limit).with_memory_used_bytes(used))
        })
        .await
    }
}

/// Adds up what a box's processes use, what several share in parts.
fn tree_memory(first: &Process) -> Option<u64> {
    let tree = process::tree(first.pid);
    let read = |pid| fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok();
    let used: Vec<_> = tree.iter().filter_map(|(pid, _)| proportional(&read(*pid)?)).collect();
    (!used.is_empty()).then(|| used.iter().sum())
}

/// Reads `Pss` of a file `smaps_rollup`.
fn proportional(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read() {
        let text =
            "55d8-7ffc ---p 00000000 00:00 0 [rollup]\nRss:   2012 kB\nPss:     512 kB\nPss_Anon: 1 kB\n";
        assert_eq!(proportional(text), Some(512 * 1024));
        for text in ["", "Pss:", "Pss: x kB", "Pss: 18446744073709551615 kB"] {
            assert_eq!(proportional(text), None, "{text:?}");
        }
        let own = i32::try_from(std::process::id()).unwrap();
        let first = Process {
            pid: own,
            start_time: 0,
            pid_namespace: 0,
            agent: String::new(),
            etc: None,
            stopped_before: Vec::new(),
        };
        assert!(tree_memory(&first).is_some_and(|bytes| bytes > 100_000));
    }
}
