//! Mounts and namespaces.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use nix::libc;

use crate::sys::{Stop, Try, argument, at, at_mut, call, contents, number, own, text, word};

fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong) -> Result<(), Stop> {
    let (source, target, kind) = (text(source), text(target), text(kind));
    let words =
        [source.as_ptr() as usize, target.as_ptr() as usize, kind.as_ptr() as usize, flags as usize, 0];
    call("mount", libc::SYS_mount, &words).map(drop)
}

/// `DIRECTORY`
pub(crate) fn tmpfs(arguments: &[&str]) -> Try {
    mount("none", argument(arguments, 0)?, "tmpfs", 0)?;
    Ok("a mount".to_owned())
}

/// `SOURCE DIRECTORY`
pub(crate) fn bind(arguments: &[&str]) -> Try {
    mount(argument(arguments, 0)?, argument(arguments, 1)?, "none", libc::MS_BIND)?;
    Ok("a mount".to_owned())
}

/// `DIRECTORY`: a `/proc` without what covers parts of it.
pub(crate) fn proc(arguments: &[&str]) -> Try {
    mount("proc", argument(arguments, 0)?, "proc", 0)?;
    Ok("a mount".to_owned())
}

/// `DIRECTORY KIND`: the machine's cgroups.
pub(crate) fn cgroup(arguments: &[&str]) -> Try {
    mount("none", argument(arguments, 0)?, argument(arguments, 1)?, 0)?;
    Ok("a mount".to_owned())
}

/// `DIRECTORY`: by `fsopen`, `fsmount` and `move_mount`.
pub(crate) fn new_interface(arguments: &[&str]) -> Try {
    const CREATE: usize = 6;
    const FROM_EMPTY: usize = 4;
    let (kind, target, none) = (text("tmpfs"), text(argument(arguments, 0)?), text(""));
    let context = own(call("fsopen", libc::SYS_fsopen, &[kind.as_ptr() as usize, 0])?);
    let context = context.as_raw_fd() as usize;
    call("fsconfig", libc::SYS_fsconfig, &[context, CREATE, 0, 0, 0])?;
    let made = own(call("fsmount", libc::SYS_fsmount, &[context, 0, 0])?);
    let here = word(libc::AT_FDCWD.into());
    let words =
        [made.as_raw_fd() as usize, none.as_ptr() as usize, here, target.as_ptr() as usize, FROM_EMPTY];
    call("move_mount", libc::SYS_move_mount, &words)?;
    Ok("a mount".to_owned())
}

/// `SOURCE`: a copy of what is mounted, by `open_tree`.
pub(crate) fn clone_tree(arguments: &[&str]) -> Try {
    const CLONE: usize = 1;
    let source = text(argument(arguments, 0)?);
    let words = [word(libc::AT_FDCWD.into()), source.as_ptr() as usize, CLONE | libc::AT_RECURSIVE as usize];
    drop(own(call("open_tree", libc::SYS_open_tree, &words)?));
    Ok("a copy".to_owned())
}

/// `DIRECTORY prepare`: for who may mount, something to try the ways that follow on.
fn prepare(arguments: &[&str]) -> Result<(), Stop> {
    match arguments {
        [directory, "prepare"] => mount("none", directory, "tmpfs", libc::MS_RDONLY),
        _ => Ok(()),
    }
}

/// `DIRECTORY [prepare]`: what is mounted read-only, writable again.
pub(crate) fn writable(arguments: &[&str]) -> Try {
    prepare(arguments)?;
    let directory = argument(arguments, 0)?;
    let flags = libc::MS_REMOUNT | libc::MS_BIND;
    mount("none", directory, "none", flags)?;
    Ok(format!("{directory} is writable"))
}

/// `PATH [prepare]`: what was mounted over something, taken away.
pub(crate) fn unmount(arguments: &[&str]) -> Try {
    prepare(arguments)?;
    let target = text(argument(arguments, 0)?);
    call("umount", libc::SYS_umount2, &[target.as_ptr() as usize, libc::MNT_DETACH as usize])?;
    Ok("unmounted".to_owned())
}

/// `DIRECTORY [prepare]`
pub(crate) fn pivot_root(arguments: &[&str]) -> Try {
    prepare(arguments)?;
    let directory = text(argument(arguments, 0)?);
    call("pivot_root", libc::SYS_pivot_root, &[directory.as_ptr() as usize, directory.as_ptr() as usize])?;
    Ok("another root".to_owned())
}

/// `DIRECTORY`: another root, and out of it by a directory that was open before.
pub(crate) fn chroot(arguments: &[&str]) -> Try {
    let directory = text(argument(arguments, 0)?);
    call("chroot", libc::SYS_chroot, &[directory.as_ptr() as usize])?;
    Ok("another root".to_owned())
}

fn kind(name: &str) -> Result<i32, Stop> {
    Ok(match name {
        "user" => libc::CLONE_NEWUSER,
        "mnt" => libc::CLONE_NEWNS,
        "net" => libc::CLONE_NEWNET,
        "pid" => libc::CLONE_NEWPID,
        "ipc" => libc::CLONE_NEWIPC,
        "uts" => libc::CLONE_NEWUTS,
        "cgroup" => libc::CLONE_NEWCGROUP,
        _ => return Err(Stop::Cannot(format!("there is no namespace {name}"))),
    })
}

/// `KIND`: a namespace of its own.
pub(crate) fn unshare(arguments: &[&str]) -> Try {
    let name = argument(arguments, 0)?;
    call("unshare", libc::SYS_unshare, &[kind(name)? as usize])?;
    Ok(format!("a {name} namespace"))
}

/// `DIRECTORY`: root of its own namespaces, and a mount there.
pub(crate) fn unshare_and_mount(arguments: &[&str]) -> Try {
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    call("unshare", libc::SYS_unshare, &[flags as usize])?;
    mount("none", argument(arguments, 0)?, "tmpfs", 0)?;
    Ok("a mount".to_owned())
}

/// A child in a user namespace of its own, by `clone3`, whose flags no filter can read, and by `clone`.
pub(crate) fn clone_user(_: &[&str]) -> Try {
    let flags = libc::CLONE_NEWUSER;
    let mut wide = [0_u64; 11];
    wide[0] = flags as u64;
    wide[4] = libc::SIGCHLD as u64;
    let first = call("clone3", libc::SYS_clone3, &[at(&wide), size_of_val(&wide)]);
    let made = match first {
        Ok(child) => Ok(child),
        Err(_) => call("clone", libc::SYS_clone, &[(flags | libc::SIGCHLD) as usize, 0, 0, 0, 0]),
    };
    match made? {
        0 => std::process::exit(0),
        child => {
            call("wait", libc::SYS_wait4, &[child, 0, 0, 0])?;
            Ok(format!("child {child}"))
        }
    }
}

/// `PID KIND`: into the namespace of somebody else.
pub(crate) fn set_namespace(arguments: &[&str]) -> Try {
    let (pid, name) = (argument(arguments, 0)?, argument(arguments, 1)?);
    let file = File::open(format!("/proc/{pid}/ns/{name}")).map_err(Stop::of("open"))?;
    call("setns", libc::SYS_setns, &[file.as_raw_fd() as usize, kind(name)? as usize])?;
    Ok(format!("in its {name} namespace"))
}

/// `PID|child KIND`: from a namespace to the one around it, or to the user namespace that owns it.
pub(crate) fn parent_namespace(arguments: &[&str]) -> Try {
    const OWNER: usize = 0xb701;
    const PARENT: usize = 0xb702;
    let (pid, name) = (argument(arguments, 0)?, argument(arguments, 1)?);
    let file = if pid == "child" {
        child_namespace(name)?
    } else {
        File::open(format!("/proc/{pid}/ns/{name}")).map_err(Stop::of("open"))?
    };
    let request = if matches!(name, "user" | "pid") { PARENT } else { OWNER };
    let around = File::from(own(call("ioctl", libc::SYS_ioctl, &[file.as_raw_fd() as usize, request, 0])?));
    // who owns what it is in itself has got nowhere
    let inode = |file: std::io::Result<fs::Metadata>| file.map(|file| file.ino()).map_err(Stop::of("stat"));
    if request == OWNER && inode(around.metadata())? == inode(fs::metadata("/proc/self/ns/user"))? {
        return Err(Stop::Nothing("it is its own".to_owned()));
    }
    Ok("the namespace around".to_owned())
}

/// The namespace of a child that made one of its own.
fn child_namespace(name: &str) -> Result<File, Stop> {
    let (mut ends, mut byte) = ([0_i32; 2], [0_u8; 1]);
    call("pipe", libc::SYS_pipe2, &[at_mut(&mut ends), libc::O_CLOEXEC as usize])?;
    let (read, write) = (own(ends[0] as usize), own(ends[1] as usize));
    let flags = libc::CLONE_NEWUSER | kind(name)? | libc::SIGCHLD;
    let child = call("clone", libc::SYS_clone, &[flags as usize, 0, 0, 0, 0])?;
    if child == 0 {
        drop(write);
        // until the parent is done
        let _ = call("read", libc::SYS_read, &[read.as_raw_fd() as usize, at_mut(&mut byte), 1]);
        std::process::exit(0);
    }
    let file = File::open(format!("/proc/{child}/ns/{name}")).map_err(Stop::of("open"));
    drop(write);
    call("wait", libc::SYS_wait4, &[child, 0, 0, 0])?;
    file
}

/// `MOUNT KIND HEX`: a file by its number in the file system that a mount belongs to, wherever it lies there.
pub(crate) fn open_by_handle(arguments: &[&str]) -> Try {
    let place = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(argument(arguments, 0)?)
        .map_err(Stop::of("open the mount"))?;
    let hex = argument(arguments, 2)?;
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .filter_map(|at| u8::from_str_radix(hex.get(at * 2..at * 2 + 2)?, 16).ok())
        .collect();
    let mut handle = Vec::new();
    handle.extend_from_slice(&(bytes.len() as u32).to_ne_bytes());
    handle.extend_from_slice(&number::<i32>(arguments, 1)?.to_ne_bytes());
    handle.extend_from_slice(&bytes);
    let words = [place.as_raw_fd() as usize, at(handle.as_slice()), libc::O_RDONLY as usize];
    let file = own(call("open_by_handle_at", libc::SYS_open_by_handle_at, &words)?);
    contents(File::from(file))
}
