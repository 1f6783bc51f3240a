//! A disk that is full, and one that turns read-only under a server: refusals that say so, and then all is as before.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cocoonbox_fault_tests::{Cgroups, clear, say};
use cocoonbox_stories::{Account, Run, Server, eventually, output};
use nix::sys::signal::Signal;
use nix::unistd::Uid;

type Outcome = Result<(), Box<dyn Error>>;

/// A file system in a file, as a server's data directory.
struct Disk {
    image: PathBuf,
    folder: PathBuf,
}

impl Disk {
    /// Makes one of `size` and mounts it.
    fn mount(server: &Server, size: &str) -> Self {
        let disk = Self { image: server.scratch().join("disk.img"), folder: server.data() };
        output(Command::new("truncate").args(["-s", size]).arg(&disk.image), b"").ok();
        output(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&disk.image), b"").ok();
        disk.again();
        output(Command::new("chmod").arg("700").arg(&disk.folder), b"").ok();
        disk
    }

    fn again(&self) {
        let mut mount = Command::new("mount");
        output(mount.args(["-o", "loop,errors=remount-ro"]).arg(&self.image).arg(&self.folder), b"").ok();
    }

    /// Lets the file system find itself broken, as it does when its disk fails: it turns read-only on the spot.
    fn fails(&self) -> std::io::Result<()> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let here = format!(" {} ", self.folder.display());
        let device = mounts.lines().find(|line| line.contains(&here)).and_then(|line| line.split(' ').next());
        let name = Path::new(device.unwrap_or_default()).file_name().unwrap_or_default();
        fs::write(Path::new("/sys/fs/ext4").join(name).join("trigger_fs_error"), "1")
    }

    fn unmount(&self) -> bool {
        Command::new("umount").arg(&self.folder).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        clear(&self.folder.join("node"), &mut Cgroups::default());
        if !self.unmount() {
            drop(Command::new("umount").arg("--lazy").arg(&self.folder).status());
        }
    }
}

fn root() -> bool {
    let root = Uid::effective().is_root();
    if !root {
        say("left out: only root can mount a disk");
    }
    root
}

/// A refusal that a person can act on: no success, no panic, words and a next step.
fn is_a_refusal(run: &Run) {
    assert!(matches!(run.code, Some(1 | 3)), "{run:?}");
    assert!(run.stderr.contains("hint:") && !run.stderr.contains("panicked"), "{run:?}");
}

fn settled(server: &Server, name: &str) -> String {
    eventually("the box is in no between-state", || {
        let state = server.json(&["box", "show", name])["state"].as_str().unwrap_or_default().to_owned();
        (state != "starting" && state != "hibernating").then_some(state)
    })
}

#[test]
fn a_full_disk_refuses_and_gives_back_when_there_is_room() -> Outcome {
    if !root() {
        return Ok(());
    }
    let server = Server::prepare(Account::Own);
    let _disk = Disk::mount(&server, "192M");
    // bound after the disk, so that it goes before it
    let mut server = server;
    server.start_again();
    server.cli(&["box", "ensure"]).ok();
    server.sh("echo kept > /workspace/file && sync");
    server.cli(&["box", "create", "asleep"]).ok();
    server.cli(&["box", "hibernate", "asleep", "--to-disk"]).ok();

    // up to the last block, and again for what is written meanwhile
    let fill = server.data().join("fill");
    let full = || {
        for bytes in ["1M", "4k", "512"] {
            let target = format!("of={}", fill.display());
            let mut dd = Command::new("dd");
            dd.args(["if=/dev/zero", &target, &format!("bs={bytes}"), "oflag=append", "conv=notrunc"]);
            let run = output(&mut dd, b"");
            assert!(run.stderr.contains("No space left"), "{run:?}");
        }
    };
    full();
    is_a_refusal(&server.cli(&["box", "create", "other"]));
    full();
    for words in [
        &["box", "ensure", "asleep"][..],
        &["box", "hibernate", "main"],
        &["box", "ensure", "main"],
        &["rsh", "--box", "main", "--", "true"],
        &["box", "rename", "asleep", "sleepy"],
    ] {
        let run = server.cli(words);
        // what needs no room may work
        if run.code != Some(0) {
            is_a_refusal(&run);
        }
    }
    server.cli(&["box", "ls"]).ok();

    fs::remove_file(&fill)?;
    for name in ["main", "asleep"] {
        settled(&server, name);
    }
    assert_eq!(
        eventually("the box answers", || {
            let run = server.rsh(&["cat", "/workspace/file"]);
            (run.code == Some(0)).then(|| run.ok())
        }),
        "kept"
    );
    server.cli(&["box", "create", "again"]).ok();
    server.cli(&["box", "ensure", "asleep"]).ok();
    server.cli(&["box", "hibernate", "main"]).ok();
    server.cli(&["box", "ensure", "main"]).ok();
    Ok(())
}

#[test]
fn a_disk_that_turns_read_only_refuses_and_a_repaired_one_has_everything() -> Outcome {
    if !root() {
        return Ok(());
    }
    let server = Server::prepare(Account::Own);
    let disk = Disk::mount(&server, "192M");
    let mut server = server;
    server.start_again();
    let node = server.data().join("node");
    server.cli(&["box", "ensure"]).ok();
    server.sh("echo kept > /workspace/file && sync");
    output(&mut Command::new("sync"), b"").ok();
    disk.fails()?;
    eventually("it is read-only", || fs::write(server.data().join("x"), "x").is_err().then_some(()));

    for words in [&["box", "create", "other"][..], &["box", "hibernate", "main", "--to-disk"]] {
        is_a_refusal(&server.cli(words));
    }
    // what only reads works on, and the server is there
    server.cli(&["box", "ls"]).ok();
    assert!(server.end(Signal::SIGINT).code().is_some(), "the server did not stop by itself");
    let refused = output(&mut server.up(&[]), b"");
    assert!(refused.failed(1).contains(&*server.data().to_string_lossy()), "{refused:?}");

    // the machine goes down, the disk is repaired
    clear(&node, &mut Cgroups::default());
    eventually("the disk is let go", || disk.unmount().then_some(()));
    // as a copy: launchers of other boxes of this machine may still have the broken one among their mounts
    let disk = Disk { image: disk.image.with_extension("repaired"), folder: disk.folder.clone() };
    output(
        Command::new("cp").arg("--sparse=always").arg(disk.image.with_extension("img")).arg(&disk.image),
        b"",
    )
    .ok();
    drop(Command::new("fsck.ext4").args(["-f", "-y"]).arg(&disk.image).output()?);
    disk.again();
    server.start_again();
    assert_eq!(settled(&server, "main"), "failed");
    server.cli(&["box", "ensure"]).ok();
    assert_eq!(server.sh("cat /workspace/file"), "kept");
    server.cli(&["box", "create", "other"]).ok();
    Ok(())
}
