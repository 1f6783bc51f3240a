#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod caller;
mod care;
#[cfg(feature = "grpc")]
pub mod edge;
mod engine;
mod error;
#[cfg(feature = "grpc")]
pub mod grpc;
mod keeper;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "state")]
pub mod state;
pub mod store;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod usage;

pub use caller::{AgentGrant, Caller};
pub use care::{CheckInfo, DamageInfo, PrintedStateKey, PruneInfo, RecoveredInfo, StateCare};
pub use cocoonbox_core::machine::Limits;
pub use engine::{
    BeforeSleep, CallUse, Confirm, Engine, EngineConfig, Hold, IdempotencyKey, KeepUp, OpenCall,
    OperationEvents, Page, Reconciled, Started, UsageCount, Work,
};
pub use error::EngineError;
pub use keeper::{
    Guest, KeeperError, MemoryKeeper, Moved, RestoreInfo, SaveInfo, SaveReason, SavedEntryInfo,
    SavedFileReader, StateKeeper,
};
