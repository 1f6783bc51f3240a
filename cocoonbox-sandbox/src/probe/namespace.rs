//! User namespaces, the ids that may be mapped into them, and Landlock.

use std::fs;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags};

use super::child::{End, Word, in_child, words};
use super::{Check, tool};
use crate::bwrap::map::{Map, MapError};

pub(super) const NAME: &str = "user namespaces";

const UNSHARE: u8 = 1;
const MAP: u8 = 2;
const INSIDE: u8 = 3;
const DONE: u8 = 4;

/// Makes a user namespace, maps its root, and makes a network namespace in it: a system that hands out namespaces
/// without privileges inside is found out at the last step.
pub(super) fn check() -> Check {
    let user = format!("0 {} 1", rustix::process::getuid().as_raw());
    let group = format!("0 {} 1", rustix::process::getgid().as_raw());
    let end = in_child(Duration::from_secs(3), || {
        let failed = |step, errno: i32| Word { step, errno, byte: 0 };
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWUSER) {
            return failed(UNSHARE, errno as i32);
        }
        // an ordinary user may map groups only after giving up setgroups
        for (path, text) in [
            (c"/proc/self/setgroups", "deny"),
            (c"/proc/self/uid_map", &user),
            (c"/proc/self/gid_map", &group),
        ] {
            let written = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())
                .and_then(|file| rustix::io::write(file, text.as_bytes()));
            if let Err(errno) = written {
                return failed(MAP, errno.raw_os_error());
            }
        }
        unshare(CloneFlags::CLONE_NEWNET)
            .map_or_else(|errno| failed(INSIDE, errno as i32), |()| failed(DONE, 0))
    });
    match end {
        End::Said(Word { step: DONE, .. }) => {
            Check::yes(NAME, "a user namespace was made, with a network namespace in it")
        }
        End::Said(Word { step, errno, .. }) => {
            let what = match step {
                UNSHARE => "no user namespace can be made",
                MAP => "a user namespace is made and nobody can be mapped into it",
                _ => "a user namespace is made without privileges inside",
            };
            Check::no(NAME, what, words(errno), remedy(&|path| fs::read_to_string(path).ok()))
        }
        End::NoChild(errno) => {
            Check::no(NAME, "not tried", words(errno), "raise the limit of processes: ulimit -u")
        }
        End::Died | End::Late => {
            let reason = "the process that made one did not answer";
            Check::no(
                NAME,
                "no user namespace can be made",
                reason,
                remedy(&|path| fs::read_to_string(path).ok()),
            )
        }
    }
}

/// Finds the switch that is off.
fn remedy(read: &dyn Fn(&str) -> Option<String>) -> String {
    let is = |path: &str, value: &str| read(path).is_some_and(|text| text.trim() == value);
    let lasting = "; to keep it, write the setting into /etc/sysctl.d/60-cocoonbox.conf";
    let setting = if is("/proc/sys/user/max_user_namespaces", "0") {
        "sysctl -w user.max_user_namespaces=15000"
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "sysctl -w kernel.unprivileged_userns_clone=1"
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    } else {
        return "inside a container: let it use unshare (podman --security-opt seccomp=unconfined, or run on the host); \
                else use a kernel with CONFIG_USER_NS"
            .to_owned();
    };
    format!("as root: {setting}{lasting}")
}

/// Looks for ids that an ordinary user may map, by mapping them.
pub(super) fn subordinate_ids() -> Check {
    const NAME: &str = "subordinate ids";
    let uid = rustix::process::getuid();
    if uid.is_root() {
        return Check::yes(NAME, "root may map any id: each box has a uid of its own");
    }
    let uid = uid.as_raw();
    let error = match Map::find() {
        Ok(map) => {
            let count = map.uids().len();
            return Check::yes(NAME, format!("{count} were mapped: each box has a uid of its own"));
        }
        Err(error) => error,
    };
    let remedy = match &error {
        MapError::NoRange { who } => format!(
            "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {who} (package uidmap)"
        ),
        MapError::NoProgram => tool::apt("uidmap"),
        MapError::Refused { .. } => format!(
            "run `newuidmap` by hand as uid {uid} to see why; a process under no_new_privs, in a container for one, cannot use it"
        ),
    };
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    let reason = format!("{error}{cause}; all boxes have the uid of who runs the node");
    Check::no(NAME, "none", reason, remedy).degraded()
}

/// Asks the kernel for its Landlock version.
pub(crate) fn landlock_version() -> std::io::Result<i64> {
    const VERSION: u32 = 1;
    // SAFETY: with no attributes, size 0 and the version flag the call reads and makes nothing, and returns a number.
    #[expect(unsafe_code, reason = "no library of ours has this call")]
    let answer = unsafe {
        nix::libc::syscall(nix::libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION)
    };
    if answer > 0 { Ok(answer) } else { Err(std::io::Error::last_os_error()) }
}

/// What a version does for a box.
fn landlock_words(version: i64) -> String {
    let files =
        if version >= 2 { "boxes write only where they may" } else { "too old to be of use to boxes" };
    let scopes = if version >= 6 { "; signals and abstract sockets stay in their box" } else { "" };
    format!("version {version}: {files}{scopes}")
}

/// Says how much of Landlock there is.
pub(super) fn landlock() -> Check {
    const NAME: &str = "landlock";
    let errno = match landlock_version() {
        Ok(version) => return Check::yes(NAME, landlock_words(version)),
        Err(errno) => errno,
    };
    let remedy = if errno.raw_os_error() == Some(nix::libc::EOPNOTSUPP) {
        "start the kernel with landlock in its list: add lsm=landlock,lockdown,yama,integrity,apparmor,bpf to the \
         command line"
    } else {
        "use a kernel from 5.13 on with CONFIG_SECURITY_LANDLOCK; boxes do without"
    };
    Check::no(NAME, "not there", errno.to_string(), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_that_is_off_is_named() {
        for (path, value, word) in [
            ("/proc/sys/user/max_user_namespaces", "0\n", "user.max_user_namespaces"),
            ("/proc/sys/kernel/unprivileged_userns_clone", "0\n", "unprivileged_userns_clone=1"),
            ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n", "apparmor_restrict"),
            ("/none", "", "CONFIG_USER_NS"),
        ] {
            let words = remedy(&|asked| (asked == path).then(|| value.to_owned()));
            assert!(words.contains(word), "{words}");
        }
    }
}
