//! Boxes' state in a state store: sealed by the guest, committed here.

mod care;
#[cfg(feature = "sql")]
mod catalog;
mod door;
mod grant;
mod keeper;
mod keys;
mod serve;

#[cfg(feature = "sql")]
pub use catalog::{MIGRATIONS, STATEMENTS, SqlCatalog};
pub use door::{DOOR_PATH, StateDoor};
pub use keeper::SealedKeeper;
pub use keys::{MemoryStateKeys, StateKeys};
pub use serve::look_after;
