//! Stories of the control MCP, over real connections.
#![cfg(feature = "mcp")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod door;
mod protocol;
mod session;
mod setup;
mod tool;
