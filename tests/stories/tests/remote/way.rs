//! Connections that break.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use cocoonbox_stories::{eventually, output, require};

use super::proxy::Proxy;
use super::{rsh, started};

/// Returns `count` bytes that no compressor and no repetition helps with.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Ends a client that hangs, so that its story fails and the others go on.
fn give_up_after(limit: Duration, client: u32) {
    thread::spawn(move || {
        thread::sleep(limit);
        let _ = Command::new("kill").arg("-9").arg(client.to_string()).status();
    });
}

fn sha256(path: &Path) -> String {
    let told = output(Command::new("sha256sum").arg(path), b"").ok();
    told.split_whitespace().next().expect("a digest").to_owned()
}

#[test]
fn thirty_megabytes_both_ways_arrive_byte_for_byte_however_often_the_way_is_cut() {
    let server = started();
    let proxy = Proxy::to(server.port(), 4 * 1024 * 1024);
    println!("the way is cut by COCOONBOX_SEED={}", proxy.seed);
    let (sent, got) = (server.scratch().join("sent"), server.scratch().join("got"));
    fs::write(&sent, noise(30_000_000)).expect("own folder");
    let script = "tee /workspace/inside; exit 9";
    let mut child = rsh(&server, &["sh", "-c", script])
        .env("COCOONBOX_ENDPOINT", proxy.endpoint())
        .env("COCOONBOX_TOKEN", server.token())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started");
    give_up_after(Duration::from_mins(4), child.id());
    let (mut stdin, mut stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let bytes = fs::read(&sent).expect("own file");
    let feeder = thread::spawn(move || {
        stdin.write_all(&bytes).expect("all input is taken");
    });
    let mut file = fs::File::create(&got).expect("own folder");
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = stdout.read(&mut buffer).expect("a pipe");
        if count == 0 {
            break;
        }
        // output says that the program runs: from here on nothing may be lost
        proxy.arm();
        file.write_all(&buffer[..count]).expect("own file");
    }
    assert_eq!(child.wait().expect("own child").code(), Some(9));
    feeder.join().expect("the feeder does not fail");
    println!("the way was cut {} times", proxy.cuts());
    assert_eq!(sha256(&sent), sha256(&got));
    let inside = server.sh("sha256sum /workspace/inside");
    assert!(inside.starts_with(&sha256(&sent)), "{inside}");
    assert!(proxy.cuts() > 3, "the way was cut {} times only", proxy.cuts());
}

/// Copies what is tracked of this project, a real tree, and some weight.
fn tree(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::create_dir_all(folder).expect("own folder");
    for part in ["cocoonbox-guest", "cocoonbox-client", "tests/stories"] {
        output(Command::new("cp").arg("-a").arg(root.join(part)).arg(folder), b"").ok();
    }
    fs::write(folder.join("weight"), noise(12_000_000)).expect("own folder");
}

fn digests(folder: &Path) -> String {
    let script = "find . -type f -print0 | sort -z | xargs -0 sha256sum; find . -printf '%p %m %l\n' | sort";
    output(Command::new("sh").args(["-c", script]).current_dir(folder), b"").ok()
}

#[test]
fn rsync_of_a_tree_over_a_way_that_is_cut_ends_well() {
    require("rsync");
    let server = started();
    let proxy = Proxy::to(server.port(), 1024 * 1024);
    println!("the way is cut by COCOONBOX_SEED={}", proxy.seed);
    let (there, back): (PathBuf, PathBuf) = (server.scratch().join("there"), server.scratch().join("back"));
    tree(&there);
    let rsync = |from: &str, to: &str| {
        let mut command = server.command("/usr/bin/rsync");
        command
            .args(["-a", "--bwlimit=8m", "-e", &format!("{} rsh --box main", server.program().display())])
            .args([from, to])
            .env("COCOONBOX_ENDPOINT", proxy.endpoint())
            .env("COCOONBOX_TOKEN", server.token());
        command
    };
    // a file that shows that the far side runs: only then may the way be cut
    thread::scope(|scope| {
        let mut push = rsync(&format!("{}/", there.display()), "box:/workspace/tree/");
        let pushed = scope.spawn(move || output(&mut push, b""));
        eventually("rsync runs in the box", || {
            (server.rsh(&["test", "-d", "/workspace/tree"]).code == Some(0)).then(|| proxy.arm())
        });
        pushed.join().expect("rsync was run").ok();
    });
    let cut_there = proxy.cuts();
    proxy.disarm();
    thread::scope(|scope| {
        let mut pull = rsync("box:/workspace/tree/", &format!("{}/", back.display()));
        let pulled = scope.spawn(move || output(&mut pull, b""));
        eventually("rsync runs here", || back.is_dir().then(|| proxy.arm()));
        pulled.join().expect("rsync was run").ok();
    });
    println!("the way was cut {cut_there} times there and {} times back", proxy.cuts() - cut_there);
    assert!(digests(&there) == digests(&back), "what came back is not what was sent");
    assert!(cut_there > 3 && proxy.cuts() > cut_there + 3, "{cut_there}, {} cuts", proxy.cuts());
}
