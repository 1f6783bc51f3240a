//! Why the node does not do what it is asked: one code a client can switch on, and words.

use std::fmt;

use cocoonbox_core::Retry;
use cocoonbox_core::backend::{BackendError, QuotaScope};

use crate::message::ErrorBody;

/// The kinds of refusals; their names in the API never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The request breaks a rule.
    Invalid,
    /// No token, or one that nobody has.
    Unauthorized,
    /// The token is good and does not reach this far.
    Forbidden,
    /// What it names is not there, or not the caller's.
    NotFound,
    /// No such template.
    UnknownTemplate,
    /// What it names has no such method.
    MethodNotAllowed,
    /// The body did not come in time.
    SlowBody,
    /// The state forbids it.
    Conflict,
    /// It was there and is gone.
    Gone,
    /// More output than a buffered answer holds.
    TooLarge,
    /// The key was used for another request.
    KeyReused,
    /// The connection has to be upgraded.
    UpgradeRequired,
    /// The node is full.
    QuotaNode,
    /// The tenant's claims are used up.
    QuotaTenant,
    /// The node takes no new claims.
    Draining,
    /// Too many requests in too short a time.
    RateLimited,
    /// The node failed.
    Internal,
    /// This node never can.
    Unsupported,
    /// Nobody listens in the guest, or it does not speak as it should.
    Unreachable,
    /// No room for now.
    Busy,
    /// It took too long.
    Timeout,
}

impl Code {
    /// Returns the code as the API spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::UnknownTemplate => "unknown_template",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::SlowBody => "slow_body",
            Self::Conflict => "conflict",
            Self::Gone => "gone",
            Self::TooLarge => "too_large",
            Self::KeyReused => "key_reused",
            Self::UpgradeRequired => "upgrade_required",
            Self::QuotaNode => "quota_node",
            Self::QuotaTenant => "quota_tenant",
            Self::Draining => "draining",
            Self::RateLimited => "rate_limited",
            Self::Internal => "internal",
            Self::Unsupported => "unsupported",
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
        }
    }
}

/// A refusal of the node.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    pub(crate) code: Code,
    pub(crate) text: String,
    #[source]
    pub(crate) source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(code: Code, text: impl fmt::Display) -> Self {
        Self { code, text: text.to_string(), source: None }
    }
    /// Returns its code.
    pub const fn code(&self) -> Code {
        self.code
    }
    pub(crate) fn invalid(text: impl fmt::Display) -> Self {
        Self::new(Code::Invalid, text)
    }
    pub(crate) fn unauthorized() -> Self {
        Self::new(Code::Unauthorized, "missing or unknown token")
    }
    pub(crate) fn forbidden() -> Self {
        Self::new(Code::Forbidden, "this token does not reach the whole node")
    }
    pub(crate) fn not_found() -> Self {
        Self::new(Code::NotFound, "sandbox not found")
    }
    pub(crate) fn conflict(text: impl fmt::Display) -> Self {
        Self::new(Code::Conflict, text)
    }
    pub(crate) fn unsupported(text: impl fmt::Display) -> Self {
        Self::new(Code::Unsupported, text)
    }

    /// Returns what a backend's error says besides its text, where this is one.
    pub(crate) fn body(&self) -> Option<ErrorBody> {
        let error = self.source.as_ref()?.downcast_ref::<BackendError>()?;
        ErrorBody::of(error)
    }

    /// Refuses because a cap is reached.
    pub(crate) fn quota(scope: QuotaScope, limit: u32, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), ..BackendError::Quota { scope, limit }.into() }
    }

    /// Tells what a caller may do.
    pub const fn retry(&self) -> Retry {
        match self.code {
            Code::Invalid
            | Code::Unauthorized
            | Code::Forbidden
            | Code::NotFound
            | Code::UnknownTemplate
            | Code::MethodNotAllowed
            | Code::Gone
            | Code::TooLarge
            | Code::KeyReused
            | Code::UpgradeRequired
            | Code::Unsupported => Retry::Never,
            Code::Conflict => Retry::Reread,
            Code::SlowBody
            | Code::QuotaNode
            | Code::QuotaTenant
            | Code::Draining
            | Code::RateLimited
            | Code::Unreachable
            | Code::Busy => Retry::Later,
            Code::Internal | Code::Timeout => Retry::LookFirst,
        }
    }
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        let code = match &error {
            BackendError::Invalid { .. } => Code::Invalid,
            BackendError::NotFound { .. } => return Self::not_found(),
            BackendError::UnknownImage { .. } => Code::UnknownTemplate,
            BackendError::Conflict { .. } | BackendError::Unsupported { .. } => Code::Conflict,
            BackendError::Quota { scope: QuotaScope::Tenant, .. } => Code::QuotaTenant,
            BackendError::Quota { scope: QuotaScope::Draining, .. } => Code::Draining,
            BackendError::Quota { .. } => Code::QuotaNode,
            BackendError::Unreachable { .. } | BackendError::PeerMisbehaved { .. } => Code::Unreachable,
            _ => Code::Internal,
        };
        Self { code, text: error.to_string(), source: Some(Box::new(error)) }
    }
}

impl From<cocoonbox_core::NameError> for Refusal {
    fn from(error: cocoonbox_core::NameError) -> Self {
        Self::invalid(error)
    }
}
