#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod boxes;
#[cfg(feature = "cli")]
pub mod cli;
mod client;
mod endpoint;
mod error;
pub mod exec;
pub mod mcp;
mod operation;
mod reference;
mod sign_in;
mod state;
mod store;
mod token;

pub use boxes::{CreateOptions, EnsureOptions, HibernateOptions, MAX_LISTED_BOXES};
pub use client::{Client, SignedIn};
/// The messages of the boxes and account services.
pub use cocoonbox_wire::control::v1 as control;
pub use endpoint::{Endpoint, EndpointError};
pub use error::{ClientError, Refusal};
pub use operation::{Followed, OperationEvents};
pub use reference::{BoxRef, BoxRefError};
pub use sign_in::{BrowserSignIn, BrowserSignInError, SignInCode};
pub use store::{Remembered, Store, StoreError, TokenSource};
pub use token::{AccessToken, PrintedStateKey, SignInLink};
