//! Boxes outlive the server, however it ends.

use std::time::Duration;
use std::{env, thread};

use cocoonbox_stories::{Server, eventually, processes_in_network};
use nix::sys::signal::Signal;

/// Starts a counter in tmux that writes a line ten times a second.
const COUNTER: &str = "tmux new-session -d -s count 'n=0; while sleep 0.1; do n=$((n + 1)); echo $n; sync; done > /workspace/count'";

fn count(server: &Server) -> u64 {
    server.sh("tail -n 1 /workspace/count").parse().unwrap_or(0)
}

#[test]
fn an_interrupt_stops_the_server_cleanly_and_keeps_the_boxes_and_their_programs() {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh(COUNTER);
    let boot =
        server.sh("cat /workspace/boot 2>/dev/null; tmux display -p -t count '#{pid}' | tee /workspace/boot");
    let network = server.network();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let before = count(&server);
        assert!(server.end(signal).success(), "the server did not stop cleanly: {}", server.log());
        let kept = processes_in_network(&network);
        assert!(kept.len() >= 3, "the box's programs ended with the server: {kept:?}");
        thread::sleep(Duration::from_millis(500));
        server.start_again();
        let listed = server.json(&["box", "show", "main"]);
        assert_eq!(listed["state"], "running", "{listed}");
        assert!(count(&server) > before, "the program stood still without a server");
        assert_eq!(
            server.sh("cat /workspace/boot; tmux display -p -t count '#{pid}'"),
            format!("{boot}\n{boot}")
        );
        assert_eq!(server.network(), network);
    }
}

#[test]
fn a_killed_server_loses_no_box_and_nothing_that_was_acknowledged() {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh(COUNTER);
    let network = server.network();
    let rounds = if env::var_os("COCOONBOX_SOAK").is_some() { 100 } else { 4 };
    let mut acknowledged = 0;
    for round in 1..=rounds {
        server.sh(&format!("echo {round} >> /workspace/rounds && sync"));
        acknowledged = acknowledged.max(count(&server));
        assert!(!server.end(Signal::SIGKILL).success());
        server.start_again();
        let shown = server.json(&["box", "show", "main"]);
        assert_eq!(shown["state"], "running", "round {round}: {shown}");
        let now =
            eventually("the counter goes on", || Some(count(&server)).filter(|now| *now > acknowledged));
        acknowledged = now;
        assert_eq!(server.sh("wc -l < /workspace/rounds").trim(), round.to_string());
    }
    assert_eq!(server.network(), network, "the box was started anew");
    assert_eq!(server.sh("tmux list-sessions | wc -l").trim(), "1");
}

#[test]
fn a_server_killed_in_the_middle_of_an_operation_leaves_no_box_in_between() {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh("echo kept > /workspace/file && sync");
    let rounds = if env::var_os("COCOONBOX_SOAK").is_some() { 60 } else { 6 };
    for round in 0..rounds {
        let words: &[&str] = match round % 3 {
            0 => &["box", "hibernate", "main"],
            1 => &["box", "ensure", "main"],
            _ => &["box", "hibernate", "main", "--to-disk"],
        };
        let mut command = server.command(server.program());
        let mut client = command
            .args(words)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("the command line can be started");
        // somewhere in the operation, another place each round
        thread::sleep(Duration::from_millis(7 + 13 * round % 97));
        server.end(Signal::SIGKILL);
        // the client goes on watching once there is a server again
        server.start_again();
        drop(client.wait());
        let state = eventually("the box is in no between-state", || {
            let shown = server.json(&["box", "show", "main"]);
            let state = shown["state"].as_str().unwrap_or_default().to_owned();
            (state != "starting" && state != "hibernating").then_some(state)
        });
        assert!(state == "running" || state == "hibernated", "round {round}: the box is {state}");
        server.cli(&["box", "ensure"]).ok();
        assert_eq!(server.sh("cat /workspace/file"), "kept", "round {round}");
    }
}

#[test]
fn a_sleeping_box_is_asleep_after_a_restart_and_its_memory_goes_on() {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh(COUNTER);
    let network = server.network();
    assert_eq!(server.json(&["box", "hibernate", "main"])["box"]["memory"], "kept");
    assert!(server.end(Signal::SIGINT).success());
    server.start_again();
    let shown = server.json(&["box", "show", "main"]);
    assert_eq!((&shown["state"], &shown["memory"]), (&"hibernated".into(), &"kept".into()), "{shown}");
    let frozen = count(&server);
    assert_eq!(server.network(), network, "the box was started anew");
    eventually("the counter goes on", || (count(&server) > frozen).then_some(()));
    // the machine id is new at each wake
    let first = server.sh("cat /etc/machine-id");
    server.cli(&["box", "hibernate", "main"]).ok();
    assert_ne!(server.sh("cat /etc/machine-id"), first);
}
