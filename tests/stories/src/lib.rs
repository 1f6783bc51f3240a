#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod beside;
mod build;
mod internet;
mod link;
mod node;
mod person;
mod processes;
mod run;
mod server;
mod tool;

pub use beside::Beside;
pub use build::{agent, binaries};
pub use internet::Internet;
pub use link::Link;
pub use node::{Node, call};
pub use person::{PASSWORD, browser, one_time_link, person, plain_browser, server_of_a_person};
pub use processes::{Process, processes, processes_in_network};
pub use run::{Run, eventually, output};
pub use server::{Account, Server, files};
pub use tool::{buf, claude, codex, copy_program, node, node_client, python, rclone, require};

/// What the control MCP offers.
pub const CONTROL_TOOLS: [&str; 9] = [
    "box_create",
    "box_delete",
    "box_ensure",
    "box_hibernate",
    "box_list",
    "box_save",
    "box_status",
    "box_upgrade",
    "usage",
];
