use std::fmt;

use async_trait::async_trait;

/// Told around saves and restores, in the box: by whatever keeps something there that a save is to hold whole, such as a
/// browser's profile or an inbox.
///
/// # Behavior
/// - Hooks are told in the order they were given, each within [`HOOK_LIMIT`]. One that fails, or takes longer, is logged
///   and holds nothing up: the save is made all the same.
/// - After a whole restore they are told once, at the box's next start, before its owner is served; after a restore of
///   chosen files at once.
#[async_trait]
pub trait StateHook: fmt::Debug + Send + Sync + 'static {
    /// Returns the name that the log calls it by.
    fn name(&self) -> &'static str;
    /// Writes down what is only in memory, and holds still as far as it can.
    async fn before_save(&self) -> Result<(), String>;
    /// Reads anew what was restored.
    async fn after_restore(&self) -> Result<(), String>;
}

/// How long a hook may take.
pub const HOOK_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
