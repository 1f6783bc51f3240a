use std::time::Duration;

use cocoonbox_core::backend::Size;
use cocoonbox_core::machine::SleepRules;
use cocoonbox_core::{ImageName, Timestamp};
use ed25519_dalek::VerifyingKey;

/// How the engine treats boxes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// What a box runs when nobody said.
    pub default_image: ImageName,
    /// The size of boxes.
    pub size: Size,
    /// How long a box runs unused; zero is for ever.
    pub user_idle_hibernate: Duration,
    /// How long a sleeping box keeps its memory; zero is for ever.
    pub freeze_to_disk_after: Duration,
    /// The public half of the key that signs call tokens; it goes into each box's identity.
    pub call_key: VerifyingKey,
}

impl EngineConfig {
    /// Starts from boxes that run until somebody puts them to sleep.
    pub const fn new(default_image: ImageName, call_key: VerifyingKey) -> Self {
        Self {
            default_image,
            size: Size::Small,
            user_idle_hibernate: Duration::ZERO,
            freeze_to_disk_after: Duration::ZERO,
            call_key,
        }
    }
    /// Sets the size of boxes.
    pub const fn with_size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }
    /// Sets how long a box runs unused.
    pub const fn with_user_idle_hibernate(mut self, idle: Duration) -> Self {
        self.user_idle_hibernate = idle;
        self
    }
    /// Sets how long a sleeping box keeps its memory.
    pub const fn with_freeze_to_disk_after(mut self, after: Duration) -> Self {
        self.freeze_to_disk_after = after;
        self
    }

    pub(super) const fn rules(&self, jumped_at: Option<Timestamp>) -> SleepRules {
        SleepRules {
            idle: self.user_idle_hibernate,
            freeze_to_disk_after: self.freeze_to_disk_after,
            jumped_at,
        }
    }
}
