//! Names that people choose.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that breaks a name's grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {noun}: {rule}")]
#[non_exhaustive]
pub struct NameError {
    /// What the text should have named.
    pub noun: &'static str,
    /// The rule it breaks, in words a person can act on.
    pub rule: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $noun:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.into())) } else { Err(NameError { noun: $noun, rule: $rule }) }
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

fn lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// `first` holds for the first byte, `rest` for the others, and there are 1 to `most` of them.
fn spelled(text: &str, most: usize, first: fn(u8) -> bool, rest: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    (1..=most).contains(&bytes.len()) && first(bytes[0]) && bytes[1..].iter().all(|byte| rest(*byte))
}

name! {
    /// The name of a box, unique among its owner's boxes: `[a-z0-9][a-z0-9_-]{0,31}`, and not shaped like an id.
    BoxName, "box name", "use 1 to 32 of a-z, 0-9, _ and -, starting with a letter or digit, and not cb-…",
    |text| !text.starts_with("cb-")
        && spelled(text, 32, lower_or_digit, |byte| lower_or_digit(byte) || matches!(byte, b'_' | b'-'))
}

name! {
    /// The name a person signs in with: `[a-z0-9][a-z0-9._-]{0,38}`.
    UserName, "user name", "use 1 to 39 of a-z, 0-9, ., _ and -, starting with a letter or digit",
    |text| spelled(text, 39, lower_or_digit, |byte| lower_or_digit(byte) || matches!(byte, b'.' | b'_' | b'-'))
}

name! {
    /// An image: `name:version` (each `[a-z0-9][a-z0-9._-]*`, 128 bytes in all) or a bare name such as `host`.
    ImageName, "image", "use name or name:version of a-z, 0-9, ., _ and -, 128 bytes at most",
    |text| {
        let part = |part: &str| spelled(part, 128, lower_or_digit, |byte| lower_or_digit(byte) || matches!(byte, b'.' | b'_' | b'-'));
        text.len() <= 128 && text.split_once(':').map_or_else(|| part(text), |(name, version)| part(name) && part(version))
    }
}

name! {
    /// Who a claim counts for on a node: `[a-zA-Z0-9][a-zA-Z0-9._:/-]{0,62}`.
    TenantName, "tenant name", "use 1 to 63 of a-z, A-Z, 0-9 and . _ : / -, starting with a letter or digit",
    |text| spelled(text, 63, |byte| byte.is_ascii_alphanumeric(), |byte| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte))
}

impl BoxName {
    /// Returns the name of a user's first box, `main`.
    pub fn first() -> Self {
        Self("main".into())
    }

    /// Returns the hostname that a box of this name has: `_` becomes `-`.
    pub fn hostname(&self) -> String {
        // a host name may not end in `-`
        self.0.replace('_', "-").trim_end_matches('-').to_owned()
    }
}

impl ImageName {
    /// Returns the pseudo-image that follows the machine, `host`.
    pub fn host() -> Self {
        Self("host".into())
    }
}

impl From<&crate::UserId> for TenantName {
    fn from(user: &crate::UserId) -> Self {
        Self(user.as_str().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn box_names_follow_the_grammar() {
        let long = "a".repeat(33);
        for (text, good) in [
            ("main", true),
            ("0", true),
            ("a_b-c", true),
            ("control", true),
            ("", false),
            ("-a", false),
            ("_a", false),
            ("Main", false),
            ("a b", false),
            ("a/../b", false),
            ("ü", false),
            ("cb-abcdefghij", false),
            (long.as_str(), false),
        ] {
            assert_eq!(text.parse::<BoxName>().is_ok(), good, "{text:?}");
        }
    }

    #[test]
    fn images_and_tenants_follow_theirs() {
        for (text, good) in [
            ("host", true),
            ("debian:12.1", true),
            (":1", false),
            ("a:", false),
            ("a:b:c", false),
            ("../x", false),
        ] {
            assert_eq!(text.parse::<ImageName>().is_ok(), good, "{text:?}");
        }
        for (text, good) in [("us_abc", true), ("A/b:c.d-e", true), ("/a", false), ("a b", false)] {
            assert_eq!(text.parse::<TenantName>().is_ok(), good, "{text:?}");
        }
    }

    #[test]
    fn a_hostname_has_no_underscore() -> Result<(), NameError> {
        assert_eq!("my_box_".parse::<BoxName>()?.hostname(), "my-box");
        Ok(())
    }
}
