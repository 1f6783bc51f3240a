//! `cocoonbox rsh` where the connection, the program or the terminal gives trouble.

mod flood;
mod proxy;
mod terminal;
mod way;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use cocoonbox_stories::{Server, eventually, output, processes_in_network, require};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn started() -> Server {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server
}

/// Returns a `cocoonbox rsh` of box `main` that has not been started.
fn rsh(server: &Server, words: &[&str]) -> Command {
    let mut command = server.command(server.program());
    command.args(["rsh", "--box", "main", "--"]).args(words);
    command
}

fn id(child: &Child) -> i32 {
    child.id().cast_signed()
}

fn resident_kib(id: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has memory");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// Returns the process id of the box's agent.
fn agent_of(network: &str) -> i32 {
    let all = processes_in_network(network);
    let agent = all.iter().find(|process| process.command_line.contains("exe serve"));
    agent.unwrap_or_else(|| panic!("no agent among {all:?}")).id
}

#[test]
fn a_program_that_cannot_start_ends_as_ssh_and_sh_say_it() {
    let server = started();
    server.sh("echo x > /workspace/plain; mkdir /workspace/folder");
    for (program, code, reason) in [
        ("no-such-program", 127, "no-such-program: command not found"),
        ("/no/such/program", 127, "/no/such/program: No such file or directory"),
        ("/workspace/plain", 126, "/workspace/plain: Permission denied"),
        ("/workspace/folder", 126, "/workspace/folder: Permission denied"),
    ] {
        let run = server.rsh_with(&[program, "word"], b"input for nobody");
        assert_eq!(run.failed(code), format!("cocoonbox: {reason}\n"));
        assert!(run.stdout.is_empty());
        // by way of the login shell
        assert_eq!(server.cli(&["rsh", "--box", "main", "anywhere", program]).code, Some(code));
    }
    // cocoonbox's own failures are told apart
    assert_eq!(server.cli(&["rsh", "--box", "no-such-box", "--", "true"]).code, Some(255));
    assert_eq!(server.rsh(&[""]).code, Some(255));
}

#[test]
fn signals_without_a_terminal_reach_the_program_and_its_exit_comes_back() {
    let server = started();
    for (signal, name, code) in
        [(Signal::SIGINT, "INT", 41), (Signal::SIGTERM, "TERM", 42), (Signal::SIGHUP, "HUP", 43)]
    {
        let ready = format!("/workspace/ready-{name}");
        let script = format!(
            "trap 'echo got {name}; exit {code}' {name}; touch {ready}; while :; do sleep 0.05; done"
        );
        let child = rsh(&server, &["sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = child.expect("it can be started");
        eventually("the program runs", || {
            (server.rsh(&["test", "-e", &ready]).code == Some(0)).then_some(())
        });
        kill(Pid::from_raw(id(&child)), signal).expect("own child");
        let ended = child.wait_with_output().expect("own child");
        assert_eq!(ended.status.code(), Some(code), "{name}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), format!("got {name}\n"));
    }
    // a program that does not catch it is told as 128 and the number
    let child = rsh(&server, &["sleep", "31.25"]).stdin(Stdio::null()).spawn().expect("it can be started");
    let network = server.network();
    let sleeps = || processes_in_network(&network).into_iter().find(|one| one.command_line.contains("31.25"));
    eventually("the program runs", sleeps);
    kill(Pid::from_raw(id(&child)), Signal::SIGTERM).expect("own child");
    let ended = child.wait_with_output().expect("own child");
    assert_eq!(ended.status.code(), Some(128 + 15));
    assert!(sleeps().is_none(), "it is gone inside too");
}

#[test]
fn a_reader_that_goes_away_ends_the_program() {
    let server = started();
    let network = server.network();
    let mut child =
        rsh(&server, &["seq", "7", "999999999"]).stdout(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let ended = eventually("the client ends", || child.try_wait().expect("own child"));
    assert_eq!(ended.code(), Some(128 + 13));
    eventually("the program ends", || {
        let all = processes_in_network(&network);
        all.iter().all(|one| !one.command_line.contains("seq 7")).then_some(())
    });
}

#[test]
fn streams_that_do_not_wait_are_waited_for() {
    require("python3");
    let server = started();
    // sockets as rsync hands them over: a slow reader must not be an error
    let script = "import os, socket, subprocess, sys, time\n\
        ours, theirs = socket.socketpair()\n\
        os.set_blocking(theirs.fileno(), False)\n\
        child = subprocess.Popen(sys.argv[1:], stdin=theirs, stdout=theirs)\n\
        theirs.close()\n\
        time.sleep(1.5)\n\
        ours.sendall(b'x' * 100000)\n\
        ours.shutdown(socket.SHUT_WR)\n\
        count = 0\n\
        while data := ours.recv(1000000):\n\
        \x20   count += len(data)\n\
        print(count, child.wait())";
    let mut command = server.command("/usr/bin/env");
    command.args(["python3", "-c", script]).arg(server.program());
    command.args(["rsh", "--box", "main", "--", "sh", "-c", "head -c 20000000 /dev/zero; cat"]);
    assert_eq!(output(&mut command, b"").ok(), "20100000 0");
}

#[test]
fn git_takes_it_for_ssh_and_for_something_simple() {
    require("git");
    let server = started();
    let link = server.scratch().join("cocoonbox-rsh");
    symlink(server.program(), &link).expect("own folder");
    let here = server.scratch().join("repository");
    fs::create_dir(&here).expect("own folder");
    for variant in ["ssh", "simple", "auto"] {
        let bare = format!("/workspace/{variant}.git");
        server.sh(&format!("git init --quiet --bare -b main {bare}"));
        let git = |arguments: &[&str]| {
            let mut command = server.command("/usr/bin/env");
            command
                .arg("git")
                .current_dir(&here)
                .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"])
                .args(arguments)
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .env("GIT_SSH_COMMAND", &link)
                .env("GIT_SSH_VARIANT", variant);
            output(&mut command, b"").ok()
        };
        let remote = format!("main:{bare}");
        git(&["init", "--quiet"]);
        fs::write(here.join("file"), variant).expect("own folder");
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", variant]);
        git(&["push", "--quiet", &remote, "main"]);
        assert_eq!(server.sh(&format!("git -C {bare} show main:file")), variant);
        server.sh(&format!(
            "git clone --quiet {bare} /workspace/{variant} && cd /workspace/{variant} && echo back > file && \
             git -c user.name=b -c user.email=b@c commit --quiet -am back && git push --quiet origin main"
        ));
        git(&["fetch", "--quiet", &remote, "main"]);
        assert_eq!(git(&["show", "FETCH_HEAD:file"]), "back", "{variant}");
    }
}

#[test]
fn sftp_puts_and_gets_and_lists() {
    require("sftp");
    let server = started();
    let link = server.scratch().join("cocoonbox-rsh");
    symlink(server.program(), &link).expect("own folder");
    let bytes: Vec<u8> = (0..=255).cycle().skip(7).take(1_234_567).collect();
    let (there, back, batch) =
        (server.scratch().join("there"), server.scratch().join("back"), server.scratch().join("batch"));
    fs::write(&there, &bytes).expect("own folder");
    let words = format!(
        "mkdir /workspace/new\ncd /workspace/new\nput {} copied\nrename copied moved\nget moved {}\nls -1\n",
        there.display(),
        back.display()
    );
    fs::write(&batch, words).expect("own folder");
    let mut command = server.command("/usr/bin/sftp");
    command.arg("-S").arg(&link).arg("-b").arg(&batch).arg("main:");
    let shown = output(&mut command, b"").ok();
    assert!(shown.lines().any(|line| line.trim() == "moved"), "{shown}");
    assert!(fs::read(&back).expect("copied back") == bytes, "the copy differs");
}
