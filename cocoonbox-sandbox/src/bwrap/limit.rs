//! What a box may use, and what of the machine no box gets.

use std::fs;

use cocoonbox_core::backend::Size;

const MIB: u64 = 1024 * 1024;

/// What one box may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tier {
    /// Bytes of memory, swap and files in memory included.
    pub memory_bytes: u64,
    /// Thousandths of a processor.
    pub millicpus: u32,
    /// Processes and threads at once.
    pub pids: u32,
    /// Bytes on disk.
    pub disk_bytes: u64,
}

impl Tier {
    /// Returns what a size stands for where an operator says nothing else.
    pub const fn of(size: Size) -> Self {
        Self {
            memory_bytes: size.memory_bytes(),
            millicpus: size.cpus() * 1000,
            pids: size.pids(),
            disk_bytes: size.disk_bytes(),
        }
    }
    /// Sets the bytes of memory.
    pub const fn with_memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }
    /// Sets the thousandths of a processor.
    pub const fn with_millicpus(mut self, millicpus: u32) -> Self {
        self.millicpus = millicpus;
        self
    }
    /// Sets how many processes and threads there may be.
    pub const fn with_pids(mut self, pids: u32) -> Self {
        self.pids = pids;
        self
    }
    /// Sets the bytes on disk.
    pub const fn with_disk_bytes(mut self, bytes: u64) -> Self {
        self.disk_bytes = bytes;
        self
    }

    /// Returns how many files the box may have: one for each 16 KiB, as file systems are made.
    pub(super) const fn files(&self) -> u64 {
        let files = self.disk_bytes / (16 * 1024);
        if files < 4096 { 4096 } else { files }
    }
}

/// By what memory, processors and processes of a box are limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessLimit {
    /// By cgroups, of either version, for what the machine lets us make them; else as [`Self::Advice`].
    #[default]
    Cgroup,
    /// By rlimits and a nice value.
    Advice,
    /// By nothing.
    Off,
}

/// By what the disk of a box is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskLimit {
    /// Somebody looks now and then, and holds a box still that is over its limit.
    #[default]
    Watch,
    /// Every box has a file system of its own in an image. Asks for root; where it cannot be had, as [`Self::Watch`].
    Loop,
    /// By nothing.
    Off,
}

/// What of the machine no box gets, all boxes of the node together; absent: a choice by the machine's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reserve {
    /// Bytes of memory; absent: a tenth, at least 512 MiB, at most half.
    pub memory_bytes: Option<u64>,
    /// Processes and threads; absent: a tenth, at least 1,024, at most half.
    pub pids: Option<u32>,
    /// Bytes of the data directory's file system; absent: a twentieth, at least 1 GiB and at most 20, never over half.
    pub disk_bytes: Option<u64>,
}

impl Reserve {
    /// Sets the bytes of memory.
    pub const fn with_memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }
    /// Sets the processes and threads.
    pub const fn with_pids(mut self, pids: u32) -> Self {
        self.pids = Some(pids);
        self
    }
    /// Sets the bytes of disk.
    pub const fn with_disk_bytes(mut self, bytes: u64) -> Self {
        self.disk_bytes = Some(bytes);
        self
    }

    /// Returns what of `total` bytes of disk stays free.
    pub(super) fn disk_of(&self, total: u64) -> u64 {
        self.disk_bytes.unwrap_or_else(|| (total / 20).clamp(1024 * MIB, 20 * 1024 * MIB).min(total / 2))
    }
}

/// How a [`BwrapBackend`](crate::BwrapBackend) limits its boxes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Limits {
    /// By what memory, processors and processes are limited.
    pub processes: ProcessLimit,
    /// By what the disk is limited.
    pub disk: DiskLimit,
    /// What of the machine no box gets.
    pub reserve: Reserve,
    /// What sizes stand for on this node, where that is not what they stand for elsewhere.
    tiers: Vec<(Size, Tier)>,
}

impl Limits {
    /// Limits nothing.
    pub fn off() -> Self {
        Self { processes: ProcessLimit::Off, disk: DiskLimit::Off, ..Self::default() }
    }
    /// Sets by what memory, processors and processes are limited.
    pub const fn with_processes(mut self, processes: ProcessLimit) -> Self {
        self.processes = processes;
        self
    }
    /// Sets by what the disk is limited.
    pub const fn with_disk(mut self, disk: DiskLimit) -> Self {
        self.disk = disk;
        self
    }
    /// Sets what of the machine no box gets.
    pub const fn with_reserve(mut self, reserve: Reserve) -> Self {
        self.reserve = reserve;
        self
    }
    /// Sets what `size` stands for on this node.
    pub fn with_tier(mut self, size: Size, tier: Tier) -> Self {
        self.tiers.retain(|(other, _)| *other != size);
        self.tiers.push((size, tier));
        self
    }
    /// Returns what `size` stands for on this node.
    pub fn tier(&self, size: Size) -> Tier {
        let own = self.tiers.iter().find(|(other, _)| *other == size);
        own.map_or_else(|| Tier::of(size), |(_, tier)| *tier)
    }
}

/// What all boxes of a node together may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) memory_bytes: u64,
    pub(super) pids: u64,
    pub(super) cpus: u32,
}

impl Total {
    /// Subtracts the reserve from what the machine has.
    pub(super) fn of(machine: &Machine, reserve: &Reserve) -> Self {
        let rest = |all: u64, asked: Option<u64>, least: u64| {
            let reserve = asked.unwrap_or_else(|| (all / 10).max(least).min(all / 2));
            all.saturating_sub(reserve).max(1)
        };
        Self {
            memory_bytes: rest(machine.memory_bytes, reserve.memory_bytes, 512 * MIB),
            pids: rest(machine.pids, reserve.pids.map(u64::from), 1024),
            cpus: machine.cpus,
        }
    }
}

/// What a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) memory_bytes: u64,
    pub(super) pids: u64,
    pub(super) cpus: u32,
}

impl Machine {
    /// Asks the system; what it does not say counts as plenty.
    pub(super) fn look() -> Self {
        let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory_total(&text));
        let number =
            |path| fs::read_to_string(path).ok().and_then(|text: String| text.trim().parse::<u64>().ok());
        let pids =
            ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].into_iter().filter_map(number);
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Self { memory_bytes: memory.unwrap_or(1 << 60), pids: pids.min().unwrap_or(1 << 22), cpus }
    }
}

/// Reads `MemTotal` of `/proc/meminfo`.
fn memory_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_a_tenth_within_bounds() {
        let total = |gib: u64, pids: u64, reserve: Reserve| {
            let machine = Machine { memory_bytes: gib * 1024 * MIB, pids, cpus: 2 };
            let total = Total::of(&machine, &reserve);
            (total.memory_bytes / MIB, total.pids)
        };
        assert_eq!(total(100, 32768, Reserve::default()), (92_160, 29_492));
        // a small machine keeps 512 MiB, a tiny one half
        assert_eq!(total(2, 4096, Reserve::default()), (1536, 3072));
        assert_eq!(total(1, 1000, Reserve::default()), (512, 500));
        let asked = Reserve::default().with_memory_bytes(256 * MIB).with_pids(10);
        assert_eq!(total(1, 1000, asked), (768, 990));
        // more than there is leaves the least
        let asked = Reserve::default().with_memory_bytes(u64::MAX).with_pids(u32::MAX);
        assert_eq!(total(1, 1000, asked), (0, 1));
    }

    #[test]
    fn a_reserve_of_disk_is_a_twentieth_within_bounds() {
        let gib = 1024 * MIB;
        let of = |total: u64| Reserve::default().disk_of(total);
        assert_eq!(
            (of(gib), of(10 * gib), of(100 * gib), of(10_000 * gib)),
            (gib / 2, gib, 5 * gib, 20 * gib)
        );
        assert_eq!(Reserve::default().with_disk_bytes(7).disk_of(gib), 7);
    }

    #[test]
    fn a_size_stands_for_what_the_operator_says() {
        let small = Tier::of(Size::Small).with_pids(3);
        let limits =
            Limits::default().with_tier(Size::Small, Tier::of(Size::Large)).with_tier(Size::Small, small);
        assert_eq!(limits.tier(Size::Small), small);
        assert_eq!(limits.tier(Size::Medium), Tier::of(Size::Medium));
        assert_eq!(limits.tier(Size::Medium).millicpus, 2000);
    }

    #[test]
    fn the_machine_is_read() {
        assert_eq!(memory_total("MemTotal:       24683656 kB\nMemFree: 1 kB\n"), Some(24_683_656 * 1024));
        assert_eq!(memory_total("MemTotal: x kB\n"), None);
        assert_eq!(memory_total(""), None);
        let machine = Machine::look();
        assert!(machine.memory_bytes > MIB && machine.pids > 100 && machine.cpus > 0, "{machine:?}");
    }
}
