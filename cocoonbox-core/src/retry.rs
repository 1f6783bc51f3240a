//! What a caller may do after a failure.

/// What a caller may do after a failure; every error type answers it from an exhaustive match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers match on each answer")]
pub enum Retry {
    /// The same call fails the same way until something else changes.
    Never,
    /// Nothing happened: read anew and try at once.
    Reread,
    /// Nothing happened: try the same call later.
    Later,
    /// It may or may not have happened: look the thing up before trying again.
    LookFirst,
}
