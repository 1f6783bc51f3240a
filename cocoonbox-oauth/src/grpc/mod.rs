//! The services `SignIn` and `Account` of `cocoonbox.control.v1`.

mod account;
mod sign_in;

use std::net::IpAddr;
use std::sync::Arc;

use cocoonbox_core::{Clock, Entropy};
use cocoonbox_wire::control::v1::account_server::AccountServer;
use cocoonbox_wire::control::v1::sign_in_server::SignInServer;
use tonic::Status;
use tonic::service::Routes;

use crate::{AccountStore, AgentIndex, DoorLimits, TokenIndex, UserStoreError};
pub use account::AccountService;
pub use sign_in::SignInService;

/// A request of these services is small.
const MESSAGE_MAX: usize = 16 * 1024;

/// What the services need.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServiceOptions {
    /// Where users are.
    pub store: Arc<dyn AccountStore>,
    /// Who may call.
    pub index: Arc<TokenIndex>,
    /// Which agents are let in.
    pub agents: Arc<AgentIndex>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where secrets are drawn from.
    pub entropy: Arc<dyn Entropy>,
    /// What `WhoAmI` says of the server.
    pub version: String,
    /// How many wrong links are taken.
    pub limits: DoorLimits,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpAddr>,
}

impl ServiceOptions {
    /// Takes what has no default; `version` is that of this crate until told otherwise.
    pub fn new(
        store: Arc<dyn AccountStore>,
        index: Arc<TokenIndex>,
        agents: Arc<AgentIndex>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let (limits, trusted_proxies) = (DoorLimits::default(), Vec::new());
        Self { store, index, agents, clock, entropy, version, limits, trusted_proxies }
    }

    /// Sets what `WhoAmI` says of the server.
    pub fn with_version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets how many wrong links are taken.
    pub fn with_limits(mut self, limits: DoorLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the proxies whose `X-Forwarded-For` is believed.
    pub fn with_trusted_proxies(mut self, proxies: Vec<IpAddr>) -> Self {
        self.trusted_proxies = proxies;
        self
    }
}

/// Returns both services, to be mounted beside others. They authenticate by themselves; nothing in front of them must.
pub fn services(options: ServiceOptions) -> Routes {
    let account =
        AccountServer::new(AccountService::new(options.clone())).max_decoding_message_size(MESSAGE_MAX);
    let sign_in = SignInServer::new(SignInService::new(options)).max_decoding_message_size(MESSAGE_MAX);
    Routes::new(account).add_service(sign_in)
}

/// Turns a store's refusal into a status, without causes: those are for the log.
fn status(error: UserStoreError) -> Status {
    let message = error.to_string();
    match &error {
        UserStoreError::NoUser { .. } | UserStoreError::NoToken { .. } => Status::not_found(message),
        UserStoreError::NameTaken { .. } => Status::already_exists(message),
        UserStoreError::Stale { .. } | UserStoreError::Taken => Status::aborted(message),
        UserStoreError::LinkRefused => Status::unauthenticated(message),
        UserStoreError::TooMany { .. } => Status::resource_exhausted(message),
        UserStoreError::Unavailable { .. } | UserStoreError::Uncertain { .. } => {
            log(&error);
            Status::unavailable(message)
        }
        UserStoreError::Broken { .. } => {
            log(&error);
            Status::internal("the store of users does not work; the server's log says more")
        }
    }
}

fn log(error: &UserStoreError) {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    tracing::error!(%error, cause, "a call failed on the store of users");
}
