//! Ids: one generic, one list of kinds.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Entropy, EntropyError};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// What an [`Id`] names.
pub trait Kind: fmt::Debug + Send + Sync + 'static {
    /// What the kind is called in messages.
    const NOUN: &'static str;
    /// What each id of the kind starts with.
    const PREFIX: &'static str;
    /// How many letters of `[a-z2-7]` follow the prefix; each carries five random bits.
    const LENGTH: usize;
}

/// The name of one thing of kind `K`: the kind's prefix and random letters of `[a-z2-7]`.
pub struct Id<K> {
    text: Box<str>,
    kind: PhantomData<fn() -> K>,
}

/// A text that is no id of the kind asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {noun} id: expected {prefix:?} and {length} of a-z, 2-7")]
#[non_exhaustive]
pub struct IdError {
    /// The kind's noun.
    pub noun: &'static str,
    /// The kind's prefix.
    pub prefix: &'static str,
    /// Letters that follow it.
    pub length: usize,
}

impl<K: Kind> Id<K> {
    /// Draws a new id.
    ///
    /// # Errors
    /// As [`Entropy::fill`].
    pub fn random(entropy: &dyn Entropy) -> Result<Self, EntropyError> {
        let mut bytes = vec![0_u8; K::LENGTH];
        entropy.fill(&mut bytes)?;
        let mut text = String::with_capacity(K::PREFIX.len() + K::LENGTH);
        text.push_str(K::PREFIX);
        text.extend(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)])));
        Ok(Self { text: text.into(), kind: PhantomData })
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<K: Kind> FromStr for Id<K> {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let letters = text.strip_prefix(K::PREFIX).unwrap_or_default();
        if letters.len() == K::LENGTH && letters.bytes().all(|byte| ALPHABET.contains(&byte)) {
            Ok(Self { text: text.into(), kind: PhantomData })
        } else {
            Err(IdError { noun: K::NOUN, prefix: K::PREFIX, length: K::LENGTH })
        }
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), kind: PhantomData }
    }
}
impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
impl<K> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}
impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl<K> Eq for Id<K> {}
impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}
impl<K> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}
impl<K> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}
impl<'de, K: Kind> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! kinds {
    ($($kind:ident $alias:ident $noun:literal $prefix:literal $length:literal;)*) => {$(
        #[doc = concat!("The kind of a ", $noun, " id.")]
        #[derive(Debug)]
        #[expect(clippy::exhaustive_enums, reason = "a kind has no values")]
        pub enum $kind {}
        impl Kind for $kind {
            const NOUN: &'static str = $noun;
            const PREFIX: &'static str = $prefix;
            const LENGTH: usize = $length;
        }
        #[doc = concat!("The id of a ", $noun, ": `", $prefix, "` and ", $length, " of `[a-z2-7]`.")]
        pub type $alias = Id<$kind>;
    )*};
}

kinds! {
    BoxKind BoxId "box" "cb-" 10;
    ConsoleSessionKind ConsoleSessionId "console session" "cs_" 16;
    GrantKind GrantId "agent grant" "ag_" 16;
    OperationKind OperationId "operation" "op_" 26;
    SessionKind SessionId "session" "se_" 26;
    SignInLinkKind SignInLinkId "sign-in link" "sl_" 16;
    TokenKind TokenId "token" "tk_" 16;
    UserKind UserId "user" "us_" 16;
    WakeKind WakeId "wake" "wk_" 26;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{SeededEntropy, SystemEntropy};

    #[test]
    fn a_drawn_id_reads_back() -> Result<(), Box<dyn std::error::Error>> {
        let id = BoxId::random(&SystemEntropy)?;
        assert_eq!(id.as_str().parse::<BoxId>()?, id);
        assert_eq!(serde_json::from_str::<BoxId>(&serde_json::to_string(&id)?)?, id);
        Ok(())
    }

    #[test]
    fn another_kinds_id_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        let id = UserId::random(&SeededEntropy::new(1))?;
        assert!(id.as_str().parse::<TokenId>().is_err());
        for bad in
            ["", "cb-", "cb-abcdefghi", "cb-abcdefghi1", "cb-ABCDEFGHIJ", "cb-abcdefghijk", "abcdefghij"]
        {
            assert!(bad.parse::<BoxId>().is_err(), "{bad}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn whatever_parses_prints_the_same(text in ".{0,40}") {
            if let Ok(id) = text.parse::<BoxId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
