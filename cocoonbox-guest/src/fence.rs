//! What a box keeps its own programs from, beside what its node does: Landlock, where the kernel has it.

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

/// The interface that the rules are written for; an older kernel keeps as many as it knows.
const WRITTEN_FOR: ABI = ABI::V6;

/// Where programs may write, beside their home.
const WRITABLE: &[&str] = &["/workspace", "/tmp", "/var/tmp", "/dev/shm", "/run"];

/// Where programs may write to what is there, which is the kernel's to allow, and make nothing.
const KERNELS_OWN: &[&str] = &["/dev", "/proc"];

/// How much a fence keeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fence {
    /// Signals and abstract sockets reach what is inside, and nothing is written but where a box may write.
    Files,
    /// Signals and abstract sockets alone: under rules for files the kernel refuses every mount, and sandboxes further
    /// in need some.
    Scopes,
}

impl Fence {
    /// Reads what the node asks for.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "files" => Some(Self::Files),
            "scopes" => Some(Self::Scopes),
            _ => None,
        }
    }

    /// Puts this thread, and whatever it starts from now on, behind the fence; true when the kernel does so at least
    /// in part. Called while the process has one thread.
    ///
    /// # Errors
    /// The kernel has Landlock and refuses.
    pub fn raise(self, home: &Path) -> Result<bool, FenceError> {
        let made = match self {
            Self::Files => files(home),
            Self::Scopes => Ruleset::default().scope(Scope::from_all(WRITTEN_FOR)).and_then(Ruleset::create),
        };
        let status = made.and_then(RulesetCreated::restrict_self).map_err(FenceError)?;
        Ok(status.ruleset != RulesetStatus::NotEnforced)
    }
}

fn files(home: &Path) -> Result<RulesetCreated, RulesetError> {
    let write = AccessFs::from_write(WRITTEN_FOR);
    let there = BitFlags::from(AccessFs::WriteFile) | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        // the first version of Landlock knows no renames between directories and refuses them all: better none of it
        .set_compatibility(CompatLevel::SoftRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(write)?
        .scope(Scope::from_all(WRITTEN_FOR))?
        .create()?;
    let writable = WRITABLE.iter().map(Path::new).chain([home]).map(|path| (path, write));
    for (path, access) in writable.chain(KERNELS_OWN.iter().map(|path| (Path::new(path), there))) {
        // what an image lacks needs no rule
        if let Ok(place) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(place, access))?;
        }
    }
    Ok(rules)
}

/// The kernel has Landlock and refuses a box its fence.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refuses the box's Landlock rules")]
pub struct FenceError(#[source] RulesetError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_node_says_is_a_fence() {
        assert_eq!(Fence::parse("files"), Some(Fence::Files));
        assert_eq!(Fence::parse("scopes"), Some(Fence::Scopes));
        for other in ["", "Files", "none", "files "] {
            assert_eq!(Fence::parse(other), None, "{other:?}");
        }
    }
}
