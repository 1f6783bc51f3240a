#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bootstrap;
#[cfg(feature = "grpc")]
mod grpc;
mod index;
mod label;
mod secret;
pub mod serve;
mod store;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use bootstrap::{
    FirstStart, SetupError, admin_link, ensure_admin, renew_admin, renew_personal_token, sign_in_link,
};
#[cfg(feature = "grpc")]
pub use grpc::{AccountService, RedeemLimits, ServiceOptions, SignInService, services};
pub use index::{AuthError, AuthorizedCaller, TokenIndex};
pub use label::{Label, LabelError};
pub use secret::{AccessToken, LinkToken, TokenHash, TokenTextError};
#[cfg(feature = "sql")]
pub use store::{CHANNEL, SqlUserStore};
pub use store::{
    Credential, DEVICES_MAX, Fault, FaultyUserStore, LINKS_MAX, LinkRecord, MemoryUserStore, NewDevice,
    PAGE_MAX, StateKeyStore, TokenClass, TokenRecord, User, UserChanges, UserKey, UserStore, UserStoreError,
};
