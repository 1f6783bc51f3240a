#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod agent_index;
mod authorize;
mod bootstrap;
mod client;
#[cfg(any(feature = "grpc", feature = "http"))]
mod device;
#[cfg(feature = "documents")]
mod document;
mod grant;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "http")]
pub mod http;
mod index;
mod label;
#[cfg(any(feature = "grpc", feature = "http"))]
mod limit;
mod password;
mod redirect;
mod secret;
pub mod serve;
mod sign_out;
mod store;
#[cfg(feature = "testkit")]
pub mod testkit;
#[cfg(any(feature = "grpc", feature = "http"))]
mod visit;

pub use agent_index::{AgentIndex, AuthorizedAgent};
pub use authorize::{
    AuthorizeError, AuthorizeQuery, AuthorizeRequest, Issuer, IssuerError, QUERY_MAX, RESOURCE_PATH,
    SCOPE_ACCOUNT, SCOPE_BOXES, Untrusted, Verdict, Wish, decide,
};
pub use bootstrap::{
    FirstStart, SetupError, admin_link, ensure_admin, renew_admin, renew_personal_token, sign_in_link,
};
pub use client::{
    Client, ClientError, ClientId, ClientKind, METADATA_MAX, REDIRECT_URIS_MAX, read_document,
    read_registration,
};
#[cfg(feature = "documents")]
pub use document::serve::SystemResolver;
#[cfg(feature = "documents")]
pub use document::{DialRules, Documents, Resolve};
pub use grant::{
    ACCESS_LIFE, AccessRecord, GRANT_BOXES_MAX, GRANT_DAYS, GRANTS_MAX, GrantRecord, OauthKey, Presented,
    Worth,
};
#[cfg(feature = "grpc")]
pub use grpc::{AccountService, ServiceOptions, SignInService, services};
pub use index::{AuthError, AuthorizedCaller, TokenIndex};
pub use label::{Label, LabelError};
#[cfg(any(feature = "grpc", feature = "http"))]
pub use limit::DoorLimits;
pub use password::serve::PasswordDesk;
pub use password::{PASSWORD_MAX, PASSWORD_MIN, Password, PasswordError, PasswordHash, WeakPassword};
pub use redirect::{REDIRECT_URI_MAX, RedirectUri, RedirectUriError};
pub use secret::{
    AccessToken, AgentToken, AuthorizationCode, LinkToken, RefreshToken, SessionToken, TokenHash,
    TokenTextError,
};
pub use sign_out::sign_out_everywhere;
pub use store::{
    AccountStore, CLIENTS_MAX, CODE_LIFE, ClientStore, CodeRecord, Credential, DEVICES_MAX, Door, Fault,
    FaultyUserStore, GrantChange, GrantChanges, GrantStore, LINKS_MAX, LinkRecord, LivingGrant,
    MemoryUserStore, NewDevice, OauthKeyStore, PAGE_MAX, Promise, SESSION_LIFE, SESSIONS_MAX, SIGN_INS_FOR,
    SIGN_INS_MAX, SessionRecord, SessionStore, SignInRecord, SignInStore, Spent, StateKeyStore, TokenClass,
    TokenRecord, UNUSED_FOR, User, UserChanges, UserKey, UserStore, UserStoreError, Which,
};
#[cfg(feature = "sql")]
pub use store::{CHANNEL, GRANT_CHANNEL, SqlUserStore};
