//! What a process starts with instead of what the node happens to have: rlimits, a nice value, and how soon the
//! kernel ends it when the machine is out of memory.
//!
//! The sizes of a process's mappings are left alone: runtimes of JavaScript, Java and Go map far more than they use.

use std::fs;

use nix::libc;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use super::limit::{DiskLimit, Limits, ProcessLimit, Tier};

/// How soon the kernel ends a box's processes, from -1000 (never) to 1000 (first).
const OOM_SCORE: &[u8] = b"500";
/// The nice value of a box whose share of the processors no cgroup limits.
const NICE: libc::c_int = 3;
/// Files that a process may have open: before it asks for more, and at most.
const FILES: (u64, u64) = (4096, 65_536);

/// What to set, made before the fork.
#[derive(Clone, Debug)]
pub(super) struct Advice {
    limits: Vec<(Resource, u64, u64)>,
    processes: Option<u64>,
    nice: libc::c_int,
}

impl Advice {
    /// Chooses for a box of this tier; `cpu` and `pids` tell whether a cgroup limits those.
    pub(super) fn new(limits: &Limits, tier: &Tier, cpu: bool, pids: bool) -> Self {
        let advised = limits.processes != ProcessLimit::Off;
        let file = if limits.disk == DiskLimit::Watch { tier.disk_bytes } else { RLIM_INFINITY };
        let wanted = [
            // one byte, which is no dump, and unlike zero also none for a program that the host pipes dumps to
            (Resource::RLIMIT_CORE, 1, 1),
            (Resource::RLIMIT_NOFILE, FILES.0, FILES.1),
            (Resource::RLIMIT_FSIZE, file, file),
            (Resource::RLIMIT_STACK, 8 << 20, RLIM_INFINITY),
            (Resource::RLIMIT_MEMLOCK, 8 << 20, 8 << 20),
            (Resource::RLIMIT_NICE, 0, 0),
            (Resource::RLIMIT_RTPRIO, 0, 0),
            (Resource::RLIMIT_AS, RLIM_INFINITY, RLIM_INFINITY),
            (Resource::RLIMIT_DATA, RLIM_INFINITY, RLIM_INFINITY),
            (Resource::RLIMIT_CPU, RLIM_INFINITY, RLIM_INFINITY),
        ];
        let wanted = wanted.into_iter().filter_map(|(resource, soft, hard)| {
            // what the node was denied is not the node's to give
            let (_, most) = getrlimit(resource).ok()?;
            let hard = hard.min(most);
            Some((resource, soft.min(hard), hard))
        });
        Self {
            limits: wanted.collect(),
            processes: (advised && !pids && counts_by_namespace()).then(|| u64::from(tier.pids)),
            nice: if advised && !cpu { NICE } else { 0 },
        }
    }

    /// Sets all but the number of processes. Safe between fork and exec; what the system refuses stays as it is.
    pub(super) fn take(&self) {
        for (resource, soft, hard) in &self.limits {
            let _ = setrlimit(*resource, *soft, *hard);
        }
        #[expect(unsafe_code, reason = "raw system calls between fork and exec")]
        // SAFETY: the calls get integers, a static text and a value that outlives its call.
        unsafe {
            let normal: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const normal);
            libc::setpriority(libc::PRIO_PROCESS, 0, self.nice);
            let flags = libc::O_WRONLY | libc::O_CLOEXEC;
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), flags);
            if file >= 0 {
                libc::write(file, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
                libc::close(file);
            }
        }
    }

    /// Sets the number of processes, in the box's outer user namespace: the namespace made before has the node's own
    /// limit for its sum, and from here on each namespace below has this one.
    pub(super) fn take_processes(&self) {
        if let Some(processes) = self.processes {
            let _ = setrlimit(Resource::RLIMIT_NPROC, processes, processes);
        }
    }
}

/// Whether the kernel counts a user's processes by user namespace, as it does from 5.14 on: before, the limit would
/// be one for everything that the node's user runs.
fn counts_by_namespace() -> bool {
    fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| is_at_least(&release, (5, 14)))
}

fn is_at_least(release: &str, least: (u32, u32)) -> bool {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= least,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::backend::Size;

    use super::*;

    #[test]
    fn a_kernel_is_old_or_new() {
        for (release, expected) in [
            ("5.14.0-1", true),
            ("6.1.0-13-amd64\n", true),
            ("5.13.19", false),
            ("4.18", false),
            ("x", false),
        ] {
            assert_eq!(is_at_least(release, (5, 14)), expected, "{release}");
        }
    }

    #[test]
    fn nothing_is_asked_for_that_the_node_does_not_have() {
        let tier = Tier::of(Size::Small);
        let advice = Advice::new(&Limits::default(), &tier, true, true);
        for (resource, soft, hard) in &advice.limits {
            let (_, most) = getrlimit(*resource).unwrap();
            assert!(soft <= hard && *hard <= most, "{resource:?}");
        }
        assert_eq!((advice.processes, advice.nice), (None, 0));
        let file = |advice: &Advice| {
            advice
                .limits
                .iter()
                .find(|(resource, ..)| *resource == Resource::RLIMIT_FSIZE)
                .map(|found| found.2)
        };
        assert_eq!(file(&advice), Some(tier.disk_bytes));
        let off = Advice::new(&Limits::off(), &tier, false, false);
        assert_eq!((off.processes, off.nice, file(&off)), (None, 0, Some(RLIM_INFINITY)));
        let rest = Advice::new(&Limits::default(), &tier, false, false);
        assert_eq!(rest.nice, NICE);
        if counts_by_namespace() {
            assert_eq!(rest.processes, Some(512));
        }
    }
}
