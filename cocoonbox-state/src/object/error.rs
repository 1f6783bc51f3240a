use std::error::Error;

use cocoonbox_core::Retry;

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// The name is taken; nothing happened.
    #[error("the object is there already")]
    AlreadyExists,
    /// The bytes asked for are not in the object.
    #[error("the object is shorter than what was asked of it")]
    OutOfRange,
    /// The store refuses; nothing happened.
    #[error("the store of objects refuses")]
    Denied,
    /// The box's node leads nowhere; nothing happened.
    #[error("the box's node has no way to the store of objects: start it with --edge")]
    NoWay,
    /// The store has no room left; nothing happened.
    #[error("the store of objects has no room left")]
    Full,
    /// The store cannot be reached or is overloaded; it may have happened.
    #[error("the store of objects is not available")]
    Unavailable {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The store answered what it must not.
    #[error("the store of objects misbehaved: {what}")]
    Misbehaved {
        /// In which way.
        what: &'static str,
    },
}

impl ObjectError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::NotFound | Self::AlreadyExists | Self::OutOfRange | Self::Denied | Self::NoWay => {
                Retry::Never
            }
            Self::Full | Self::Unavailable { .. } | Self::Misbehaved { .. } => Retry::Later,
        }
    }

    pub(crate) fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable { source: source.into() }
    }
}
