//! What a user allowed an outside agent, and the tokens that follow from it.

use std::time::Duration;

use cocoonbox_core::{GrantId, Timestamp, UserId};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{AgentToken, ClientId, RefreshToken, TokenHash};

/// How long an access token works.
pub const ACCESS_LIFE: Duration = Duration::from_hours(1);
/// The most living grants of one user.
pub const GRANTS_MAX: usize = 64;
/// How many days a grant may be given for.
pub const GRANT_DAYS: [u32; 4] = [1, 7, 30, 90];
/// The most boxes a grant may be given for.
pub const GRANT_BOXES_MAX: u32 = 16;
/// How long an ended grant is remembered, for calls that were let in just before.
pub(crate) const ENDED_FOR: Duration = Duration::from_mins(10);

/// The bytes of a refresh token: the grant's letters (10 bytes of five bits each), its generation, and a seal.
const GRANT_BYTES: usize = 10;
const GENERATION_BYTES: usize = 6;
const SEAL_BYTES: usize = 16;

cocoonbox_core::secret! {
    /// The key that refresh tokens and access tokens are derived with: 64 hex digits.
    pub struct OauthKey;
}

/// What a user allowed an outside agent, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct GrantRecord {
    /// Names it; no secret.
    pub id: GrantId,
    /// Who gave it.
    pub user: UserId,
    /// Whom it was given to.
    pub client: ClientId,
    /// What the client called itself then.
    pub client_name: String,
    /// The host that was verified to be the client's; none for one that registered itself.
    pub client_host: Option<String>,
    /// The resource that its tokens are for.
    pub resource: String,
    /// How many boxes it may have made.
    pub max_boxes: u32,
    /// How many of them may run at once.
    pub max_running: u32,
    /// When the user allowed it.
    pub approved_at: Timestamp,
    /// From when on it is over.
    pub expires_at: Timestamp,
    /// When it was last used, to the minute.
    pub used_at: Option<Timestamp>,
    /// Whether the user has seen it in the list.
    pub seen: bool,
    /// The number of the newest pair of tokens; the first is 1.
    pub generation: i64,
    /// When it ended before its time; none while it lives.
    pub ended_at: Option<Timestamp>,
}

impl GrantRecord {
    /// Returns whether it still stands.
    pub fn lives(&self, now: Timestamp) -> bool {
        self.ended_at.is_none() && now < self.expires_at
    }

    /// Returns when an access token made now ends.
    pub fn access_until(&self, now: Timestamp) -> Timestamp {
        now.plus(ACCESS_LIFE).min(self.expires_at)
    }
}

/// The one access token of a grant's generation, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and kits build it whole")]
pub struct AccessRecord {
    /// Whose it is.
    pub grant: GrantId,
    /// Its generation.
    pub generation: i64,
    /// All that is kept of it.
    pub hash: TokenHash,
    /// From when on it is refused.
    pub expires_at: Timestamp,
}

/// What a refresh token says once its seal was found true.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Presented {
    /// Whose it is.
    pub grant: GrantId,
    /// Its generation.
    pub generation: i64,
}

/// What a refresh token is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers decide for each")]
pub enum Worth {
    /// It is the newest: it is exchanged for the next generation.
    Newest,
    /// It is the one before, and its successor was never shown: the answer may have been lost, so it is given again.
    Again,
    /// Its successor was shown already: two hold tokens of one grant, and the grant ends.
    Replay,
    /// It is from a time that the store does not know, as after a backup was put back.
    Unknown,
}

impl Presented {
    /// Decides what it is worth to a grant whose newest generation is `newest`.
    pub const fn worth(&self, newest: i64) -> Worth {
        if self.generation == newest {
            Worth::Newest
        } else if self.generation > newest {
            Worth::Unknown
        } else if self.generation == newest - 1 {
            Worth::Again
        } else {
            Worth::Replay
        }
    }
}

impl OauthKey {
    /// Derives the refresh token of a generation. The same generation always has the same, so that an answer that was
    /// lost can be given again although no token is stored.
    pub fn refresh(&self, grant: &GrantId, generation: i64) -> RefreshToken {
        let mut bytes = Vec::with_capacity(GRANT_BYTES + GENERATION_BYTES + SEAL_BYTES);
        bytes.extend(letters(grant));
        bytes.extend(&generation.to_be_bytes()[8 - GENERATION_BYTES..]);
        let seal = self.seal("refresh", &bytes);
        bytes.extend(&seal[..SEAL_BYTES]);
        RefreshToken::new(format!("cbr_{}", hex(&bytes)))
    }

    /// Derives the access token of a generation.
    pub fn access(&self, grant: &GrantId, generation: i64) -> AgentToken {
        let mut bytes = letters(grant).to_vec();
        bytes.extend(generation.to_be_bytes());
        AgentToken::new(format!("cba_{}", hex(&self.seal("access", &bytes))))
    }

    /// Reads a refresh token; none when it was not derived with this key.
    pub fn open(&self, token: &RefreshToken) -> Option<Presented> {
        let bytes = unhex(token.reveal().strip_prefix("cbr_")?)?;
        let (named, shown) = bytes.split_at_checked(GRANT_BYTES + GENERATION_BYTES)?;
        let mut mac = self.mac("refresh");
        mac.update(named);
        // in time that does not tell where they differ
        mac.verify_truncated_left(shown).ok()?;
        let (grant, generation) = named.split_at(GRANT_BYTES);
        let mut wide = [0_u8; 8];
        wide[8 - GENERATION_BYTES..].copy_from_slice(generation);
        Some(Presented { grant: unletters(grant.try_into().ok()?)?, generation: i64::from_be_bytes(wide) })
    }

    fn mac(&self, purpose: &str) -> Hmac<Sha256> {
        // HMAC takes keys of any length
        #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(self.reveal().as_bytes()).expect("any key");
        mac.update(b"cocoonbox ");
        mac.update(purpose.as_bytes());
        mac.update(b"|");
        mac
    }

    fn seal(&self, purpose: &str, bytes: &[u8]) -> [u8; 32] {
        let mut mac = self.mac(purpose);
        mac.update(bytes);
        mac.finalize().into_bytes().into()
    }
}

/// The letters of an id, five bits each.
fn letters(grant: &GrantId) -> [u8; GRANT_BYTES] {
    let text = grant.as_str().rsplit('_').next().unwrap_or_default();
    let mut bits: u128 = 0;
    for letter in text.bytes() {
        let value = if letter.is_ascii_digit() { letter - b'2' + 26 } else { letter - b'a' };
        bits = bits << 5 | u128::from(value);
    }
    let mut bytes = [0; GRANT_BYTES];
    bytes.copy_from_slice(&bits.to_be_bytes()[16 - GRANT_BYTES..]);
    bytes
}

fn unletters(bytes: [u8; GRANT_BYTES]) -> Option<GrantId> {
    let mut wide = [0_u8; 16];
    wide[16 - GRANT_BYTES..].copy_from_slice(&bytes);
    let bits = u128::from_be_bytes(wide);
    let letters = (0..16).rev().map(|place| {
        let value = (bits >> (place * 5) & 31) as u8;
        char::from(if value < 26 { b'a' + value } else { b'2' + value - 26 })
    });
    format!("ag_{}", letters.collect::<String>()).parse().ok()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes();
    (bytes.len() == 64).then_some(())?;
    bytes.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::{SeededEntropy, random_secret};
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u64) -> OauthKey {
        OauthKey::new(random_secret(&SeededEntropy::new(seed), "").expect("entropy"))
    }

    fn grant(seed: u64) -> GrantId {
        GrantId::random(&SeededEntropy::new(seed)).expect("entropy")
    }

    #[test]
    fn a_refresh_token_reads_back_and_no_other_key_opens_it() {
        let (key, other) = (key(1), key(2));
        let token = key.refresh(&grant(3), 7);
        assert_eq!(key.open(&token), Some(Presented { grant: grant(3), generation: 7 }));
        assert!(RefreshToken::parse(token.reveal()).is_ok(), "the shape of every secret");
        assert_eq!(other.open(&token), None);
        assert_eq!(token.reveal(), key.refresh(&grant(3), 7).reveal());
        assert_ne!(token.reveal(), key.refresh(&grant(3), 8).reveal());
        assert_ne!(key.access(&grant(3), 7).reveal()[4..], token.reveal()[4..]);
        assert!(AgentToken::parse(key.access(&grant(3), 7).reveal()).is_ok());
    }

    #[test]
    fn the_one_before_is_answered_again_and_an_older_one_is_a_replay() {
        for (shown, newest, worth) in [
            (1, 1, Worth::Newest),
            (1, 2, Worth::Again),
            (1, 3, Worth::Replay),
            (2, 900, Worth::Replay),
            (3, 2, Worth::Unknown),
        ] {
            assert_eq!(
                Presented { grant: grant(1), generation: shown }.worth(newest),
                worth,
                "{shown} of {newest}"
            );
        }
    }

    proptest! {
        #[test]
        fn every_grant_and_generation_comes_back(seed: u64, generation in 1_i64..1 << 47) {
            let (key, grant) = (key(1), grant(seed));
            prop_assert_eq!(key.open(&key.refresh(&grant, generation)), Some(Presented { grant, generation }));
        }

        #[test]
        fn one_flipped_bit_is_no_token(place in 0_usize..64, flip in 1_u8..16) {
            let key = key(1);
            let token = key.refresh(&grant(1), 1);
            let mut text = token.reveal().as_bytes().to_vec();
            let digit = (text[4 + place] as char).to_digit(16).unwrap() as u8 ^ flip;
            text[4 + place] = char::from_digit(digit.into(), 16).unwrap() as u8;
            prop_assert_eq!(key.open(&RefreshToken::new(String::from_utf8(text).unwrap())), None);
        }
    }
}
