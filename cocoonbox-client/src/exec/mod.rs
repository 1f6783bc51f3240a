//! Commands in a box, over connections that may be lost.
//!
//! ```text
//!  stdin ─► Session (offsets, what is not acknowledged) ─► Transport ─► agent
//!  stdout ◄── written, then acknowledged ◄───────────────────────────────┘
//! ```
//!
//! `session` decides without any IO; `serve` moves bytes and waits; [`Transport`] is the seam between them and gRPC.

mod command;
mod error;
mod serve;
mod session;
#[cfg(test)]
mod tests;
mod transport;

pub use command::{Command, Exit, Terminal};
pub use error::ExecError;
pub use serve::{Control, Exec, Notice, Output, RunOptions, Stdio, run_over};
pub use transport::{Transport, Wire};

/// The most bytes of standard input that wait for the agent's word; then reading stops.
pub const MAX_UNACKNOWLEDGED: usize = 8 * 1024 * 1024;

/// How long a lost connection is taken up again; the agent keeps the session as long.
pub const REATTACH_FOR: std::time::Duration = std::time::Duration::from_mins(1);
