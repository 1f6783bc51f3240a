//! Processes of the host, by what `/proc` says.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::journal::Process;

/// What `/proc/<pid>/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) start_time: u64,
}

/// Reads a process's state; nothing when it is gone.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<Stat> {
    // the name in the second field is the process's own choice, brackets and spaces included
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let start_time = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, start_time })
}

/// Returns the number of a process's pid namespace.
pub(crate) fn pid_namespace(pid: i32) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns every process of the host.
pub(super) fn all() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns whether a recorded process still is the one that was recorded, and not a zombie.
pub(super) fn is_alive(process: &Process) -> bool {
    lives(process.pid, process.start_time)
}

/// As [`is_alive`], for who may not take a look that failed, for want of descriptors, for an end.
pub(super) fn look(process: &Process) -> io::Result<bool> {
    match fs::read_to_string(format!("/proc/{}/stat", process.pid)) {
        Ok(text) => Ok(parse_stat(&text).is_some_and(|stat| is_that(process, stat))),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a file of `/proc` could not be read because its process is over.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn is_that(process: &Process, stat: Stat) -> bool {
    stat.start_time == process.start_time && !matches!(stat.state, 'Z' | 'X')
}

/// Opens a recorded process; nothing when it is gone or its pid names another by now.
pub(super) fn open(process: &Process) -> Option<OwnedFd> {
    open_started(process.pid, process.start_time)
}

/// Opens the process `pid` that started at `start_time`; nothing when it is gone or its pid names another by now.
pub(crate) fn open_started(pid: i32, start_time: u64) -> Option<OwnedFd> {
    let descriptor = handle(pid)?;
    // checked after opening: the descriptor stays with whatever had the pid at that time
    lives(pid, start_time).then_some(descriptor)
}

fn lives(pid: i32, start_time: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.start_time == start_time && !matches!(stat.state, 'Z' | 'X'))
}

/// Sends SIGKILL by descriptor.
pub(crate) fn kill(process: &OwnedFd) {
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// Sends SIGTERM by descriptor; true when it was there to get it.
pub(super) fn terminate(process: &OwnedFd) -> bool {
    pidfd_send_signal(process, Signal::TERM).is_ok()
}

/// Sends a signal to a process that was just seen, unless its pid names another by now.
pub(crate) fn signal(pid: i32, seen: &Stat, signal: Signal) {
    let Some(handle) = handle(pid) else { return };
    // checked after opening, as above
    if stat(pid).is_some_and(|now| now.start_time == seen.start_time) {
        let _ = pidfd_send_signal(&handle, signal);
    }
}

fn handle(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Returns every process that was started for the box `id`, known to a record or not.
///
/// A launcher carries the id in its name; everything in the box sees the box's identity among its mounts. Both can be
/// read whoever we are, as a list of open files cannot: the box's processes are not dumpable.
pub(super) fn of_box(id: &str) -> Vec<OwnedFd> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    // its identity is mounted from the claim's directory whatever file system its home is on
    let (name, identity) = (launcher_name(id), format!("/{id}/identity"));
    let is_of_box = |pid: &i32| {
        let named =
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(name.as_bytes()));
        let sees = || {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            mounts.lines().any(|line| shows(line, &identity))
        };
        named || sees()
    };
    let others = all().into_iter().filter(|pid| *pid != own);
    // opened before it is looked at, so that what is looked at is what is ended
    others.filter_map(|pid| handle(pid).filter(|_| is_of_box(&pid))).collect()
}

/// Whether a line of a mount table shows a directory whose path ends in `end`: what is mounted, not where, as all of the
/// host sees where the node mounts the file systems of its boxes.
fn shows(line: &str, end: &str) -> bool {
    line.split(' ').nth(3).is_some_and(|root| root.ends_with(end))
}

/// The name of the process that launches the box `id` and waits for it.
pub(super) fn launcher_name(id: &str) -> String {
    format!("cocoonbox-box {id}")
}

/// Returns the processes below and with `root`, each before those that it started.
pub(crate) fn tree(root: i32) -> Vec<(i32, Stat)> {
    let mut children: BTreeMap<i32, Vec<(i32, Stat)>> = BTreeMap::new();
    let mut found = Vec::new();
    for pid in all() {
        if let Some(stat) = stat(pid) {
            if pid == root {
                found.push((pid, stat));
            }
            children.entry(stat.parent).or_default().push((pid, stat));
        }
    }
    let mut next = 0;
    while let Some((pid, _)) = found.get(next).copied() {
        next += 1;
        if let Some(children) = children.remove(&pid) {
            found.extend(children);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_hostile_name_does_not_shift_the_fields() {
        let rest = "S 12 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 777 21";
        let expected = Some(Stat { state: 'S', parent: 12, start_time: 777 });
        for name in ["sh", "a) R 1 (b", ") Z 9", "", "\n"] {
            assert_eq!(parse_stat(&format!("5 ({name}) {rest}")), expected, "{name:?}");
        }
    }

    #[test]
    fn who_sees_where_a_box_is_mounted_is_not_in_it() {
        let inside = "90 80 254:0 /data/claims/sb_a/identity /run/cocoonbox-identity ro - ext4 /dev/vda rw";
        assert!(shows(inside, "/sb_a/identity"));
        for host in [
            "46 27 7:0 / /data/claims/sb_a/files rw - ext4 /dev/loop0 rw",
            "46 27 7:0 / /data/claims/sb_a/identity rw - ext4 /dev/loop0 rw",
            "90 80 254:0 /data/claims/sb_b/identity /run/cocoonbox-identity ro - ext4 /dev/vda rw",
            "",
        ] {
            assert!(!shows(host, "/sb_a/identity"), "{host}");
        }
    }

    #[test]
    fn this_process_is_found() {
        let own = i32::try_from(std::process::id()).unwrap();
        let stat = stat(own).unwrap();
        assert!(stat.start_time > 0 && pid_namespace(own).is_some());
        assert!(tree(stat.parent).iter().any(|(pid, _)| *pid == own));
        let process = |start_time| Process {
            pid: own,
            start_time,
            pid_namespace: 0,
            agent: String::new(),
            etc: None,
            stopped_before: Vec::new(),
        };
        assert!(open(&process(stat.start_time)).is_some());
        assert!(open(&process(stat.start_time + 1)).is_none());
    }

    #[test]
    fn a_pid_that_came_round_again_is_not_signalled() -> Result<(), Box<dyn std::error::Error>> {
        let mut child = std::process::Command::new("sleep").arg("100").spawn()?;
        let pid = i32::try_from(child.id())?;
        let seen = stat(pid).ok_or("it is there")?;
        signal(pid, &Stat { start_time: seen.start_time - 1, ..seen }, Signal::KILL);
        assert!(child.try_wait()?.is_none());
        signal(pid, &seen, Signal::KILL);
        assert!(!child.wait()?.success());
        Ok(())
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,200}") {
            let _ = parse_stat(&text);
        }
    }
}
