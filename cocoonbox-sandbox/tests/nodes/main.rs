//! The client of the node's API: held against nodes in this process, and against peers that mean no good.

#![cfg(feature = "client")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

#[path = "../common/mod.rs"]
mod common;

mod claiming;
mod conformance;
mod fleet;
mod hostile;
mod node;
mod real;
