//! What a person calls a device.

use std::fmt;
use std::str::FromStr;

const MAX: usize = 64;

/// A text that cannot be a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a device's name: use 1 to 64 bytes without control characters")]
#[non_exhaustive]
pub struct LabelError;

/// The name of a device in its owner's list: 1 to 64 bytes of UTF-8, no control characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Label(Box<str>);

impl Label {
    /// Returns the label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the label of every personal token, `personal`.
    pub fn personal() -> Self {
        Self("personal".into())
    }
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        if (1..=MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
            Ok(Self(text.into()))
        } else {
            Err(LabelError)
        }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_limits() {
        let (long, longest) = ("a".repeat(65), "ü".repeat(32));
        for (text, good) in [
            ("laptop", true),
            ("Jo's Mac", true),
            (&longest, true),
            (&long, false),
            ("", false),
            ("a\nb", false),
            ("\u{1b}[2J", false),
        ] {
            assert_eq!(text.parse::<Label>().is_ok(), good, "{text:?}");
        }
    }
}
