//! What a person does wrong, or a machine lacks: a refusal that says what to do, and nothing broken.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use cocoonbox_stories::{Account, Server, output};
use nix::sys::signal::Signal;
use nix::unistd::Uid;

#[test]
fn a_port_in_use_is_named() {
    let server = Server::prepare(Account::Own);
    let taken = TcpListener::bind(("127.0.0.1", server.port())).expect("the port is free");
    let run = output(&mut server.up(&[]), b"");
    assert!(run.failed(1).contains(&server.port().to_string()), "{run:?}");
    assert!(run.stderr.contains("--listen"), "no way out is shown: {run:?}");
    drop(taken);
}

#[test]
fn a_data_directory_has_one_server() {
    let server = Server::start();
    let other = Server::prepare(Account::Own);
    let mut second = server.command(server.program());
    second.args(["up", "--listen", &format!("127.0.0.1:{}", other.port()), "--data"]).arg(server.data());
    let run = output(&mut second, b"");
    assert!(run.failed(1).contains(&*server.data().to_string_lossy()), "{run:?}");
    // the first one is unharmed
    server.cli(&["box", "ls"]).ok();
}

#[test]
fn a_database_whose_boxes_are_on_another_servers_machine_is_refused() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh("echo kept > /workspace/file");
    let other = Server::prepare(Account::Own);
    let file = other.scratch().join("database");
    fs::write(&file, format!("sqlite:{}", server.data().join("cocoonbox.db").display())).expect("own folder");
    let mut second = other.up(&["--database-url-file"]);
    let run = output(second.arg(file), b"");
    assert!(run.failed(1).contains("--node URL"), "{run:?}");
    // what the second one does not see is not dead
    assert_eq!(server.sh("cat /workspace/file"), "kept");
    assert_eq!(server.json(&["box", "show", "main"])["state"], "running");
}

#[test]
fn a_data_directory_of_someone_else_is_refused() {
    if !Uid::effective().is_root() {
        eprintln!("left out: only root can give a directory away");
        return;
    }
    let server = Server::prepare(Account::Own);
    chown(server.data(), Some(65534), Some(65534)).expect("root may give folders away");
    let run = output(&mut server.up(&[]), b"");
    assert!(run.failed(1).contains(&*server.data().to_string_lossy()), "{run:?}");
    assert!(
        fs::read_dir(server.data()).expect("own folder").next().is_none(),
        "it wrote into it all the same"
    );

    let ordinary = Server::prepare(Account::Ordinary);
    chown(ordinary.data(), Some(0), Some(0)).expect("root may give folders away");
    let run = output(&mut ordinary.up(&[]), b"");
    assert!(run.failed(1).contains(&*ordinary.data().to_string_lossy()), "{run:?}");
}

#[test]
fn a_machine_without_bubblewrap_says_what_to_install() {
    if !Uid::effective().is_root() {
        eprintln!("left out: only root can hide a program from a server");
        return;
    }
    let mut server = Server::prepare(Account::Own);
    let hide = "d=$(mktemp -d) && mount -t tmpfs hidden $d && mkdir $d/upper $d/work && mknod $d/upper/bwrap c 0 0 \
                && mount -t overlay -o lowerdir=/usr/bin,upperdir=$d/upper,workdir=$d/work hidden /usr/bin \
                && exec \"$@\"";
    server.start_within(&["unshare", "--mount", "sh", "-c", hide, "sh"]);
    let run = server.cli(&["box", "ensure"]);
    assert!(run.code != Some(0) && run.stderr.contains("apt-get install bubblewrap"), "{run:?}");
    server.end(Signal::SIGINT);
    server.start_again();
    server.cli(&["box", "ensure"]).ok();
}

#[test]
fn wrong_and_missing_tokens_are_refused_with_the_next_step() {
    let server = Server::start();
    let wrong = format!("cb_{}", "0".repeat(64));
    let with = |token: &str| {
        let mut command = server.command(server.program());
        command.env("COCOONBOX_TOKEN", token).env("COCOONBOX_ENDPOINT", server.endpoint());
        output(command.args(["box", "ls"]), b"")
    };
    assert!(with(&wrong).failed(3).contains("login"), "{:?}", with(&wrong));
    assert!(!with("nonsense").stderr.contains("nonsense"), "the refused token was shown");
    with("nonsense").code.filter(|code| *code == 3 || *code == 2).expect("a malformed token is refused");
    with(&server.token()).ok();

    let mut bare = server.command(server.program());
    bare.env("COCOONBOX_CONFIG_DIR", server.scratch().join("none"))
        .env("COCOONBOX_ENDPOINT", server.endpoint());
    let run = output(bare.args(["box", "ls"]), b"");
    assert!(run.failed(3).contains("login"), "{run:?}");
}

#[test]
fn a_server_that_is_not_there_is_a_failure_that_names_it() {
    let server = Server::prepare(Account::Own);
    let mut command = server.command(server.program());
    command
        .env("COCOONBOX_ENDPOINT", server.endpoint())
        .env("COCOONBOX_TOKEN", format!("cb_{}", "0".repeat(64)));
    let run = output(command.args(["box", "ls"]), b"");
    assert!(run.failed(1).contains(&server.port().to_string()), "{run:?}");
}

#[test]
fn a_sign_in_link_works_once() {
    let server = Server::start();
    let log = server.log();
    let link = log.split_whitespace().find(|word| word.contains("link") && word.starts_with("http"));
    let link = link.unwrap_or_else(|| panic!("no link was printed: {log}"));
    let sign_in = |settings: &str| {
        let mut command = server.command(server.program());
        command.env("COCOONBOX_CONFIG_DIR", server.scratch().join(settings));
        output(
            command.args(["login", "--link", "--endpoint", &server.endpoint()]),
            format!("{link}\n").as_bytes(),
        )
    };
    sign_in("first").ok();
    let stored = server.scratch().join("first/cli.json");
    assert_eq!(
        fs::metadata(&stored).expect("signing in stores the token").permissions().mode() & 0o777,
        0o600
    );
    let second = sign_in("second");
    assert_eq!(second.code, Some(3), "{second:?}");
    assert!(!server.scratch().join("second/cli.json").exists());
}

#[test]
fn a_full_disk_is_told_and_the_next_call_works() {
    if !Uid::effective().is_root() {
        eprintln!("left out: only root can make a small disk");
        return;
    }
    let server = Server::prepare(Account::Own);
    let _disk = SmallDisk::mount(&server.data());
    // bound after the disk, so that it goes before it
    let mut server = server;
    server.start_again();
    server.cli(&["box", "ensure"]).ok();
    let filled = server.rsh(&["dd", "if=/dev/zero", "of=/workspace/fill", "bs=64k"]);
    assert!(filled.failed(1).contains("No space left"), "{filled:?}");
    let refused = server.cli(&["box", "create", "other"]);
    assert!(matches!(refused.code, Some(1 | 3)) && refused.stderr.contains("hint:"), "{refused:?}");
    // what writes nothing works all along
    assert_eq!(server.rsh(&["rm", "/workspace/fill"]).code, Some(0));
    let again = server.cli(&["box", "create", "other"]);
    assert!(again.code == Some(0), "{again:?}\n{}", server.log());
    assert_eq!(server.json(&["box", "show", "main"])["state"], "running");
}

struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(folder: &std::path::Path) -> Self {
        let run = output(
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=32m,mode=700", "story"]).arg(folder),
            b"",
        );
        run.ok();
        Self(folder.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
        // the server could not remove what was still mounted
        if let Some(folder) = self.0.parent() {
            drop(fs::remove_dir_all(folder));
        }
    }
}

#[test]
fn bad_names_and_usage_are_told_apart_from_failures() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    for (words, code) in [
        (&["box", "create", "Not A Name"][..], 2),
        (&["box", "create", "cb-abcdefghij"][..], 2),
        (&["box", "create"][..], 2),
        (&["no-such-verb"][..], 2),
        (&["box", "show", "cb-aaaaaaaaaa"][..], 3),
        (&["box", "show", "other"][..], 3),
        (&["box", "create", "main"][..], 3),
    ] {
        let run = server.cli(words);
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(!run.stderr.is_empty(), "{run:?}");
    }
}
