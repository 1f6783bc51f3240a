#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod batch;
mod db;
mod error;
mod hold;
mod migrate;
mod notice;
#[cfg(feature = "testkit")]
pub mod testkit;
mod tx;
mod url;

pub use batch::{Batch, BatchDone, Value};
pub use db::{Db, DbOptions, Engine, Pools};
pub use error::DbError;
pub use hold::{Hold, Use};
pub use migrate::{Migration, MigrationError, Migrations};
pub use notice::{CHANNEL_MAX, Listener, Notice, PAYLOAD_MAX};
pub use tx::Tx;
pub use url::{DatabaseUrl, DatabaseUrlError};

/// The driver, for statements in the crates that own tables.
pub use sqlx;

#[doc(hidden)]
pub mod __private {
    pub use crate::tx::TxInner;
}
