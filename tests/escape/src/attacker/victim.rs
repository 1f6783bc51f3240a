//! Somebody on the host with the same user as a box: what it has is what an attacker wants.

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, Signal};

use crate::sys::{Stop, argument, at, call, number, own, text, word};

/// `MARKER SECRET FOLDER SHM-KEY`: holds the secret in every place that there is, says where, and answers each line
/// with what was done to it, until its input ends.
pub(crate) fn run(arguments: &[&str]) -> ! {
    match hold(arguments) {
        Ok(()) => std::process::exit(0),
        Err(stop) => {
            println!("cannot try: {stop:?}");
            std::process::exit(2)
        }
    }
}

fn hold(arguments: &[&str]) -> Result<(), Stop> {
    let (marker, secret, folder) =
        (argument(arguments, 0)?, argument(arguments, 1)?, argument(arguments, 2)?);
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGWINCH);
    signals.thread_block().map_err(|errno| Stop::Refused { what: "block", errno })?;

    let memory: &'static mut str = Box::leak(secret.to_owned().into_boxed_str());
    let _path = UnixListener::bind(format!("{folder}/victim.sock")).map_err(Stop::of("bind"))?;
    let name = SocketAddr::from_abstract_name(marker).map_err(Stop::of("name"))?;
    let _name = UnixListener::bind_addr(&name).map_err(Stop::of("bind"))?;
    let port = greet(secret.to_owned())?;
    let mut files = Vec::new();
    for folder in ["/tmp", "/dev/shm", folder] {
        let path = format!("{folder}/{marker}.secret");
        fs::write(&path, secret).map_err(Stop::of("write"))?;
        let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o644));
        files.push(path);
    }
    let segment = segment(number(arguments, 3)?, secret);
    let queue = queue(marker);
    // keys that anyone of this user may read, as a program may set them; a kernel without keys has none
    let serial = key(marker, secret).unwrap_or(0);

    println!(
        "pid={} address={} length={} port={port} serial={serial} segment={} queue={} folder={folder}",
        std::process::id(),
        at(memory),
        memory.len(),
        segment.is_ok(),
        queue.is_ok(),
    );
    for line in std::io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
        // taken, so that the next answer tells of the next one
        let none = [0_i64; 2];
        let words = [at(signals.as_ref()), 0, at(&none), 8];
        let pending = i32::from(call("sigtimedwait", libc::SYS_rt_sigtimedwait, &words).is_ok());
        let nice = call("getpriority", libc::SYS_getpriority, &[libc::PRIO_PROCESS as usize, 0])?;
        let queues = getrlimit(Resource::RLIMIT_MSGQUEUE).map_or(0, |(soft, _)| soft);
        println!("signals={pending} nice={} queues={queues} memory={memory}", 20 - nice.cast_signed());
        let _ = std::io::stdout().flush();
    }
    for path in files {
        let _ = fs::remove_file(path);
    }
    if let Ok(id) = segment {
        let _ = call("shmctl", libc::SYS_shmctl, &[id, libc::IPC_RMID as usize, 0]);
    }
    let name = text(marker);
    let _ = call("mq_unlink", libc::SYS_mq_unlink, &[name.as_ptr() as usize]);
    Ok(())
}

/// Says the secret to everybody who connects.
fn greet(secret: String) -> Result<u16, Stop> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Stop::of("listen"))?;
    let port = listener.local_addr().map_err(Stop::of("listen"))?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.write_all(secret.as_bytes());
        }
    });
    Ok(port)
}

fn segment(key: usize, secret: &str) -> Result<usize, Stop> {
    let flags = (libc::IPC_CREAT | libc::IPC_EXCL | 0o666) as usize;
    let id = call("shmget", libc::SYS_shmget, &[key, 4096, flags])?;
    let place = call("shmat", libc::SYS_shmat, &[id, 0, 0])?;
    // SAFETY: the segment is a page, which the secret is shorter than, and nobody else has it yet.
    unsafe { std::ptr::copy_nonoverlapping(secret.as_ptr(), place as *mut u8, secret.len().min(4095)) };
    Ok(id)
}

fn queue(marker: &str) -> Result<(), Stop> {
    let name = text(marker);
    let attributes = [0_i64, 4, 64, 0, 0, 0, 0, 0];
    let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR) as usize;
    let words = [name.as_ptr() as usize, flags, 0o644, at(&attributes)];
    call("mq_open", libc::SYS_mq_open, &words).map(|queue| drop(own(queue)))
}

fn key(marker: &str, secret: &str) -> Result<usize, Stop> {
    const PROCESS_RING: i64 = -2;
    const EVERYTHING_FOR_OWNER: usize = 0x3f3f_0000;
    let (kind, name) = (text("user"), text(marker));
    let words =
        [kind.as_ptr() as usize, name.as_ptr() as usize, at(secret), secret.len(), word(PROCESS_RING)];
    let serial = call("add_key", libc::SYS_add_key, &words)?;
    call("keyctl setperm", libc::SYS_keyctl, &[libc::KEYCTL_SETPERM as usize, serial, EVERYTHING_FOR_OWNER])?;
    Ok(serial)
}
