#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod build;
mod link;
mod node;
mod person;
mod processes;
mod run;
mod server;
mod tool;

pub use build::{agent, binaries};
pub use link::Link;
pub use node::{Node, call};
pub use person::{PASSWORD, browser, person, server_of_a_person};
pub use processes::{Process, processes, processes_in_network};
pub use run::{Run, eventually, output};
pub use server::{Account, Server, files};
pub use tool::{buf, copy_program, node, python, rclone, require};
