use std::str::FromStr;

use crate::EngineError;

/// What makes a repeated request the same request: 1 to 128 bytes of printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the field of a request, where empty is no key.
    ///
    /// # Errors
    /// [`EngineError::Invalid`].
    pub fn optional(text: &str) -> Result<Option<Self>, EngineError> {
        if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
    }
}

impl FromStr for IdempotencyKey {
    type Err = EngineError;
    fn from_str(text: &str) -> Result<Self, EngineError> {
        if (1..=128).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
            Ok(Self(text.to_owned()))
        } else {
            let reason = "use at most 128 printable ASCII characters".to_owned();
            Err(EngineError::Invalid { field: "idempotency_key", reason })
        }
    }
}
