//! Ids: one generic, one list of kinds.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Entropy, EntropyError};

/// The letters that an [`Id`] is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "ids are drawn from these")]
pub enum Letters {
    /// `[a-z2-7]`; each carries five random bits.
    Base32,
    /// `[0-9a-f]`; each carries four.
    Hex,
}

impl Letters {
    const fn all(self) -> &'static [u8] {
        match self {
            Self::Base32 => b"abcdefghijklmnopqrstuvwxyz234567",
            Self::Hex => b"0123456789abcdef",
        }
    }

    const fn named(self) -> &'static str {
        match self {
            Self::Base32 => "a-z, 2-7",
            Self::Hex => "0-9, a-f",
        }
    }
}

/// What an [`Id`] names.
pub trait Kind: fmt::Debug + Send + Sync + 'static {
    /// What the kind is called in messages.
    const NOUN: &'static str;
    /// What each id of the kind starts with.
    const PREFIX: &'static str;
    /// How many letters follow the prefix.
    const LENGTH: usize;
    /// Which letters.
    const LETTERS: Letters = Letters::Base32;
}

/// The name of one thing of kind `K`: the kind's prefix and random letters.
pub struct Id<K> {
    text: Box<str>,
    kind: PhantomData<fn() -> K>,
}

/// A text that is no id of the kind asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {noun} id: expected {prefix:?} and {length} of {}", letters.named())]
#[non_exhaustive]
pub struct IdError {
    /// The kind's noun.
    pub noun: &'static str,
    /// The kind's prefix.
    pub prefix: &'static str,
    /// Letters that follow it.
    pub length: usize,
    /// Which letters.
    pub letters: Letters,
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
        // as many letters as a power of two, so that each is as likely
        let letters = K::LETTERS.all();
        text.extend(bytes.iter().map(|byte| char::from(letters[usize::from(*byte) % letters.len()])));
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
        if letters.len() == K::LENGTH && letters.bytes().all(|byte| K::LETTERS.all().contains(&byte)) {
            Ok(Self { text: text.into(), kind: PhantomData })
        } else {
            Err(IdError { noun: K::NOUN, prefix: K::PREFIX, length: K::LENGTH, letters: K::LETTERS })
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
    ($($kind:ident $alias:ident $noun:literal $prefix:literal $length:literal $letters:ident;)*) => {$(
        #[doc = concat!("The kind of a ", $noun, " id.")]
        #[derive(Debug)]
        #[expect(clippy::exhaustive_enums, reason = "a kind has no values")]
        pub enum $kind {}
        impl Kind for $kind {
            const NOUN: &'static str = $noun;
            const PREFIX: &'static str = $prefix;
            const LENGTH: usize = $length;
            const LETTERS: Letters = Letters::$letters;
        }
        #[doc = concat!("The id of a ", $noun, ": `", $prefix, "` and ", $length, " of [`Letters::", stringify!($letters), "`].")]
        pub type $alias = Id<$kind>;
    )*};
}

kinds! {
    BoxKind BoxId "box" "cb-" 10 Base32;
    ConsoleSessionKind ConsoleSessionId "console session" "cs_" 16 Base32;
    GrantKind GrantId "agent grant" "ag_" 16 Base32;
    OperationKind OperationId "operation" "op_" 26 Base32;
    SessionKind SessionId "session" "se_" 26 Base32;
    SignInKind SignInId "sign-in" "si_" 16 Base32;
    SignInLinkKind SignInLinkId "sign-in link" "sl_" 16 Base32;
    TokenKind TokenId "token" "dev_" 16 Hex;
    UserKind UserId "user" "us_" 16 Base32;
    WakeKind WakeId "wake" "wk_" 26 Base32;
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
