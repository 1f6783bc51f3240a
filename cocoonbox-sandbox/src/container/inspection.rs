//! Looking at a box that was just started: an engine's promise is no proof.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::plan::Limits;

/// What must hold of a box's first process before anything else runs in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Whether a filter of system calls must be there.
    pub(super) seccomp: bool,
    pub(super) limits: Option<Limits>,
}

/// Looks at the process `pid`; the answer says what does not hold.
pub(super) fn inspect(pid: i32, demand: Demand) -> Result<(), String> {
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/{pid}/{name}"))
            .map_err(|error| format!("/proc/{pid}/{name}: {error}"))
    };
    privileges(&read("status")?, demand.seccomp)?;
    let Some(limits) = demand.limits else { return Ok(()) };
    let (cgroups, mounts) = (read("cgroup")?, fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    held(&limits, |controller, file| {
        let place = place(&cgroups, &mounts, controller).ok_or(io::ErrorKind::NotFound)?;
        Ok(fs::read_to_string(place.join(file))?.trim().to_owned())
    })
}

/// Reads `/proc/<pid>/status`.
fn privileges(status: &str, seccomp: bool) -> Result<(), String> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).ok_or_else(|| format!("its status has no {name}"))
    };
    if field("Uid")?.split_whitespace().any(|uid| uid == "0") {
        return Err("it runs as the host's root".to_owned());
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        if field(set)?.bytes().any(|digit| digit != b'0') {
            return Err(format!("it kept capabilities ({set})"));
        }
    }
    if field("NoNewPrivs")? != "1" {
        return Err("it may gain privileges".to_owned());
    }
    if seccomp && field("Seccomp")? != "2" {
        return Err("no filter of system calls holds it".to_owned());
    }
    Ok(())
}

/// Whether limits are the kernel's; `read` returns a file of the cgroup that a controller holds the process in.
fn held(limits: &Limits, read: impl Fn(&str, &str) -> io::Result<String>) -> Result<(), String> {
    let first = |controller: &str, files: [&str; 2]| {
        let [second_version, first_version] = files;
        read(controller, second_version)
            .or_else(|_| read(controller, first_version))
            .map_err(|error| format!("its limit of {controller} is not to be seen: {error}"))
    };
    let number = |text: &str| text.parse::<u64>().ok();
    let memory = first("memory", ["memory.max", "memory.limit_in_bytes"])?;
    if number(&memory).is_none_or(|most| most > limits.memory) {
        return Err(format!("its limit of memory is {memory} and not {}", limits.memory));
    }
    let pids = first("pids", ["pids.max", "pids.max"])?;
    if number(&pids).is_none_or(|most| most > limits.pids) {
        return Err(format!("its limit of processes is {pids} and not {}", limits.pids));
    }
    let time = match read("cpu", "cpu.max") {
        Ok(both) => both,
        Err(_) => {
            format!("{} {}", first("cpu", ["cpu.cfs_quota_us"; 2])?, first("cpu", ["cpu.cfs_period_us"; 2])?)
        }
    };
    let mut parts = time.split_whitespace().map(|part| part.parse::<u64>().ok());
    let share = parts.next().flatten().zip(parts.next().flatten());
    if share.is_none_or(|(quota, period)| quota > period.saturating_mul(u64::from(limits.cpus))) {
        return Err(format!("its limit of processor time is {time} and not {} processors", limits.cpus));
    }
    Ok(())
}

/// The directory of the cgroup that holds a process by `controller`, by its file `cgroup` and this process's mounts.
fn place(cgroups: &str, mounts: &str, controller: &str) -> Option<PathBuf> {
    let (mut first, mut second) = (None, None);
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.is_empty() {
            second = Some(path);
        } else if controllers.split(',').any(|name| name == controller) {
            first = Some(path);
        }
    }
    let mut places = mounts.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut source = source.split(' ');
        let path = match source.next()? {
            "cgroup" if source.nth(1)?.split(',').any(|option| option == controller) => first?,
            "cgroup2" if first.is_none() => second?,
            _ => return None,
        };
        let below = path.strip_prefix(root.trim_end_matches('/'))?.trim_start_matches('/');
        // a path that leads out is one of another namespace
        (!below.split('/').any(|part| part == "..")).then(|| Path::new(point).join(below))
    });
    places.next()
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::backend::Size;

    use super::*;

    const STATUS: &str = "Name:\tcocoonbox-agent\nUid:\t1000\t1000\t1000\t1000\nCapInh:\t0000000000000000\nCapPrm:\t0\n\
                          CapEff:\t0\nCapBnd:\t0\nCapAmb:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";

    #[test]
    fn what_is_left_of_privileges_is_named() {
        assert_eq!(privileges(STATUS, true), Ok(()));
        for (old, new, word) in [
            ("1000\t1000\t1000\t1000", "0\t0\t0\t0", "root"),
            ("CapBnd:\t0", "CapBnd:\t00001100", "CapBnd"),
            ("CapAmb:\t0", "CapAmb:\t1000", "CapAmb"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "gain"),
            ("Seccomp:\t2", "Seccomp:\t0", "filter"),
            ("Seccomp:\t2\n", "", "Seccomp"),
        ] {
            let told = privileges(&STATUS.replace(old, new), true).unwrap_err();
            assert!(told.contains(word), "{told}");
        }
        assert_eq!(privileges(&STATUS.replace("Seccomp:\t2", "Seccomp:\t0"), false), Ok(()));
    }

    #[test]
    fn a_limit_that_does_not_hold_is_named() {
        let limits = Limits::of(Size::Small);
        let memory = limits.memory.to_string();
        let first = [
            ("memory.limit_in_bytes", memory.as_str()),
            ("pids.max", "1024"),
            ("cpu.cfs_quota_us", "100000"),
            ("cpu.cfs_period_us", "100000"),
        ];
        let second = [("memory.max", memory.as_str()), ("pids.max", "1024"), ("cpu.max", "100000 100000")];
        let found = |files: &[(&str, &str)]| {
            held(&limits, |_, file| {
                let found = files.iter().find(|(name, _)| *name == file);
                found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
            })
        };
        assert_eq!(found(&first), Ok(()));
        assert_eq!(found(&second), Ok(()));
        for (at, value, word) in [
            (0, "max", "memory"),
            (1, "max", "processes"),
            (2, "max 100000", "processor"),
            (2, "", "processor"),
        ] {
            let mut files = second;
            files[at].1 = value;
            let told = found(&files).unwrap_err();
            assert!(told.contains(word), "{told}");
        }
        let told = found(&first[1..]).unwrap_err();
        assert!(told.contains("not to be seen"), "{told}");
    }

    #[test]
    fn a_cgroup_is_found_where_its_mount_shows_it() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let cgroups = "4:memory:/libpod_parent/a\n1:cpu,cpuacct:/b\n0::/c\n";
        let place = |controller| place(cgroups, mounts, controller);
        assert_eq!(place("memory"), Some("/sys/fs/cgroup/memory/libpod_parent/a".into()));
        assert_eq!(place("cpu"), Some("/sys/fs/cgroup/cpu/b".into()));
        assert_eq!(place("pids"), Some("/sys/fs/cgroup/unified/c".into()));
        assert_eq!(super::place("0::/../x\n", mounts, "pids"), None);
    }
}
