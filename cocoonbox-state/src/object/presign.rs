use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cocoonbox_core::{Clock, Retry, Timestamp};
use cocoonbox_seal::{Key, derive};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::{ObjectError, Presign, Presigned, PresignedUrl, PutGrant, URL_LIFETIME_MAX};
use crate::{ObjectKey, ObjectKind};

/// The longest URL that is looked at.
const URL_MAX: usize = 1024;

/// Why a presigned URL is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It is none of ours.
    #[error("not a presigned URL")]
    Shape,
    /// It was changed, or is for another method.
    #[error("the URL's signature does not fit")]
    Signature,
    /// Its time is over.
    #[error("the URL is over")]
    Expired,
    /// What was sent is not what was signed.
    #[error("the bytes are not those that the URL is for")]
    Bytes,
}

impl UrlError {
    /// Returns what a caller may do next: ask for another URL, or nothing.
    pub const fn retry(self) -> Retry {
        match self {
            Self::Expired => Retry::Reread,
            Self::Shape | Self::Signature | Self::Bytes => Retry::Never,
        }
    }
}

/// What a presigned URL is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PresignedMethod {
    /// Reading an object.
    Get,
    /// Putting an object.
    Put,
}

impl PresignedMethod {
    /// Returns the HTTP method.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
        }
    }
}

/// A request whose URL was verified: only the check makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedRequest {
    key: ObjectKey,
    put: Option<(u64, [u8; 32])>,
}

impl VerifiedRequest {
    /// Returns the object.
    pub const fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Returns how long the body of a put is; nothing for a get.
    pub fn length(&self) -> Option<u64> {
        self.put.map(|put| put.0)
    }

    /// Checks the body of a put; it is only then to be handed to the store.
    ///
    /// # Errors
    /// [`UrlError::Bytes`].
    pub fn check_body(&self, body: &[u8]) -> Result<(), UrlError> {
        match self.put {
            Some((length, sha256)) if body.len() as u64 == length && Sha256::digest(body)[..] == sha256 => {
                Ok(())
            }
            _ => Err(UrlError::Bytes),
        }
    }
}

/// Signs and verifies URLs of a store that the edge serves: `/cocoonbox.state/KEY?…` with the expiry, a put's length and SHA-256,
/// and an HMAC-SHA256 over all of it and the method.
#[derive(Debug)]
pub struct UrlSigner {
    key: Key,
    clock: Arc<dyn Clock>,
}

const PATH: &str = "/cocoonbox.state/";

impl UrlSigner {
    /// Makes a signer from the edge's key; the signing key is derived from it.
    pub fn new(key: &Key, clock: Arc<dyn Clock>) -> Self {
        Self { key: derive(key, b"cocoonbox-state/v1", &[b"presigned-url"]), clock }
    }

    fn mac(&self, method: PresignedMethod, unsigned: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.reveal()).expect("any length is a key");
        mac.update(method.as_str().as_bytes());
        mac.update(b" ");
        mac.update(unsigned.as_bytes());
        mac
    }

    fn sign(
        &self,
        method: PresignedMethod,
        key: &ObjectKey,
        put: Option<&PutGrant>,
        lifetime: Duration,
    ) -> Presigned {
        let expires = self.clock.now().plus(lifetime.min(URL_LIFETIME_MAX)).millis() / 1000;
        let mut url = format!("{PATH}{key}?e={expires}");
        if let Some(put) = put {
            let _ = write!(url, "&l={}&h={}", put.length, URL_SAFE_NO_PAD.encode(put.sha256));
        }
        let signature = URL_SAFE_NO_PAD.encode(self.mac(method, &url).finalize().into_bytes());
        url.push_str("&s=");
        url.push_str(&signature);
        Presigned { url: PresignedUrl::new(url), headers: Vec::new() }
    }

    /// Verifies a request's path and query.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn verify(&self, method: PresignedMethod, url: &str) -> Result<VerifiedRequest, UrlError> {
        if url.len() > URL_MAX {
            return Err(UrlError::Shape);
        }
        let (unsigned, signature) = url.rsplit_once("&s=").ok_or(UrlError::Shape)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| UrlError::Shape)?;
        self.mac(method, unsigned).verify_slice(&signature).map_err(|_| UrlError::Signature)?;
        let (path, query) = unsigned.split_once('?').ok_or(UrlError::Shape)?;
        let key: ObjectKey =
            path.strip_prefix(PATH).and_then(|key| key.parse().ok()).ok_or(UrlError::Shape)?;
        let mut parts = query.split('&');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name));
        let number =
            |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok()).ok_or(UrlError::Shape);
        let expires = number(part("e="))?;
        let put = match method {
            PresignedMethod::Get => None,
            PresignedMethod::Put => {
                let length = number(part("l="))?;
                let hash =
                    part("h=").and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()).ok_or(UrlError::Shape)?;
                Some((u64::from(length), hash.try_into().map_err(|_| UrlError::Shape)?))
            }
        };
        let now = self.clock.now();
        let expires = Timestamp::from_millis(i64::from(expires) * 1000);
        // one that is over, and one whose end lies further off than any may
        if now >= expires || expires.since(now) > URL_LIFETIME_MAX {
            return Err(UrlError::Expired);
        }
        Ok(VerifiedRequest { key, put })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Presign for UrlSigner {
    async fn presign_put(&self, grant: &PutGrant, lifetime: Duration) -> Result<Presigned, ObjectError> {
        if grant.key.kind() == ObjectKind::Catalog {
            return Err(ObjectError::Denied);
        }
        Ok(self.sign(PresignedMethod::Put, &grant.key, Some(grant), lifetime))
    }

    async fn presign_get(&self, key: &ObjectKey, lifetime: Duration) -> Result<Presigned, ObjectError> {
        Ok(self.sign(PresignedMethod::Get, key, None, lifetime))
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::ManualClock;

    use super::*;
    use crate::SaveId;

    #[tokio::test]
    async fn a_url_is_good_for_one_thing_alone() -> Result<(), Box<dyn std::error::Error>> {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
        let signer = UrlSigner::new(&Key::new([1; 32]), Arc::<ManualClock>::clone(&clock));
        let key = ObjectKey::save(&"us_a".parse()?, &"cb-a".parse()?, &SaveId::from_bytes([1; 16]));
        let grant = PutGrant::new(key.clone(), b"bytes");
        let put = signer.presign_put(&grant, Duration::from_hours(1)).await?;
        let url = put.url.reveal();
        let verified = signer.verify(PresignedMethod::Put, url)?;
        assert_eq!((verified.key(), verified.length()), (&key, Some(5)));
        assert_eq!(verified.check_body(b"bytes"), Ok(()));
        for other in [&b"bytez"[..], b"byte", b"bytes!", b""] {
            assert_eq!(verified.check_body(other), Err(UrlError::Bytes));
        }
        assert_eq!(signer.verify(PresignedMethod::Get, url), Err(UrlError::Signature));
        for (from, to) in [("l=5", "l=6"), ("us_a", "us_b"), ("e=1", "e=2"), ("h=", "h=A")] {
            assert!(signer.verify(PresignedMethod::Put, &url.replacen(from, to, 1)).is_err(), "{from}");
        }
        let other = UrlSigner::new(&Key::new([2; 32]), Arc::<ManualClock>::clone(&clock));
        assert_eq!(other.verify(PresignedMethod::Put, url), Err(UrlError::Signature));
        clock.advance(URL_LIFETIME_MAX);
        assert_eq!(signer.verify(PresignedMethod::Put, url), Err(UrlError::Expired));
        assert!(!format!("{put:?}").contains("us_a"));
        Ok(())
    }
}
