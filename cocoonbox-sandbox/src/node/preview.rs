//! Preview URLs: a signed word that opens one port of one sandbox for a while.

use std::num::NonZeroU16;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cocoonbox_core::backend::SandboxId;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::Node;
use super::refusal::{Code, Refusal};

/// How long a preview lives when nothing else says so.
const DEFAULT_LIFE: Duration = Duration::from_hours(1);
/// The most bytes of a signed word.
const MAX_TOKEN: usize = 1024;

cocoonbox_core::secret! {
    /// The key that preview URLs are signed with; nodes that serve each other's previews share it.
    pub struct PreviewKey;
}

/// Where previews are served, and what signs them.
#[derive(Debug)]
pub(super) struct Previews {
    /// What URLs begin with, no slash at its end.
    pub(super) base: String,
    pub(super) key: PreviewKey,
}

/// What a preview opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Preview {
    pub(crate) id: SandboxId,
    pub(crate) port: NonZeroU16,
    owner: String,
    exp: i64,
}

fn mac(key: &PreviewKey, payload: &str) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key.reveal().as_bytes()).expect("any key is one");
    mac.update(payload.as_bytes());
    mac
}

impl Preview {
    fn sign(&self, key: &PreviewKey) -> String {
        let payload = URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default());
        let signature = URL_SAFE_NO_PAD.encode(mac(key, &payload).finalize().into_bytes());
        format!("{payload}.{signature}")
    }

    /// Reads a signed word; nothing where it is none of this key's.
    fn verify(token: &str, key: &PreviewKey) -> Option<Self> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let (payload, signature) = token.split_once('.')?;
        mac(key, payload).verify_slice(&URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
    }
}

#[cfg(fuzzing)]
pub(crate) fn fuzz_token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let key = PreviewKey::new("k".repeat(32));
    assert!(Preview::verify(text, &key).is_none(), "nobody guesses a signature");
    let payload = text.split('.').next().unwrap_or_default();
    let signed = format!("{payload}.{}", URL_SAFE_NO_PAD.encode(mac(&key, payload).finalize().into_bytes()));
    if let Some(preview) = Preview::verify(&signed, &key) {
        assert_eq!(Preview::verify(&preview.sign(&key), &key), Some(preview));
    }
}

impl Node {
    /// Mints the URL of a port; it lives no longer than the lease.
    pub(crate) async fn mint_preview(
        &self,
        id: &SandboxId,
        port: NonZeroU16,
        asked: Option<Duration>,
    ) -> Result<String, Refusal> {
        let seen = self.see(id).await?;
        let previews = self.0.previews.as_ref();
        let previews = previews.ok_or_else(|| Refusal::unsupported("this node serves no previews"))?;
        let now = self.0.clock.now();
        let left = seen.deadline.filter(|_| !seen.is_archived()).map(|deadline| deadline.since(now));
        let life = match (asked, left) {
            (Some(asked), Some(left)) => asked.min(left),
            (Some(asked), None) => asked,
            (None, Some(left)) => left,
            (None, None) => DEFAULT_LIFE,
        };
        let exp = now.plus(life).millis().div_euclid(1000);
        let preview = Preview { id: id.clone(), port, owner: self.0.address.clone(), exp };
        Ok(format!("{}/p/{}/", previews.base, preview.sign(&previews.key)))
    }

    /// Returns what a signed word opens now.
    pub(crate) fn open_preview(&self, token: &str) -> Result<Preview, Refusal> {
        let refused = || Refusal::new(Code::Forbidden, "this preview is over, or never was");
        let previews = self.0.previews.as_ref().ok_or_else(refused)?;
        let preview = Preview::verify(token, &previews.key).ok_or_else(refused)?;
        let over = self.0.clock.now().millis().div_euclid(1000) >= preview.exp;
        if over || preview.owner != self.0.address { Err(refused()) } else { Ok(preview) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> PreviewKey {
        PreviewKey::new("k".repeat(32))
    }

    #[test]
    fn a_word_opens_what_was_signed_and_nothing_else() {
        let preview =
            Preview { id: "sb_a".parse().unwrap(), port: NonZeroU16::MIN, owner: "n".into(), exp: 5 };
        let token = preview.sign(&key());
        assert_eq!(Preview::verify(&token, &key()), Some(preview.clone()));
        assert_eq!(Preview::verify(&token, &PreviewKey::new("l".repeat(32))), None);
        let other = Preview { port: NonZeroU16::MAX, ..preview }.sign(&key());
        let (payload, _) = other.split_once('.').unwrap();
        let (_, signature) = token.split_once('.').unwrap();
        for forged in [
            format!("{payload}.{signature}"),
            format!("{token}A"),
            token.replace('.', ""),
            String::new(),
            ".".to_owned(),
            format!("{}{token}", "A".repeat(MAX_TOKEN)),
        ] {
            assert_eq!(Preview::verify(&forged, &key()), None, "{forged:.60}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_a_word(text in ".{0,200}") {
            prop_assert_eq!(Preview::verify(&text, &key()), None);
        }
    }
}
