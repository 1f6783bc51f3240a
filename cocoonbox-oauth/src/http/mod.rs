//! Over HTTP: the authorization server's doors, its discovery, and the console's JSON.
//!
//! [`router`] serves them all; whoever embeds it mounts the router beside others and runs [`serve`](crate::serve)'s
//! loops. Nothing in front of it has to authenticate.

mod admin;
mod agent;
mod answer;
mod consent;
mod device;
mod discovery;
mod me;
mod register;
mod session;
mod sign_in;
mod token;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::HeaderValue;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, patch, post};
use cocoonbox_core::{Clock, Entropy, GrantId, UserId};
use tokio_util::sync::CancellationToken;

use crate::limit::Limiter;
use crate::{
    AccountStore, AgentIndex, Client, ClientError, ClientId, DoorLimits, Issuer, OauthKey, PasswordDesk,
    TokenIndex, User,
};

#[cfg(fuzzing)]
pub use token::fuzz_form;

/// The largest body of a request.
const BODY_MAX: usize = 64 * 1024;

/// Fetches the metadata documents of clients that are named by an address.
#[async_trait]
pub trait DocumentSource: fmt::Debug + Send + Sync + 'static {
    /// Returns the client that the document at `id` describes.
    ///
    /// # Errors
    /// [`ClientError`]; it says nothing of the network that the caller could not know.
    async fn client(&self, id: &ClientId) -> Result<Client, ClientError>;
}

/// What else a user has: boxes and what they saved.
#[async_trait]
pub trait Belongings: fmt::Debug + Send + Sync + 'static {
    /// Ends all that is the user's, before the user goes. What is gone already is no failure.
    ///
    /// # Errors
    /// In words for an administrator; the user then stays, shut out.
    async fn end(&self, user: &UserId) -> Result<(), String>;

    /// Returns the ids and names of the boxes that a grant of the user made; none when they cannot be told now.
    async fn made_by(&self, user: &UserId, grant: &GrantId) -> Vec<(String, String)>;
}

/// What the doors need.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuthorityOptions {
    /// How this server is reached.
    pub issuer: Issuer,
    /// Further origins that pages of this server come from, such as `http://localhost:7420` beside `127.0.0.1`.
    pub origins: Vec<String>,
    /// Where accounts are.
    pub store: Arc<dyn AccountStore>,
    /// Which tokens are good.
    pub tokens: Arc<TokenIndex>,
    /// Which agents are let in.
    pub agents: Arc<AgentIndex>,
    /// Derives agents' tokens.
    pub key: Arc<OauthKey>,
    /// Fetches clients' documents; none: such clients are refused.
    pub documents: Option<Arc<dyn DocumentSource>>,
    /// What else a user has; nothing unless told.
    pub belongings: Option<Arc<dyn Belongings>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where secrets are drawn from.
    pub entropy: Arc<dyn Entropy>,
    /// What `me` says of the server.
    pub version: String,
    /// How many wrong passwords and links are taken from one address, and for one user.
    pub limits: DoorLimits,
    /// Proxies whose `X-Forwarded-For` is believed; none unless told.
    pub trusted_proxies: Vec<IpAddr>,
}

impl AuthorityOptions {
    /// Takes what has no default.
    pub fn new(
        issuer: Issuer,
        store: Arc<dyn AccountStore>,
        tokens: Arc<TokenIndex>,
        agents: Arc<AgentIndex>,
        key: Arc<OauthKey>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            issuer,
            origins: Vec::new(),
            store,
            tokens,
            agents,
            key,
            documents: None,
            belongings: None,
            clock,
            entropy,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            limits: DoorLimits::default(),
            trusted_proxies: Vec::new(),
        }
    }

    /// Adds origins that pages of this server come from.
    pub fn with_origins(mut self, origins: impl IntoIterator<Item = String>) -> Self {
        self.origins.extend(origins);
        self
    }

    /// Has clients' documents fetched.
    pub fn with_documents(mut self, documents: Arc<dyn DocumentSource>) -> Self {
        self.documents = Some(documents);
        self
    }

    /// Has a user's belongings ended with the user.
    pub fn with_belongings(mut self, belongings: Arc<dyn Belongings>) -> Self {
        self.belongings = Some(belongings);
        self
    }

    /// Sets what `me` says of the server.
    pub fn with_version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets the proxies whose `X-Forwarded-For` is believed.
    pub fn with_trusted_proxies(mut self, proxies: Vec<IpAddr>) -> Self {
        self.trusted_proxies = proxies;
        self
    }

    /// Sets how many wrong passwords and links are taken.
    pub fn with_limits(mut self, limits: DoorLimits) -> Self {
        self.limits = limits;
        self
    }
}

/// What the handlers share.
#[derive(Debug)]
struct Authority {
    options: AuthorityOptions,
    desk: PasswordDesk,
    /// By the network of who asks.
    addresses: Limiter<IpAddr>,
    /// By the name that is signed in with.
    names: Limiter<String>,
    /// Registrations by the network of who asks.
    registrations: Limiter<IpAddr>,
    /// What is open on sessions.
    sessions: session::Open,
}

impl Authority {
    fn store(&self) -> &dyn AccountStore {
        &*self.options.store
    }
}

/// Who is signed in at the console: what a request to the routes beside ours has among its extensions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConsoleCaller {
    /// The user.
    pub user: User,
    /// Cancelled when the session ends in this process; what is open then ends, too.
    pub ended: CancellationToken,
}

/// Returns the routes: `/.well-known/…`, `/cocoonbox.oauth/…` and `/cb/api/…`. Of the latter `beside` has those that are
/// not ours: they are reached with a session alone, from this server's own pages, and know who by [`ConsoleCaller`].
pub fn router(options: AuthorityOptions, beside: Router) -> Router {
    let registrations = DoorLimits::new(60, std::time::Duration::from_hours(1));
    let authority = Arc::new(Authority {
        desk: PasswordDesk::new(Arc::clone(&options.entropy)),
        addresses: Limiter::new(options.limits),
        names: Limiter::new(options.limits),
        registrations: Limiter::new(registrations),
        sessions: session::Open::default(),
        options,
    });
    let signed_in = Router::new()
        .route("/cb/api/me", get(me::show))
        .route("/cb/api/me/password", post(me::change_password))
        .route("/cb/api/me/token", get(me::token).post(me::renew_token).delete(me::revoke_token))
        .route("/cb/api/me/sign-ins", get(sign_in::own))
        .route("/cb/api/me/sign-out-everywhere", post(me::sign_out_everywhere))
        .route("/cb/api/devices", get(device::list))
        .route("/cb/api/devices/{id}", delete(device::revoke))
        .route("/cb/api/agents", get(agent::list))
        .route("/cb/api/agents/seen", post(agent::see))
        .route("/cb/api/agents/{id}", delete(agent::revoke))
        .route("/cb/api/oauth/check", post(consent::check))
        .route("/cb/api/oauth/approve", post(consent::approve))
        .route("/cb/api/oauth/deny", post(consent::deny))
        .route("/cb/api/sign-ins", get(sign_in::all))
        .route("/cb/api/users", get(admin::list).post(admin::make))
        .route("/cb/api/users/{id}", patch(admin::change).delete(admin::remove))
        .with_state(Arc::clone(&authority))
        .merge(beside)
        .layer(from_fn_with_state(Arc::clone(&authority), session::require));
    let open = Router::new()
        .route("/cb/api/login", post(session::login))
        .route("/cb/api/login/link", post(session::login_by_link))
        .route("/cb/api/logout", post(session::logout))
        .with_state(Arc::clone(&authority));
    let console = signed_in
        .merge(open)
        .route("/cb/api/{*unknown}", axum::routing::any(answer::unknown))
        .layer(from_fn_with_state(Arc::clone(&authority), session::same_origin))
        .layer(axum::middleware::map_response(answer::never_stored));
    let doors = Router::new()
        .route("/cocoonbox.oauth/token", post(token::exchange))
        .route("/cocoonbox.oauth/revoke", post(token::revoke))
        .route("/cocoonbox.oauth/register", post(register::register))
        .with_state(Arc::clone(&authority))
        .layer(axum::middleware::map_response(answer::never_stored));
    let discovery = Router::new()
        .route("/.well-known/oauth-authorization-server", get(discovery::server))
        .route("/.well-known/oauth-protected-resource", get(discovery::resource))
        .route("/.well-known/oauth-protected-resource/cocoonbox.mcp", get(discovery::resource))
        .route("/.well-known/oauth-protected-resource/cocoonbox.mcp/{*under}", get(discovery::resource))
        .with_state(authority);
    console.merge(doors).merge(discovery).layer(DefaultBodyLimit::max(BODY_MAX)).layer(
        axum::middleware::map_response(|mut answer: axum::response::Response| async move {
            answer.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
            answer
        }),
    )
}
