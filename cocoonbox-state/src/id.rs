//! Names of objects and of what is in them.

use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::str::FromStr;

use cocoonbox_core::{BoxId, Entropy, EntropyError, UserId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that is no name of the kind asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {noun}: {rule}")]
#[non_exhaustive]
pub struct NameError {
    /// What the text should have named.
    pub noun: &'static str,
    /// The rule it breaks.
    pub rule: &'static str,
}

/// One part of an object's name, such as a user's or a box's id: 1 to 64 of `[A-Za-z0-9_-]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Box<str>);

impl Label {
    /// Returns the label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Label {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if (1..=64).contains(&text.len()) && text.bytes().all(good) {
            Ok(Self(text.into()))
        } else {
            Err(NameError { noun: "label", rule: "use 1 to 64 of A-Z, a-z, 0-9, _ and -" })
        }
    }
}

impl From<&UserId> for Label {
    fn from(id: &UserId) -> Self {
        Self(id.as_str().into())
    }
}
impl From<&BoxId> for Label {
    fn from(id: &BoxId) -> Self {
        Self(id.as_str().into())
    }
}
impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}
impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Which boxes share chunks, and so the keys of their packs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Domain(Label);

impl Domain {
    /// Returns the domain that a user's own boxes share, `user`.
    pub fn user() -> Self {
        Self(Label("user".into()))
    }

    /// Returns the domain of one agent box alone, `agent-` and the box's label.
    ///
    /// # Errors
    /// The box's label is longer than 58 bytes.
    pub fn agent(box_label: &Label) -> Result<Self, NameError> {
        format!("agent-{box_label}").parse().map(Self)
    }

    /// Returns the domain as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(crate) fn parse(text: &str) -> Result<Self, NameError> {
        text.parse().map(Self)
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

fn to_hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(HEX[usize::from(digit)]))
        .collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| HEX.iter().position(|known| *known == digit);
        *byte = (value(pair[0])? * 16 + value(pair[1])?) as u8;
    }
    Some(bytes)
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $length:literal, $noun:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $length]);

        impl $name {
            /// Makes it from its bytes.
            pub const fn from_bytes(bytes: [u8; $length]) -> Self {
                Self(bytes)
            }
            /// Returns its bytes.
            pub const fn as_bytes(&self) -> &[u8; $length] {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&to_hex(&self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&to_hex(&self.0))
            }
        }
        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                from_hex(text).map(Self).ok_or(NameError { noun: $noun, rule: "use lower-case hex digits, two for each byte" })
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_id! {
    /// The id of a pack: 16 random bytes, 32 hex digits.
    PackId, 16, "pack id"
}
hex_id! {
    /// The id of a save: 16 random bytes, 32 hex digits.
    SaveId, 16, "save id"
}
hex_id! {
    /// The id of a chunk: BLAKE3 of its bytes under the domain's key. It tells nothing to who lacks the key.
    ChunkId, 32, "chunk id"
}
hex_id! {
    /// The hash of a whole tree under the domain's key.
    RootHash, 32, "root hash"
}

impl PackId {
    pub(crate) fn random(entropy: &dyn Entropy) -> Result<Self, EntropyError> {
        let mut bytes = [0; 16];
        entropy.fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

impl SaveId {
    /// Draws a new id.
    ///
    /// # Errors
    /// As [`Entropy::fill`].
    pub fn random(entropy: &dyn Entropy) -> Result<Self, EntropyError> {
        let mut bytes = [0; 16];
        entropy.fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// Takes eight bytes of an id, which are as good as any hash of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 ^= u64::from_le_bytes(*first);
        }
    }
    fn write_usize(&mut self, _length: usize) {}
}

pub(crate) type IdMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the layout of the store")]
pub enum ObjectKind {
    /// Chunks, sealed.
    Pack,
    /// A save's manifest, sealed.
    Save,
    /// The catalog where no database keeps it, sealed.
    Catalog,
}

/// The name of one object: `<uid>/packs/<domain>/<pack id>`, `<uid>/saves/<box>/<save id>` or `<uid>/catalog/<number>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    text: Box<str>,
    kind: ObjectKind,
}

impl ObjectKey {
    /// Names a pack.
    pub fn pack(uid: &Label, domain: &Domain, id: &PackId) -> Self {
        Self { text: format!("{uid}/packs/{}/{id}", domain.as_str()).into(), kind: ObjectKind::Pack }
    }

    /// Names a save's manifest.
    pub fn save(uid: &Label, box_label: &Label, id: &SaveId) -> Self {
        Self { text: format!("{uid}/saves/{box_label}/{id}").into(), kind: ObjectKind::Save }
    }

    pub(crate) fn catalog(uid: &Label, number: u64) -> Self {
        Self { text: format!("{uid}/catalog/{number:016x}").into(), kind: ObjectKind::Catalog }
    }

    /// Returns what the object is.
    pub const fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Returns the whole name.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the last part of the name.
    pub fn last(&self) -> &str {
        self.text.rsplit('/').next().unwrap_or_default()
    }
}

impl FromStr for ObjectKey {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError { noun: "object key", rule: "use uid/packs/domain/id or uid/saves/box/id" };
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [uid, "packs", domain, id] => {
                Ok(Self::pack(&uid.parse()?, &Domain::parse(domain)?, &id.parse().map_err(|_| wrong())?))
            }
            [uid, "saves", label, id] => {
                Ok(Self::save(&uid.parse()?, &label.parse()?, &id.parse().map_err(|_| wrong())?))
            }
            [uid, "catalog", number] => {
                let bytes: [u8; 8] = from_hex(number).ok_or_else(wrong)?;
                Ok(Self::catalog(&uid.parse()?, u64::from_be_bytes(bytes)))
            }
            _ => Err(wrong()),
        }
    }
}
impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// A folder of the store, for listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

impl Prefix {
    /// Names a domain's packs.
    pub fn packs(uid: &Label, domain: &Domain) -> Self {
        Self(format!("{uid}/packs/{}/", domain.as_str()))
    }
    /// Names a box's saves.
    pub fn saves(uid: &Label, box_label: &Label) -> Self {
        Self(format!("{uid}/saves/{box_label}/"))
    }
    /// Names all packs of a user.
    pub fn all_packs(uid: &Label) -> Self {
        Self(format!("{uid}/packs/"))
    }
    /// Names all saves of a user.
    pub fn all_saves(uid: &Label) -> Self {
        Self(format!("{uid}/saves/"))
    }
    /// Names the catalog of a user.
    pub fn catalog(uid: &Label) -> Self {
        Self(format!("{uid}/catalog/"))
    }
    /// Returns the prefix as text; it ends in `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_others_are_refused() -> Result<(), NameError> {
        let uid: Label = "us_abc".parse()?;
        for key in [
            ObjectKey::pack(&uid, &Domain::agent(&"cb-x".parse()?)?, &PackId::from_bytes([7; 16])),
            ObjectKey::save(&uid, &"cb-x".parse()?, &SaveId::from_bytes([255; 16])),
            ObjectKey::catalog(&uid, 17),
        ] {
            assert_eq!(key.as_str().parse::<ObjectKey>()?, key);
        }
        for bad in [
            "",
            "u/flows/x/y",
            "u/packs/../00",
            "u/packs/user/zz",
            "/packs/user/00",
            "u/saves/b/00/x",
            "u/catalog/1",
        ] {
            assert!(bad.parse::<ObjectKey>().is_err(), "{bad}");
        }
        Ok(())
    }
}
