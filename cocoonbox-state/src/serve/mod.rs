//! What runs threads, waits and drives uploads; all that decides is elsewhere.

mod blocking;
mod gather;
mod restore;
mod retry;
mod save;
mod worker;

pub(crate) use blocking::blocking;
pub(crate) use gather::{GatherInput, gather};
pub use restore::{RestoreContext, restore, restore_paths};
#[cfg(any(test, feature = "testkit"))]
pub(crate) use retry::pause;
pub(crate) use retry::retried;
pub use save::{SaveContext, save};

pub use gather::hash_tree;
