//! A terminal, driven by `terminal.py`.

use cocoonbox_stories::{Server, output, require};

use super::started;

const SCRIPT: &str = include_str!("terminal.py");

fn check(server: &Server, name: &str) {
    require("python3");
    let mut command = server.command("/usr/bin/env");
    command.args(["python3", "-c", SCRIPT]).arg(server.program()).arg(name).arg(server.id().to_string());
    let run = output(&mut command, b"");
    assert_eq!(run.ok(), "done");
}

#[test]
fn a_terminal_has_the_persons_size_and_follows_it() {
    check(&started(), "size");
}

#[test]
fn ctrl_c_is_the_programs_and_the_client_lives_on() {
    check(&started(), "interrupt");
}

#[test]
fn exit_codes_pass_and_modes_come_back() {
    check(&started(), "exits");
}

#[test]
fn a_terminal_the_box_does_not_know_is_made_known_and_a_malformed_one_is_refused() {
    require("tic");
    check(&started(), "term");
}

#[test]
fn a_client_that_is_told_to_end_gives_the_terminal_back() {
    check(&started(), "killed");
}

#[test]
fn a_server_that_dies_leaves_the_terminal_usable() {
    check(&started(), "server_dies");
}
