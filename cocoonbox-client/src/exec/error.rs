//! Why a command's end is not known.

use std::io;

use cocoonbox_core::Retry;
use tonic::Status;

use crate::{ClientError, Refusal};

/// Why a command's end is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The edge or the agent said no.
    #[error(transparent)]
    Call(#[from] ClientError),
    /// The connection was lost before the agent said whether the command runs. It is not run again by itself.
    #[error("the connection was lost before the command was known to run")]
    Uncertain {
        /// What broke.
        #[source]
        source: Box<Status>,
    },
    /// The connection was lost and could not be taken up again in time; the command was hung up.
    #[error("the connection was lost and could not be taken up again within {seconds} seconds")]
    Lost {
        /// How long it was tried.
        seconds: u64,
        /// What broke last.
        #[source]
        source: Box<Status>,
    },
    /// The box no longer knows the session: it was away too long, or the box slept or started anew.
    #[error("the box no longer knows the session: {message}")]
    SessionGone {
        /// The agent's words.
        message: String,
    },
    /// Another connection took the session over.
    #[error("another connection took the session over")]
    TakenOver,
    /// The caller gave up before the command ran, or while the connection was away.
    #[error("interrupted by signal {signal}")]
    Interrupted {
        /// The signal.
        signal: u32,
    },
    /// The command's output could not be written here.
    #[error("the command's output could not be written")]
    Output(#[source] io::Error),
    /// The output is longer than the caller takes.
    #[error("the command's output is longer than {limit} bytes")]
    TooLong {
        /// What the caller takes.
        limit: usize,
    },
    /// The agent broke the protocol.
    #[error("the box's agent broke the protocol: {what}")]
    PeerMisbehaved {
        /// What it did.
        what: &'static str,
    },
}

impl ExecError {
    /// Returns what a caller may do after this.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Call(error) => error.retry(),
            Self::Uncertain { .. }
            | Self::Lost { .. }
            | Self::SessionGone { .. }
            | Self::Interrupted { .. } => Retry::LookFirst,
            Self::TakenOver | Self::Output(_) | Self::TooLong { .. } | Self::PeerMisbehaved { .. } => {
                Retry::Never
            }
        }
    }

    /// Returns what to do next, in words for a person at a command line.
    pub fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Call(ClientError::Refused { refusal: Refusal::NotFound, .. }) => {
                Some("see whether the box is there: `cocoonbox box ls`")
            }
            Self::Call(error) => error.next_step(),
            Self::Uncertain { .. } => Some("look in the box whether it ran before running it again"),
            Self::Lost { .. } | Self::SessionGone { .. } => Some(
                "work that should outlive a connection belongs in tmux: `cocoonbox rsh -t -- tmux new -A -s work`",
            ),
            Self::PeerMisbehaved { .. } => {
                Some("`cocoonbox version` and `cocoonbox status` show both versions")
            }
            Self::TakenOver | Self::Interrupted { .. } | Self::Output(_) | Self::TooLong { .. } => None,
        }
    }
}
