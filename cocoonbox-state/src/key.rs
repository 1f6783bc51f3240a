//! The user's state key, and what follows from it.

use std::fmt;

use cocoonbox_core::{Entropy, EntropyError};
use cocoonbox_seal::{KEY_LENGTH, Key, SealError, derive};
use sha2::{Digest, Sha256};

use crate::codec::{FormatError, Reader, Writer};
use crate::{ChunkId, Domain, Label, PackId, SaveId};

pub(crate) const SALT: &[u8] = b"cocoonbox-state/v1";
const TEXT_PREFIX: &str = "cbk1-";
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const CHECKSUM: usize = 3;

cocoonbox_core::secret! {
    /// A state key in print: `cbk1-` and 56 letters of `[a-z2-7]`, in groups of eight; an account's has its name before.
    pub struct PrintedKey;
}

/// A text that is no printed state key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Another prefix, length or letters.
    #[error("not a state key: expected cbk1- and 56 letters of a-z, 2-7")]
    Shape,
    /// Letters were mistyped.
    #[error("the state key is mistyped: its checksum does not fit")]
    Checksum,
    /// The name in the store is missing.
    #[error("not an account's key: expected the name in the store, a space, and cbk1- with 56 letters")]
    Account,
    /// A sealed key does not open under this master key for this user.
    #[error("the sealed state key does not open")]
    Sealed(#[source] SealError),
}

/// A user's state key: 32 random bytes from which all other keys follow.
#[derive(Clone, Debug)]
pub struct StateKey(Key);

impl StateKey {
    /// Draws a new key.
    ///
    /// # Errors
    /// As [`Entropy::fill`].
    pub fn generate(entropy: &dyn Entropy) -> Result<Self, EntropyError> {
        let mut bytes = [0; KEY_LENGTH];
        entropy.fill(&mut bytes)?;
        Ok(Self(Key::new(bytes)))
    }

    /// Takes the bytes in.
    pub fn new(bytes: [u8; KEY_LENGTH]) -> Self {
        Self(Key::new(bytes))
    }

    /// Prints the key for safekeeping, with a checksum against mistyping.
    pub fn export(&self) -> PrintedKey {
        let mut bytes = self.0.reveal().to_vec();
        bytes.extend_from_slice(&Sha256::digest(self.0.reveal())[..CHECKSUM]);
        let mut text = String::from(TEXT_PREFIX);
        let (mut bits, mut held, mut letters) = (0_u32, 0, 0);
        for byte in bytes {
            bits = (bits << 8) | u32::from(byte);
            held += 8;
            while held >= 5 {
                held -= 5;
                if letters > 0 && letters % 8 == 0 {
                    text.push('-');
                }
                letters += 1;
                text.push(char::from(ALPHABET[(bits >> held) as usize & 31]));
            }
        }
        PrintedKey::new(text)
    }

    /// Reads a printed key; case, spaces and dashes do not matter.
    ///
    /// # Errors
    /// [`KeyError::Shape`] and [`KeyError::Checksum`].
    pub fn import(text: &str) -> Result<Self, KeyError> {
        if text.len() > 256 {
            return Err(KeyError::Shape);
        }
        let plain: String = text
            .chars()
            .filter(|letter| !letter.is_whitespace() && *letter != '-')
            .map(|letter| letter.to_ascii_lowercase())
            .collect();
        let letters = plain.strip_prefix("cbk1").ok_or(KeyError::Shape)?;
        let mut bytes = Vec::with_capacity(KEY_LENGTH + CHECKSUM);
        let (mut bits, mut held) = (0_u32, 0);
        for letter in letters.bytes() {
            let value = ALPHABET.iter().position(|known| *known == letter).ok_or(KeyError::Shape)?;
            bits = ((bits << 5) | value as u32) & 0xFFFF;
            held += 5;
            if held >= 8 {
                held -= 8;
                bytes.push((bits >> held) as u8);
            }
        }
        if letters.len() != (KEY_LENGTH + CHECKSUM) * 8 / 5 {
            return Err(KeyError::Shape);
        }
        let (key, checksum) = bytes.split_first_chunk::<KEY_LENGTH>().ok_or(KeyError::Shape)?;
        if Sha256::digest(key)[..CHECKSUM] != *checksum {
            return Err(KeyError::Checksum);
        }
        Ok(Self::new(*key))
    }

    /// Returns the keys that a save or restore of one box needs, and no other.
    pub fn box_keys(&self, uid: &Label, domain: &Domain, box_label: &Label) -> BoxKeys {
        let of = |what: &str, parts: &[&str]| {
            let mut info: Vec<&[u8]> =
                vec![what.as_bytes(), uid.as_str().as_bytes(), domain.as_str().as_bytes()];
            info.extend(parts.iter().map(|part| part.as_bytes()));
            derive(&self.0, SALT, &info)
        };
        BoxKeys {
            uid: uid.clone(),
            domain: domain.clone(),
            box_label: box_label.clone(),
            chunk: of("chunk-id", &[]),
            tree: of("tree", &[]),
            pack: of("pack", &[]),
            manifest: of("manifest", &[box_label.as_str()]),
        }
    }

    /// Holds when both are one key; takes the same time whatever they are.
    pub fn is(&self, other: &Self) -> bool {
        use subtle::ConstantTimeEq as _;
        self.0.reveal().ct_eq(other.0.reveal()).into()
    }

    pub(crate) fn reveal(&self) -> &[u8; KEY_LENGTH] {
        self.0.reveal()
    }

    pub(crate) fn catalog_key(&self, uid: &Label) -> Key {
        derive(&self.0, SALT, &[b"catalog", uid.as_str().as_bytes()])
    }
}

/// The keys of one box in one domain: what a guest is given. Neither the state key nor another domain's or another
/// box's manifest keys follow from them.
#[derive(Clone)]
pub struct BoxKeys {
    uid: Label,
    domain: Domain,
    box_label: Label,
    chunk: Key,
    tree: Key,
    pack: Key,
    manifest: Key,
}

impl fmt::Debug for BoxKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoxKeys({} {} {}, redacted)", self.uid, self.domain.as_str(), self.box_label)
    }
}

impl BoxKeys {
    /// Returns whose they are.
    pub const fn uid(&self) -> &Label {
        &self.uid
    }

    /// Returns the domain whose packs they open.
    pub const fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Returns the box whose manifests they open.
    pub const fn box_label(&self) -> &Label {
        &self.box_label
    }

    /// Writes the keys down for a guest; secret.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.byte(1);
        for text in [self.uid.as_str(), self.domain.as_str(), self.box_label.as_str()] {
            writer.bytes(text.as_bytes());
        }
        for key in [&self.chunk, &self.tree, &self.pack, &self.manifest] {
            writer.raw(key.reveal());
        }
        writer.0
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// Other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, "a box's keys");
        let wrong = reader.error();
        if reader.byte()? != 1 {
            return Err(wrong);
        }
        let mut text = || std::str::from_utf8(reader.bytes(64)?).map_err(|_| wrong);
        let (uid, domain, box_label) = (text()?, text()?, text()?);
        let mut key = || reader.array().map(Key::new);
        let keys = Self {
            uid: uid.parse().map_err(|_| wrong)?,
            domain: Domain::parse(domain).map_err(|_| wrong)?,
            box_label: box_label.parse().map_err(|_| wrong)?,
            chunk: key()?,
            tree: key()?,
            pack: key()?,
            manifest: key()?,
        };
        reader.end()?;
        Ok(keys)
    }

    /// Returns the id of a chunk's bytes.
    pub fn chunk_id(&self, bytes: &[u8]) -> ChunkId {
        ChunkId::from_bytes(*blake3::keyed_hash(self.chunk.reveal(), bytes).as_bytes())
    }

    pub(crate) fn tree_hasher(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(self.tree.reveal())
    }

    pub(crate) fn pack_key(&self, id: &PackId) -> Key {
        derive(&self.pack, id.as_bytes(), &[b"one pack"])
    }

    pub(crate) fn manifest_key(&self, id: &SaveId) -> Key {
        derive(&self.manifest, id.as_bytes(), &[b"one manifest"])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn label(text: &str) -> Label {
        text.parse().expect("a label")
    }

    proptest! {
        #[test]
        fn a_printed_key_reads_back(bytes in any::<[u8; 32]>()) {
            let printed = StateKey::new(bytes).export();
            prop_assert_eq!(printed.reveal().len(), 5 + 56 + 6);
            prop_assert_eq!(*StateKey::import(printed.reveal())?.0.reveal(), bytes);
            let spoken = printed.reveal().to_uppercase().replace('-', " ");
            prop_assert_eq!(*StateKey::import(&spoken)?.0.reveal(), bytes);
        }

        #[test]
        fn a_mistyped_letter_is_noticed(bytes in any::<[u8; 32]>(), place in 0..56_usize, other in 0..32_usize) {
            let printed = StateKey::new(bytes).export();
            let mut letters: Vec<u8> = printed.reveal().bytes().filter(|byte| *byte != b'-').collect();
            let place = 4 + place;
            prop_assume!(letters[place] != ALPHABET[other]);
            letters[place] = ALPHABET[other];
            let text = String::from_utf8(letters)?;
            let refused = StateKey::import(&text).err();
            prop_assert_eq!(refused, Some(KeyError::Checksum));
        }

        #[test]
        fn other_texts_are_refused(text in ".{0,80}") {
            prop_assert!(StateKey::import(&text).is_err());
        }
    }

    #[test]
    fn keys_of_other_users_domains_and_boxes_differ() -> Result<(), Box<dyn std::error::Error>> {
        let key = StateKey::new([5; 32]);
        let one = key.box_keys(&label("u"), &Domain::user(), &label("a"));
        let sibling = key.box_keys(&label("u"), &Domain::user(), &label("b"));
        let agent = key.box_keys(&label("u"), &Domain::agent(&label("a"))?, &label("a"));
        let other = key.box_keys(&label("v"), &Domain::user(), &label("a"));
        assert_eq!(one.chunk_id(b"x"), sibling.chunk_id(b"x"));
        assert_ne!(one.manifest.reveal(), sibling.manifest.reveal());
        for apart in [&agent, &other] {
            assert_ne!(one.chunk_id(b"x"), apart.chunk_id(b"x"));
            assert_ne!(one.pack.reveal(), apart.pack.reveal());
            assert_ne!(one.manifest.reveal(), apart.manifest.reveal());
        }
        let again = BoxKeys::from_bytes(&one.to_bytes())?;
        assert_eq!(again.to_bytes(), one.to_bytes());
        assert!(BoxKeys::from_bytes(&one.to_bytes()[1..]).is_err());
        assert!(!format!("{one:?} {key:?} {:?}", key.export()).contains("05"));
        Ok(())
    }
}
