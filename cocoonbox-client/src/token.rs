//! What proves who is calling, and what opens their saves.

cocoonbox_core::secret! {
    /// A personal or device token, `cb_` and 64 hex digits.
    pub struct AccessToken;
}

cocoonbox_core::secret! {
    /// The secret part of a one-use sign-in link.
    pub struct SignInLink;
}

cocoonbox_core::secret! {
    /// A name in a state store and the key to it, in print.
    pub struct PrintedStateKey;
}

impl AccessToken {
    /// Returns whether `text` has a token's shape: `cb_` and 64 lower-case hex digits.
    pub fn is_well_formed(text: &str) -> bool {
        text.strip_prefix("cb_").is_some_and(|hex| {
            hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_shape() {
        assert!(AccessToken::is_well_formed(&format!("cb_{}", "0a".repeat(32))));
        for bad in
            ["", "cb_", "cb_00", &format!("cba_{}", "0a".repeat(32)), &format!("cb_{}", "0A".repeat(32))]
        {
            assert!(!AccessToken::is_well_formed(bad), "{bad}");
        }
    }
}
