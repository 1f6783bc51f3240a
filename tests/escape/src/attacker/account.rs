//! Being somebody else.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use nix::libc;

use crate::sys::{Stop, Try, argument, call, number};

/// Who runs this, as the kernel sees it here.
#[expect(clippy::unnecessary_wraps, reason = "the form of every way")]
pub(crate) fn who(_: &[&str]) -> Try {
    Ok(whoever())
}

fn whoever() -> String {
    format!("{} {}", nix::unistd::geteuid(), nix::unistd::getegid())
}

/// `PATH`: a copy of the attacker that belongs to somebody else and takes its owner's rights.
pub(crate) fn setuid_program(arguments: &[&str]) -> Try {
    let mine = whoever();
    let path = argument(arguments, 0)?;
    let ran = Command::new(path).arg("who").output().map_err(Stop::of("run"))?;
    let theirs = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    let theirs = theirs.strip_prefix("out: ").unwrap_or("nobody").to_owned();
    if !ran.status.success() {
        return Err(Stop::Cannot(format!("it ended with {}", ran.status)));
    }
    if theirs == mine {
        Err(Stop::Nothing(format!("still {mine}")))
    } else {
        Ok(format!("{theirs} after {mine}"))
    }
}

/// `PATH`: a copy of the attacker, for whoever runs it outside.
pub(crate) fn plant_setuid(arguments: &[&str]) -> Try {
    let path = argument(arguments, 0)?;
    fs::copy("/proc/self/exe", path).map_err(Stop::of("copy"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o6755)).map_err(Stop::of("chmod"))?;
    let mode = fs::metadata(path).map_err(Stop::of("stat"))?.permissions().mode();
    Ok(format!("{mode:o}"))
}

/// `ID`: another user by asking for it.
pub(crate) fn become_id(arguments: &[&str]) -> Try {
    let id: usize = number(arguments, 0)?;
    call("setresgid", libc::SYS_setresgid, &[id, id, id])?;
    call("setresuid", libc::SYS_setresuid, &[id, id, id])?;
    Ok(whoever())
}

/// Any capability: in force, or there for a program that asks.
pub(crate) fn capability(_: &[&str]) -> Try {
    let status = fs::read_to_string("/proc/self/status").map_err(Stop::of("status"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    for name in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:", "CapAmb:"] {
        match field(name) {
            None => return Err(Stop::Cannot(format!("no line {name}"))),
            Some(set) if set.bytes().any(|digit| digit != b'0') => return Ok(format!("{name} {set}")),
            Some(_) => {}
        }
    }
    Err(Stop::Nothing("none".to_owned()))
}
