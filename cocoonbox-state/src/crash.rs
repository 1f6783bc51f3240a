//! Places where a test lets the process die.

/// Dies here when a test armed this place; nothing without the `testkit` feature.
#[cfg(feature = "testkit")]
pub(crate) fn crash_point(name: &str) {
    testing::reached(name);
}

#[cfg(not(feature = "testkit"))]
#[inline]
pub(crate) fn crash_point(_name: &str) {}

#[cfg(feature = "testkit")]
mod testing {
    use std::sync::Mutex;

    static ARMED: Mutex<Option<(String, u32)>> = Mutex::new(None);

    /// Lets the process abort at the `nth` time that it comes to the place of this name, 1 being the next.
    pub fn arm(name: &str, nth: u32) {
        *ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some((name.to_owned(), nth));
    }

    pub(super) fn reached(name: &str) {
        let mut armed = ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((armed_name, left)) = armed.as_mut()
            && armed_name == name
        {
            *left -= 1;
            if *left == 0 {
                std::process::abort();
            }
        }
    }
}

#[cfg(feature = "testkit")]
pub use testing::arm as arm_crash_point;

/// The names of all places, in the order in which a save, a commit, a restore and a prune come to them.
#[cfg(feature = "testkit")]
pub const CRASH_POINTS: &[&str] = &[
    "save: before a pack is put",
    "save: after a pack was put",
    "save: before the manifest is put",
    "save: after the manifest was put",
    "commit: before the catalog is written",
    "commit: after the catalog was written",
    "restore: before a file is written",
    "restore: after a group was written",
    "restore: before folders are finished",
    "restore: before it is declared done",
    "prune: before the mark",
    "prune: after the mark",
    "prune: before the sweep",
    "prune: after the count of sweeps",
    "prune: before an object is deleted",
    "prune: before the mark is cleared",
];
