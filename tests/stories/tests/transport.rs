//! `cocoonbox rsh` as the transport of rsync, scp and git.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use cocoonbox_stories::{Account, Server, output, require};

fn transport(server: &Server) -> String {
    format!("{} rsh --box main", server.program().display())
}

/// Returns what `folder` holds: kind, mode, seconds, link target and content of everything under it.
fn listing(folder: &Path) -> Vec<(PathBuf, u32, i64, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("own folder") {
            let path = entry.expect("own folder").path();
            let about = path.symlink_metadata().expect("own file");
            let content = if about.is_dir() {
                open.push(path.clone());
                Vec::new()
            } else if about.is_symlink() {
                path.read_link().expect("own link").to_string_lossy().into_owned().into_bytes()
            } else {
                fs::read(&path).expect("own file")
            };
            let name = path.strip_prefix(folder).expect("under the folder").to_owned();
            found.push((name, about.mode(), about.mtime(), content));
        }
    }
    found.sort();
    found
}

fn tree(folder: &Path) {
    fs::create_dir_all(folder.join("deep/er")).expect("own folder");
    fs::write(folder.join("empty"), b"").expect("own folder");
    fs::write(folder.join("deep/er/every byte"), (0..=255).cycle().take(70_000).collect::<Vec<u8>>())
        .expect("own folder");
    fs::write(folder.join("deep/name with 'quotes' & spaces"), b"x").expect("own folder");
    fs::write(folder.join("run"), b"#!/bin/sh\n").expect("own folder");
    fs::set_permissions(folder.join("run"), fs::Permissions::from_mode(0o750)).expect("own file");
    symlink("deep/er", folder.join("link")).expect("own folder");
}

#[test]
fn rsync_sends_a_tree_and_brings_it_back_unchanged() {
    require("rsync");
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let (there, back) = (server.scratch().join("there"), server.scratch().join("back"));
    tree(&there);
    let rsync = |from: &str, to: &str| {
        let mut command = server.command("/usr/bin/rsync");
        output(command.args(["-a", "--delete", "-e", &transport(&server), from, to]), b"").ok()
    };
    rsync(&format!("{}/", there.display()), "box:/workspace/tree/");
    // the second time has nothing to send
    let again = output(
        server.command("/usr/bin/rsync").args([
            "-ai",
            "-e",
            &transport(&server),
            &format!("{}/", there.display()),
            "box:/workspace/tree/",
        ]),
        b"",
    );
    assert_eq!(again.ok(), "");
    rsync("box:/workspace/tree/", &format!("{}/", back.display()));
    assert!(listing(&there) == listing(&back), "what came back is not what was sent");
}

#[test]
fn git_pushes_to_a_box_and_fetches_from_it() {
    require("git");
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let here = server.scratch().join("repository");
    fs::create_dir(&here).expect("own folder");
    let git = |arguments: &[&str]| {
        let mut command = server.command("/usr/bin/git");
        command
            .current_dir(&here)
            .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"])
            .args(arguments)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_SSH_COMMAND", transport(&server))
            .env("GIT_SSH_VARIANT", "simple");
        output(&mut command, b"").ok()
    };
    git(&["init", "--quiet"]);
    fs::write(here.join("file"), "one\n").expect("own folder");
    git(&["add", "."]);
    git(&["commit", "--quiet", "-m", "one"]);
    server.sh("git init --quiet --bare -b main /workspace/bare");
    git(&["push", "--quiet", "box:/workspace/bare", "main"]);
    assert_eq!(server.sh("git -C /workspace/bare log --format=%s main"), "one");

    server
        .sh("git clone --quiet /workspace/bare /workspace/clone && cd /workspace/clone && echo two > file \
         && git -c user.name=b -c user.email=b@c commit --quiet -am two && git push --quiet origin main");
    git(&["fetch", "--quiet", "box:/workspace/bare", "main"]);
    assert_eq!(git(&["log", "--format=%s", "FETCH_HEAD"]), "two\none");
    assert_eq!(git(&["show", "FETCH_HEAD:file"]), "two");
}

#[test]
fn scp_copies_both_ways_through_a_link_named_cocoonbox_rsh() {
    require("scp");
    assert!(
        Path::new("/usr/lib/openssh/sftp-server").exists(),
        "sftp-server is missing: run `make test-tools`"
    );
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let link = server.scratch().join("cocoonbox-rsh");
    symlink(server.program(), &link).expect("own folder");
    let (there, back) = (server.scratch().join("there"), server.scratch().join("back"));
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    fs::write(&there, &bytes).expect("own folder");
    // once over sftp, once over the protocol of old
    for old in [false, true] {
        let scp = |from: &str, to: &str| {
            let mut command = server.command("/usr/bin/scp");
            command.args(["-q", "-S", &link.to_string_lossy()]);
            if old {
                command.arg("-O");
            }
            output(command.args([from, to]), b"").ok()
        };
        scp(&there.to_string_lossy(), "main:/workspace/copied");
        assert_eq!(server.sh("stat -c %s /workspace/copied"), "1000000");
        scp("main:/workspace/copied", &back.to_string_lossy());
        assert!(fs::read(&back).expect("copied back") == bytes, "the copy differs (old protocol: {old})");
        fs::remove_file(&back).expect("own file");
        server.sh("rm /workspace/copied");
    }
}

#[test]
fn exit_codes_streams_and_every_byte_pass_through() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    for code in [0, 1, 3, 42, 255] {
        assert_eq!(server.rsh(&["sh", "-c", &format!("exit {code}")]).code, Some(code));
    }
    assert_eq!(server.rsh(&["sh", "-c", "kill -TERM $$"]).code, Some(128 + 15));
    assert!(server.rsh(&["no-such-program"]).failed(127).contains("no-such-program"));

    let both = server.rsh(&["sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((both.ok().as_str(), both.stderr.as_str()), ("out", "err\n"));

    // words after `--` arrive as they are
    assert_eq!(server.rsh(&["printf", "<%s>", "a b", "", "$HOME", "*", "'"]).ok(), "<a b><><$HOME><*><'>");
    // after a host word they are joined and run by the login shell, as ssh does
    assert_eq!(server.cli(&["rsh", "--box", "main", "anywhere", "echo", "$((40", "+", "2))"]).ok(), "42");

    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    assert!(server.rsh_with(&["cat"], &bytes).stdout == bytes, "cat changed the bytes");
}

#[test]
fn cp_copies_a_tree_both_ways_unchanged() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let (there, back) = (server.scratch().join("there"), server.scratch().join("back"));
    tree(&there);
    server.cli(&["cp", &there.to_string_lossy(), "main:/workspace/tree"]).ok();
    server.cli(&["cp", "main:/workspace/tree", &back.to_string_lossy()]).ok();
    assert!(listing(&there) == listing(&back), "what came back is not what was sent");
    assert_ne!(server.cli(&["cp", "main:/workspace/none", "."]).code, Some(0));
}

#[test]
fn a_flood_that_nobody_reads_is_held_back_and_costs_the_server_no_memory() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let before = resident_kib(server.id());
    let mut command = server.command(server.program());
    command.args(["rsh", "--box", "main", "--", "yes"]).stdout(Stdio::piped());
    let mut flood = command.spawn().expect("the command line can be started");
    thread::sleep(Duration::from_secs(3));
    let grown = resident_kib(server.id()).saturating_sub(before);
    // the box goes on answering meanwhile
    assert_eq!(server.rsh(&["echo", "here"]).ok(), "here");
    flood.kill().expect("own child");
    drop(flood.wait());
    assert!(grown < 64 * 1024, "the server grew by {grown} KiB");
    let all = server.rsh(&["head", "-c", "50000000", "/dev/zero"]);
    assert_eq!((all.code, all.stdout.len()), (Some(0), 50_000_000));
}

fn resident_kib(id: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the server runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has memory");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn a_terminal_is_one_inside_the_box() {
    require("script");
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let inside =
        format!("{} rsh --box main -t -- sh -c 'tty; stty size; echo $TERM'", server.program().display());
    let mut command = Command::new("script");
    command.args(["-qec", &format!("stty rows 31 cols 97; {inside}"), "/dev/null"]);
    command.env("TERM", "xterm-256color").env("COCOONBOX_CONFIG_DIR", server.settings());
    let shown = output(&mut command, b"");
    let text = String::from_utf8_lossy(&shown.stdout).replace('\r', "");
    assert!(
        text.contains("/dev/pts/") && text.contains("31 97") && text.contains("xterm-256color"),
        "{text}"
    );
}

#[test]
fn an_ordinary_user_has_boxes_too() {
    let server = Server::start_as(Account::Ordinary);
    server.cli(&["box", "ensure"]).ok();
    assert_eq!(server.sh("id -u; id -un"), "1000\nuser");
    assert_eq!(server.sh("awk 'NR > 2 { print $1 }' /proc/net/dev"), "lo:");
    server.sh("echo kept > /workspace/file");
    assert_eq!(server.json(&["box", "hibernate", "main", "--to-disk"])["box"]["memory"], "lost");
    assert_eq!(server.sh("cat /workspace/file"), "kept");
}
