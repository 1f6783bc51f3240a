//! Why a call did not do what it was asked.

use std::error::Error as _;

use cocoonbox_core::Retry;
use tonic::{Code, Status, transport};

use crate::Endpoint;

/// Which rule of the server stands against a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such thing, or it is another user's.
    NotFound,
    /// The name is taken, or the idempotency key was used for something else.
    Exists,
    /// A limit is reached.
    Limit,
    /// The caller may not.
    Permission,
    /// The thing's state forbids it for now.
    State,
}

/// Why a call did not do what it was asked. Messages hold text that the server sent: neutralise it before a terminal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server knows no such token, or none was shown.
    #[error("not signed in: {message}")]
    NotSignedIn {
        /// The server's words.
        message: String,
    },
    /// A rule stands against it; nothing happened.
    #[error("{message}")]
    Refused {
        /// Which rule.
        refusal: Refusal,
        /// The server's words.
        message: String,
    },
    /// The request breaks the protocol's rules; nothing happened.
    #[error("the server does not accept the request: {message}")]
    Invalid {
        /// The server's words.
        message: String,
    },
    /// The server cannot do this.
    #[error("the server does not offer this: {message}")]
    Unsupported {
        /// The server's words.
        message: String,
    },
    /// The server answered that it cannot do it now.
    #[error("the server cannot do this now: {message}")]
    Unavailable {
        /// The server's words.
        message: String,
    },
    /// Nobody answered at the endpoint; nothing happened.
    #[error("no server answers at {endpoint}")]
    Unreachable {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        #[source]
        source: transport::Error,
    },
    /// The connection was lost in the middle of a call.
    #[error("the connection to {endpoint} was lost")]
    Lost {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        #[source]
        source: Box<Status>,
    },
    /// The server failed inside.
    #[error("the server failed: {message}")]
    Failed {
        /// The server's words.
        message: String,
    },
    /// An operation ended in failure.
    #[error("the operation {operation} failed: {message}")]
    OperationFailed {
        /// Which operation.
        operation: String,
        /// The server's words.
        message: String,
    },
    /// The server broke its protocol.
    #[error("the server broke the protocol: {what}")]
    PeerMisbehaved {
        /// What it did.
        what: &'static str,
    },
    /// A token or box name holds bytes that no header can carry.
    #[error("{what} holds characters that cannot be sent")]
    Misuse {
        /// Which.
        what: &'static str,
    },
}

impl ClientError {
    /// Folds a status into the error it means.
    pub(crate) fn from_status(status: Status, endpoint: &Endpoint) -> Self {
        // tonic gives a status it made itself, from a broken connection, a source
        if status.source().is_some() {
            return Self::Lost { endpoint: endpoint.clone(), source: Box::new(status) };
        }
        let message = status.message().to_owned();
        let refused = |refusal| Self::Refused { refusal, message: message.clone() };
        match status.code() {
            Code::Unauthenticated => Self::NotSignedIn { message },
            Code::NotFound => refused(Refusal::NotFound),
            Code::AlreadyExists => refused(Refusal::Exists),
            Code::ResourceExhausted => refused(Refusal::Limit),
            Code::PermissionDenied => refused(Refusal::Permission),
            Code::FailedPrecondition | Code::Aborted => refused(Refusal::State),
            Code::InvalidArgument | Code::OutOfRange => Self::Invalid { message },
            Code::Unimplemented => Self::Unsupported { message },
            Code::Unavailable | Code::DeadlineExceeded => Self::Unavailable { message },
            Code::Ok | Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
                Self::Failed { message }
            }
        }
    }

    /// Returns what a caller may do after this.
    pub fn retry(&self) -> Retry {
        match self {
            Self::NotSignedIn { .. }
            | Self::Invalid { .. }
            | Self::Unsupported { .. }
            | Self::OperationFailed { .. }
            | Self::PeerMisbehaved { .. }
            | Self::Misuse { .. } => Retry::Never,
            Self::Refused { refusal, .. } => match refusal {
                Refusal::State | Refusal::Limit => Retry::Later,
                Refusal::NotFound | Refusal::Exists | Refusal::Permission => Retry::Never,
            },
            Self::Unavailable { .. } | Self::Unreachable { .. } => Retry::Later,
            Self::Lost { .. } | Self::Failed { .. } => Retry::LookFirst,
        }
    }

    /// Returns what to do next, in words for a person at a command line.
    pub fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::NotSignedIn { .. } => Some(
                "sign in with `cocoonbox login`, or with `cocoonbox login --link` and the link that the first `cocoonbox up` printed",
            ),
            Self::Unreachable { .. } => Some(
                "start a server with `cocoonbox up`, or name another with --endpoint or COCOONBOX_ENDPOINT",
            ),
            Self::Refused { refusal, .. } => match refusal {
                Refusal::NotFound => {
                    Some("`cocoonbox box ls` lists your boxes; `cocoonbox box ensure` makes the first one")
                }
                Refusal::Exists => Some("choose another name, or see what is there with `cocoonbox box ls`"),
                Refusal::Limit => Some(
                    "`cocoonbox box usage` shows the limits; `cocoonbox box hibernate` or `cocoonbox box rm` makes room",
                ),
                Refusal::Permission => Some("`cocoonbox status` shows who you are signed in as"),
                Refusal::State => {
                    Some("`cocoonbox box show` tells what the box is doing; try again when that has ended")
                }
            },
            Self::Unavailable { .. } => {
                Some("try again in a moment; `cocoonbox status` shows whether the server is well")
            }
            Self::Lost { .. } => Some("look with `cocoonbox box ls` whether it happened before trying again"),
            Self::OperationFailed { .. } | Self::Failed { .. } => {
                Some("the server's log says more; `cocoonbox doctor` checks what this machine can do")
            }
            Self::Unsupported { .. } | Self::PeerMisbehaved { .. } => Some(
                "`cocoonbox version` and `cocoonbox status` show both versions: they may be too far apart",
            ),
            Self::Invalid { .. } | Self::Misuse { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_meaning() {
        let here = Endpoint::local();
        for (code, refusal) in [
            (Code::NotFound, Refusal::NotFound),
            (Code::AlreadyExists, Refusal::Exists),
            (Code::ResourceExhausted, Refusal::Limit),
            (Code::PermissionDenied, Refusal::Permission),
            (Code::FailedPrecondition, Refusal::State),
        ] {
            let error = ClientError::from_status(Status::new(code, "why"), &here);
            assert!(
                matches!(&error, ClientError::Refused { refusal: found, .. } if *found == refusal),
                "{error:?}"
            );
            assert_eq!(error.to_string(), "why");
            assert!(error.next_step().is_some());
        }
        let error = ClientError::from_status(Status::unauthenticated("no token"), &here);
        assert_eq!(error.to_string(), "not signed in: no token");
        assert_eq!(error.retry(), Retry::Never);
    }

    #[test]
    fn a_broken_connection_is_not_an_answer() {
        let broken = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset)));
        let error = ClientError::from_status(broken, &Endpoint::local());
        assert!(matches!(error, ClientError::Lost { .. }));
        assert_eq!(error.retry(), Retry::LookFirst);
    }
}
