//! What keeps a box in, by name: each is one step of a launch that can be pointed at.

use std::collections::BTreeSet;

/// One of the walls around a box.
///
/// Every box has all of them. A test may leave one out (feature `testkit`), to show that the attack it refuses works
/// without it and that nothing else was in the attack's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Defence {
    /// The filter of system calls.
    SystemCallFilter,
    /// Landlock, where the kernel has it: what may be written, whom signals and abstract sockets reach.
    Landlock,
    /// Nothing, or the read-only root file system of an image, instead of the host's files.
    HostAllowList,
    /// The root of the box and all of the image are read-only.
    ReadOnlyRoot,
    /// Entries of `/proc` that tell of the host are covered.
    ProcMasks,
    /// Processes of the box's own, and a `/proc` that shows no others.
    PidNamespace,
    /// Network interfaces and abstract sockets of the box's own.
    NetworkNamespace,
    /// Shared memory and message queues of the box's own.
    IpcNamespace,
    /// No capability in the box's own namespaces.
    CapabilityDrop,
    /// No user namespaces further in, unless the claim asks for them.
    UserNamespaceDenial,
    /// A host uid of the box's own, where the node can give one.
    UidMap,
    /// A session keyring of the box's own.
    Keyring,
    /// `/dev/shm` of the box's own.
    PrivateShm,
    /// `/tmp` of the box's own.
    PrivateTmp,
    /// No controlling terminal of the node's.
    NewSession,
}

/// The defences that a test switched off; none everywhere else.
#[derive(Clone, Debug, Default)]
pub(super) struct Weakened(BTreeSet<Defence>);

impl Defence {
    /// All of them, from the outermost thought of to the last.
    pub(super) const ALL: [Self; 15] = [
        Self::SystemCallFilter,
        Self::Landlock,
        Self::HostAllowList,
        Self::ReadOnlyRoot,
        Self::ProcMasks,
        Self::PidNamespace,
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::CapabilityDrop,
        Self::UserNamespaceDenial,
        Self::UidMap,
        Self::Keyring,
        Self::PrivateShm,
        Self::PrivateTmp,
        Self::NewSession,
    ];
}

impl Weakened {
    #[cfg(feature = "testkit")]
    pub(super) fn with(mut self, defence: Defence) -> Self {
        self.0.insert(defence);
        self
    }

    /// Whether boxes have this defence.
    pub(super) fn holds(&self, defence: Defence) -> bool {
        !self.0.contains(&defence)
    }
}
