//! The first start, and the ways back in for whoever runs the server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use cocoonbox_core::{Clock as _, SystemClock};
use cocoonbox_db::{DatabaseUrl, Db, DbOptions};
use cocoonbox_oauth::{SqlUserStore, UserKey, UserStore as _};
use cocoonbox_stories::{Account, Server, eventually, output};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

/// Returns whether a server made its administrator yet, seen from another process.
fn admin_is_made(server: &Server) -> bool {
    let file = server.data().join("cocoonbox.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let Ok(db) = Db::open(&DatabaseUrl::sqlite(file), &DbOptions::default()).await else { return false };
        let name = "admin".parse().expect("a name");
        match SqlUserStore::open(db, SystemClock.now()).await {
            Ok(users) => users.user(UserKey::Name(&name)).await.is_ok_and(|user| user.is_some()),
            Err(_) => false,
        }
    })
}

fn end(mut child: Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("own child");
    eventually("the server ends", || child.try_wait().expect("own child"));
}

/// Returns the sign-in link in what a server printed last.
fn last_link(text: &str) -> String {
    let (_, link) = text.rsplit_once("#link=").expect("a link was printed");
    link.split_whitespace().next().unwrap_or_default().to_owned()
}

#[test]
fn a_first_start_killed_before_its_token_was_written_is_made_up_for_by_the_next() {
    let mut server = Server::prepare(Account::Own);
    // where the token is written first: a pipe that nobody reads, at which the server waits
    let pipe = server.data().join("admin-token.txt.new");
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).expect("a pipe");
    let mut up = server.up(&[]);
    let child =
        up.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a server");
    eventually("the administrator is made", || admin_is_made(&server).then_some(()));
    end(child, Signal::SIGKILL);
    assert!(!server.data().join("admin-token.txt").exists());
    fs::remove_file(&pipe).expect("own pipe");

    server.start_again();
    assert!(server.log().contains("made user admin"), "{}", server.log());
    server.cli(&["box", "ls"]).ok();
    let mut by_file = server.command(server.program());
    by_file.env("COCOONBOX_TOKEN", server.token()).env("COCOONBOX_ENDPOINT", server.endpoint());
    output(by_file.args(["box", "ls"]), b"").ok();
    server.cli_with(&["login", "--link"], last_link(&server.log()).as_bytes()).ok();

    let token = server.token();
    server.end(Signal::SIGINT);
    server.start_again();
    assert_eq!(server.log().matches("made user admin").count(), 1, "{}", server.log());
    assert_eq!(server.token(), token, "an ordinary start changes no token");
}

#[test]
fn a_new_link_lets_the_operator_in_again() {
    let mut server = Server::start();
    let first = last_link(&server.log());
    server.end(Signal::SIGINT);
    let mut up = server.up(&["--new-link"]);
    let mut child =
        up.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a server");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let mut told = String::new();
    while !told.contains("listens on") {
        let line = lines.next().expect("the server says that it listens").expect("text");
        told.push_str(&line);
        told.push('\n');
    }
    assert!(!told.contains("made user"), "{told}");
    let link = last_link(&told);
    assert_ne!(link, first);
    server.cli_with(&["login", "--link"], link.as_bytes()).ok();
    server.cli(&["box", "ls"]).ok();
    let again = server.cli_with(&["login", "--link"], link.as_bytes());
    assert!(again.failed(3).contains("--new-link"), "{again:?}");
    end(child, Signal::SIGINT);
}

#[test]
fn a_setting_is_shown_with_where_it_comes_from() {
    let server = Server::prepare(Account::Own);
    let data = server.data().to_string_lossy().into_owned();
    let file = server.data().join("api.yaml");
    fs::write(&file, "max_boxes: 3\nuser_idle_hibernate: 2h\n").expect("own folder");
    let show = ["config", "show", "--data", &data, "--max-running", "2"];
    let shown = server.json(&show);
    let of = |key: &str| {
        let all = shown["settings"].as_array().expect("a list");
        all.iter().find(|setting| setting["key"] == key).cloned().unwrap_or_default()
    };
    for (key, value, from) in [
        ("data", data.as_str(), "--data"),
        ("max_boxes", "3", "api.yaml"),
        ("max_running", "2", "--max-running"),
        ("listen", "127.0.0.1:7420", "default"),
    ] {
        assert_eq!((of(key)["value"].as_str(), of(key)["from"].as_str()), (Some(value), Some(from)), "{key}");
    }
    assert_eq!(of("agent")["from"], "COCOONBOX_AGENT");
    let lines = server.cli(&show).ok();
    assert!(lines.lines().any(|line| line.starts_with("user_idle_hibernate") && line.ends_with("api.yaml")));

    for (text, expected) in [
        ("idle_hibernate: secret", "did you mean user_idle_hibernate?"),
        ("max_boxes: secret-no", "max_boxes, from api.yaml"),
    ] {
        fs::write(&file, text).expect("own folder");
        for run in [server.cli(&show), output(&mut server.up(&[]), b"")] {
            assert!(run.failed(1).contains(expected), "{run:?}");
            assert!(!run.stderr.contains(": secret"), "{run:?}");
        }
    }
}
