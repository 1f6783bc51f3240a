use std::time::Duration;

use cocoonbox_core::backend::Size;
use cocoonbox_core::machine::{BoxRecord, SleepRules};
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
    /// How long a box of a user's own runs unused; zero is for ever.
    pub user_idle_hibernate: Duration,
    /// How long a box that an outside agent made runs unused; zero is for ever.
    pub agent_idle_hibernate: Duration,
    /// How long a sleeping box keeps its memory; zero is for ever.
    pub freeze_to_disk_after: Duration,
    /// What a user's model calls may cost a day, in millionths of a dollar, where the user has no cap of their own; 0 is no cap.
    pub daily_cap_micros: u64,
    /// The public half of the key that signs call tokens; it goes into each box's identity.
    pub call_key: VerifyingKey,
}

/// How long an agent's box runs unused where nobody said.
const AGENT_IDLE: Duration = Duration::from_mins(30);

impl EngineConfig {
    /// Starts from boxes that run until somebody puts them to sleep, and agents' boxes that sleep after half an hour.
    pub const fn new(default_image: ImageName, call_key: VerifyingKey) -> Self {
        Self {
            default_image,
            size: Size::Small,
            user_idle_hibernate: Duration::ZERO,
            agent_idle_hibernate: AGENT_IDLE,
            freeze_to_disk_after: Duration::ZERO,
            daily_cap_micros: 0,
            call_key,
        }
    }
    /// Sets the size of boxes.
    pub const fn with_size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }
    /// Sets how long a box of a user's own runs unused.
    pub const fn with_user_idle_hibernate(mut self, idle: Duration) -> Self {
        self.user_idle_hibernate = idle;
        self
    }
    /// Sets how long a box that an outside agent made runs unused.
    pub const fn with_agent_idle_hibernate(mut self, idle: Duration) -> Self {
        self.agent_idle_hibernate = idle;
        self
    }
    /// Sets what a user's model calls may cost a day.
    pub const fn with_daily_cap_micros(mut self, cap: u64) -> Self {
        self.daily_cap_micros = cap;
        self
    }
    /// Sets how long a sleeping box keeps its memory.
    pub const fn with_freeze_to_disk_after(mut self, after: Duration) -> Self {
        self.freeze_to_disk_after = after;
        self
    }

    /// Returns the newest image that a box of `image` could move to: the default one, when both have one name.
    pub fn latest_of<'a>(&'a self, image: &'a ImageName) -> &'a ImageName {
        let name = |image: &'a ImageName| image.as_str().split(':').next();
        if name(image) == name(&self.default_image) { &self.default_image } else { image }
    }

    pub(super) const fn rules(&self, record: &BoxRecord, jumped_at: Option<Timestamp>) -> SleepRules {
        SleepRules {
            idle: if record.agent { self.agent_idle_hibernate } else { self.user_idle_hibernate },
            freeze_to_disk_after: self.freeze_to_disk_after,
            jumped_at,
        }
    }
}
