//! Files, devices, and what programs share by name.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;

use nix::libc;

use crate::sys::{Stop, Try, argument, at_mut, call, contents, number, own, printable, text};

/// `PATH`
pub(crate) fn read(arguments: &[&str]) -> Try {
    let got = contents(File::open(argument(arguments, 0)?).map_err(Stop::of("open"))?)?;
    if got.is_empty() {
        return Err(Stop::Nothing("nothing is in it".to_owned()));
    }
    // what is not ours to show is counted
    if got.contains("secret of") { Ok(got) } else { Ok(format!("{} bytes", got.len())) }
}

/// `PATH`: open for writing; nothing is written.
pub(crate) fn open_writable(arguments: &[&str]) -> Try {
    let path = argument(arguments, 0)?;
    OpenOptions::new().write(true).open(path).map_err(Stop::of("open"))?;
    Ok(format!("{path} is open for writing"))
}

/// `DIRECTORY`: a new file in it.
pub(crate) fn create(arguments: &[&str]) -> Try {
    let path = format!("{}/attacker-{}", argument(arguments, 0)?, std::process::id());
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(Stop::of("create"))?;
    let written = file.write_all(b"x").map_err(Stop::of("write"));
    let _ = fs::remove_file(&path);
    written.map(|()| path)
}

/// `DIRECTORY KIND MAJOR MINOR`: a device node, and what is behind it.
pub(crate) fn make_device(arguments: &[&str]) -> Try {
    let path = format!("{}/device-{}", argument(arguments, 0)?, std::process::id());
    let kind = if argument(arguments, 1)? == "b" { libc::S_IFBLK } else { libc::S_IFCHR };
    let device = libc::makedev(number(arguments, 2)?, number(arguments, 3)?);
    let name = text(&path);
    let here = crate::sys::word(libc::AT_FDCWD.into());
    let words = [here, name.as_ptr() as usize, (kind | 0o666) as usize, device as usize];
    call("mknod", libc::SYS_mknodat, &words)?;
    let opened = File::open(&path).map(drop).map_err(Stop::of("open"));
    let _ = fs::remove_file(&path);
    opened.map(|()| "the device is open".to_owned())
}

/// `KEY`: a segment of System V shared memory.
pub(crate) fn shared_memory(arguments: &[&str]) -> Try {
    let id = call("shmget", libc::SYS_shmget, &[number(arguments, 0)?, 0, 0])?;
    let place = call("shmat", libc::SYS_shmat, &[id, 0, libc::SHM_RDONLY as usize])?;
    // SAFETY: the segment is at least a page, and nobody writes to it.
    let bytes = unsafe { std::slice::from_raw_parts(place as *const u8, 64) };
    let got = printable(bytes.split(|byte| *byte == 0).next().unwrap_or_default());
    call("shmdt", libc::SYS_shmdt, &[place])?;
    Ok(got)
}

/// `NAME`: a POSIX message queue.
pub(crate) fn message_queue(arguments: &[&str]) -> Try {
    let name = text(argument(arguments, 0)?);
    let flags = libc::O_RDONLY | libc::O_NONBLOCK;
    let queue = own(call("mq_open", libc::SYS_mq_open, &[name.as_ptr() as usize, flags as usize, 0, 0])?);
    let mut attributes = [0_i64; 8];
    let queue = std::os::fd::AsRawFd::as_raw_fd(&queue) as usize;
    call("mq_getattr", libc::SYS_mq_getsetattr, &[queue, 0, at_mut(&mut attributes)])?;
    Ok(format!("a queue of {}", attributes[1]))
}
