use std::io;

use cocoonbox_core::Retry;

use crate::SaveId;
use crate::manifest::ReadError;

/// Why a restore was not done. What it wrote stays in its own folder, and another try goes on from there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The save cannot be read.
    #[error("the save cannot be read")]
    Read(#[from] ReadError),
    /// There is not enough room; nothing was written.
    #[error("the restore needs {needed} bytes, and {free} are free")]
    NoSpace {
        /// Bytes of the save.
        needed: u64,
        /// Bytes free for it.
        free: u64,
    },
    /// The disk filled up meanwhile.
    #[error("the disk is full")]
    Full {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// This machine failed to write.
    #[error("the restore could not write")]
    Write {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What was written, read back, is not the save: the folder holds other things, or its file system cannot keep
    /// what the save holds.
    #[error("{entries} entries of what was restored differ from save {save}")]
    Differs {
        /// Which save.
        save: SaveId,
        /// How many entries, as far as they could be told.
        entries: u64,
    },
}

impl RestoreError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Read(source) => source.retry(),
            Self::NoSpace { .. } | Self::Full { .. } | Self::Write { .. } => Retry::Later,
            Self::Differs { .. } => Retry::Never,
        }
    }

    pub(crate) fn of(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { source },
            _ => Self::Write { source },
        }
    }
}
