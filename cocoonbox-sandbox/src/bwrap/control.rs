//! One controller of cgroups and the files by which it limits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::limit::{Machine, Reserve, Tier, Total};

/// How long a turn of processor time is, in microseconds.
const PERIOD: u64 = 100_000;
/// What all boxes together weigh in version 2, where everything else of the machine weighs 100.
const WEIGHT: u64 = 80;

/// What can be limited by a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Cpu,
    Pids,
}

/// Which interface a controller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A controller that can be used.
#[derive(Clone, Debug)]
pub(super) struct Control {
    pub(super) controller: Controller,
    pub(super) version: Version,
    /// The directory that holds the boxes' cgroups.
    pub(super) parent: PathBuf,
    total: Total,
}

impl Controller {
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    /// Returns the kernel's name for it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }

    /// Has a cgroup of version 2 hand the controller to those below it.
    pub(super) fn hand_down(self, directory: &Path) -> io::Result<()> {
        let has = |file: &str| {
            let text = fs::read_to_string(directory.join(file))?;
            io::Result::Ok(text.split_ascii_whitespace().any(|name| name == self.name()))
        };
        if has("cgroup.subtree_control")? {
            return Ok(());
        }
        if !has("cgroup.controllers")? {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "version 2 does not have it here"));
        }
        fs::write(directory.join("cgroup.subtree_control"), format!("+{}", self.name()))
    }
}

impl Control {
    pub(super) fn new(
        controller: Controller,
        version: Version,
        parent: PathBuf,
        machine: &Machine,
        reserve: &Reserve,
    ) -> Self {
        let mut machine = *machine;
        let file = match (controller, version) {
            (Controller::Memory, Version::One) => "memory.limit_in_bytes",
            (Controller::Memory, Version::Two) => "memory.max",
            _ => "pids.max",
        };
        // whatever contains us has the machine that its own limits leave it
        for place in parent.ancestors().skip(1) {
            let Ok(text) = fs::read_to_string(place.join(file)) else { break };
            let Ok(limit) = text.trim().parse() else { continue };
            match controller {
                Controller::Memory => machine.memory_bytes = machine.memory_bytes.min(limit),
                Controller::Pids => machine.pids = machine.pids.min(limit),
                Controller::Cpu => {}
            }
        }
        Self { controller, version, parent, total: Total::of(&machine, reserve) }
    }

    /// Limits what all boxes together may use, and in version 2 hands the controller down to them.
    pub(super) fn prepare(&self) -> io::Result<()> {
        if self.version == Version::Two {
            self.controller.hand_down(&self.parent)?;
        }
        let files = match (self.controller, self.version) {
            (Controller::Memory, version) => memory(version, self.total.memory_bytes),
            (Controller::Pids, _) => vec![File::must("pids.max", self.total.pids)],
            (Controller::Cpu, Version::One) => {
                vec![File::must("cpu.shares", 1024 * u64::from(self.total.cpus))]
            }
            (Controller::Cpu, Version::Two) => vec![File::must("cpu.weight", WEIGHT)],
        };
        match write(&self.parent, files) {
            // boxes of before use more than that together: they keep it, and the limit of before
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tracing::warn!(%error, "the boxes together cannot be limited further now");
                Ok(())
            }
            other => other,
        }
    }

    /// Limits what the box `id` may use.
    pub(super) fn limit(&self, id: &str, tier: &Tier) -> io::Result<()> {
        let millicpus = u64::from(tier.millicpus);
        let quota = (PERIOD * millicpus / 1000).max(1000);
        let files = match (self.controller, self.version) {
            (Controller::Memory, version) => memory(version, tier.memory_bytes),
            (Controller::Pids, _) => vec![File::must("pids.max", tier.pids.max(1))],
            (Controller::Cpu, Version::One) => vec![
                File::must("cpu.cfs_period_us", PERIOD),
                File::must("cpu.cfs_quota_us", quota),
                File::must("cpu.shares", (1024 * millicpus / 1000).clamp(2, 262_144)),
            ],
            (Controller::Cpu, Version::Two) => vec![
                File::must("cpu.max", format!("{quota} {PERIOD}")),
                File::must("cpu.weight", (millicpus / 10).clamp(1, 10_000)),
            ],
        };
        write(&self.parent.join(id), files)
    }
}

/// A file of a cgroup and what is written to it.
struct File {
    name: &'static str,
    text: String,
    /// Whether a kernel may lack it.
    optional: bool,
}

impl File {
    fn must(name: &'static str, value: impl ToString) -> Self {
        Self { name, text: value.to_string(), optional: false }
    }
    fn may(name: &'static str, value: impl ToString) -> Self {
        Self { name, text: value.to_string(), optional: true }
    }
}

/// Memory and no swap beside it: a limit that pages can be swapped past is none.
fn memory(version: Version, bytes: u64) -> Vec<File> {
    match version {
        Version::One => vec![
            // of the two, the limit with swap is never the lower one
            File::may("memory.memsw.limit_in_bytes", -1),
            File::must("memory.limit_in_bytes", bytes),
            File::may("memory.memsw.limit_in_bytes", bytes),
            // version 1 counts what sockets buffer apart
            File::may("memory.kmem.tcp.limit_in_bytes", bytes / 4),
        ],
        Version::Two => vec![File::must("memory.max", bytes), File::may("memory.swap.max", 0)],
    }
}

fn write(directory: &Path, files: Vec<File>) -> io::Result<()> {
    for file in files {
        let path = directory.join(file.name);
        if file.optional && !path.exists() {
            continue;
        }
        fs::write(&path, &file.text).map_err(|error| {
            io::Error::new(error.kind(), format!("{} = {}: {error}", path.display(), file.text))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::backend::Size;

    use super::*;

    /// Makes what the kernel would: a cgroup's files, empty.
    fn cgroup(directory: &Path, files: &[&str]) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        files.iter().try_for_each(|name| fs::write(directory.join(name), ""))
    }

    #[test]
    fn each_version_is_told_in_its_own_words() -> io::Result<()> {
        const MACHINE: Machine = Machine { memory_bytes: 10 << 30, pids: 10_000, cpus: 4 };
        let tier = Tier::of(Size::Medium);
        let v1 = [
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            "pids.max",
            "cpu.cfs_period_us",
            "cpu.cfs_quota_us",
            "cpu.shares",
        ];
        let v2 = ["memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"];
        for (version, files, expected) in [
            (Version::One, v1.as_slice(), "1073741824 1073741824 1024 100000 200000 2048"),
            (Version::Two, v2.as_slice(), "1073741824 0 1024 200000 100000 200"),
        ] {
            let directory = tempfile::tempdir()?;
            let parent = directory.path().join("parent");
            let child = parent.join("box");
            for directory in [&parent, &child] {
                cgroup(directory, files)?;
            }
            fs::write(parent.join("cgroup.subtree_control"), "cpu memory pids\n")?;
            for controller in Controller::ALL {
                let control =
                    Control::new(controller, version, parent.clone(), &MACHINE, &Reserve::default());
                control.prepare()?;
                control.limit("box", &tier)?;
            }
            let read = |directory: &Path| -> io::Result<String> {
                let texts: io::Result<Vec<_>> =
                    files.iter().map(|name| fs::read_to_string(directory.join(name))).collect();
                Ok(texts?.join(" "))
            };
            assert_eq!(read(&child)?, expected);
            let total = (10_u64 << 30) / 10 * 9;
            let total = match version {
                Version::One => format!("{total} {total} 8976   4096"),
                Version::Two => format!("{total} 0 8976  80"),
            };
            assert_eq!(read(&parent)?, total);
        }
        Ok(())
    }

    #[test]
    fn who_is_limited_itself_shares_out_what_it_has() -> io::Result<()> {
        const MACHINE: Machine = Machine { memory_bytes: 10 << 30, pids: 10_000, cpus: 4 };
        let directory = tempfile::tempdir()?;
        let inner = directory.path().join("outer/inner");
        cgroup(&inner, &["memory.max", "cgroup.subtree_control", "cgroup.controllers"])?;
        fs::write(inner.join("memory.max"), "max\n")?;
        fs::write(directory.path().join("outer/memory.max"), "2147483648\n")?;
        let control = Control::new(
            Controller::Memory,
            Version::Two,
            inner.join("parent"),
            &MACHINE,
            &Reserve::default().with_memory_bytes(1 << 30),
        );
        assert_eq!(control.total.memory_bytes, 1 << 30);
        // a controller that is not there is not handed down, one that is is
        assert!(Controller::Pids.hand_down(&inner).is_err());
        fs::write(inner.join("cgroup.controllers"), "cpu pids\n")?;
        Controller::Pids.hand_down(&inner)?;
        assert_eq!(fs::read_to_string(inner.join("cgroup.subtree_control"))?, "+pids");
        Ok(())
    }
}
