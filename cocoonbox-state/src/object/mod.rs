//! Where sealed objects are kept.

mod error;
#[cfg(any(test, feature = "testkit"))]
mod faulty;
mod folder;
mod grant;
mod memory;
mod presign;
#[cfg(feature = "s3")]
mod s3;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_core::Timestamp;

use crate::{ObjectKey, Prefix};

pub use error::ObjectError;
#[cfg(any(test, feature = "testkit"))]
pub use faulty::{FaultyObjects, ObjectCall, ObjectFault};
pub use folder::FolderObjects;
pub use grant::{GrantError, GrantedFetch, GrantedUpload, Grants, HttpAnswer, HttpRequest, HttpSend};
pub use memory::MemoryObjects;
pub use presign::{PresignedMethod, UrlError, UrlSigner, VerifiedRequest};

#[cfg(feature = "s3")]
pub use s3::{S3Config, S3Objects, S3Secret};

/// The longest that a presigned URL lives.
pub const URL_LIFETIME_MAX: Duration = Duration::from_mins(15);

/// Which bytes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the ranges that HTTP has")]
pub enum ByteRange {
    /// All.
    Whole,
    /// From start to end, which must be in the object.
    Span(Range<u64>),
    /// The last so many, or all when it is shorter.
    Tail(u64),
}

/// Bytes of an object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fetched {
    /// The bytes asked for.
    pub bytes: Bytes,
    /// How long the whole object is.
    pub length: u64,
}

impl Fetched {
    /// Puts bytes and the object's length together.
    pub const fn new(bytes: Bytes, length: u64) -> Self {
        Self { bytes, length }
    }

    /// Cuts a range out of a whole object.
    pub(crate) fn of(whole: &Bytes, range: &ByteRange) -> Result<Self, ObjectError> {
        let length = whole.len() as u64;
        let span = match range {
            ByteRange::Whole => 0..length,
            ByteRange::Span(span) if span.start <= span.end && span.end <= length => span.clone(),
            ByteRange::Span(_) => return Err(ObjectError::OutOfRange),
            ByteRange::Tail(most) => length.saturating_sub(*most)..length,
        };
        Ok(Self::new(whole.slice(span.start as usize..span.end as usize), length))
    }
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Its name.
    pub key: ObjectKey,
    /// How long it is.
    pub length: u64,
    /// When it was put, by the store's clock.
    pub modified: Timestamp,
}

impl Listed {
    /// Describes an object.
    pub const fn new(key: ObjectKey, length: u64, modified: Timestamp) -> Self {
        Self { key, length, modified }
    }
}

/// Reads objects.
///
/// # Behavior
/// - An object is given as it was put or not at all; what comes back is not trusted, it is opened.
/// - What is not there is [`ObjectError::NotFound`]; a span that is not in the object is [`ObjectError::OutOfRange`].
#[async_trait]
pub trait Fetch: fmt::Debug + Send + Sync + 'static {
    /// Returns bytes of an object.
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Fetched, ObjectError>;
}

/// Puts objects: all that a save needs of a store.
///
/// # Behavior
/// - An object is seen whole or not at all, and is durable once `put` returned.
/// - Nothing is overwritten: a name that is taken is [`ObjectError::AlreadyExists`].
#[async_trait]
pub trait Upload: fmt::Debug + Send + Sync + 'static {
    /// Puts an object under a name that is free.
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), ObjectError>;
}

/// A store of objects, for who holds the keys.
///
/// # Behavior
/// - As [`Fetch`] and [`Upload`]; of several that put one name at once, one succeeds.
/// - A listing holds every object that was put before it and not deleted, in the order of names; foreign names are left
///   out. `modified` is the store's clock, which may be off.
/// - Deleting what is not there succeeds.
#[async_trait]
pub trait Objects: Fetch + Upload {
    /// Returns how long an object is and when it was put; nothing when it is not there.
    async fn head(&self, key: &ObjectKey) -> Result<Option<Listed>, ObjectError>;
    /// Returns all objects under a prefix.
    async fn list(&self, prefix: &Prefix) -> Result<Vec<Listed>, ObjectError>;
    /// Deletes an object.
    async fn delete(&self, key: &ObjectKey) -> Result<(), ObjectError>;
}

/// An object that may be put through a URL: nothing else fits it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutGrant {
    /// Its name.
    pub key: ObjectKey,
    /// Its length.
    pub length: u64,
    /// The SHA-256 of its bytes.
    pub sha256: [u8; 32],
}

impl PutGrant {
    /// Describes an object that is ready to be put.
    pub fn new(key: ObjectKey, bytes: &[u8]) -> Self {
        use sha2::{Digest, Sha256};
        Self { key, length: bytes.len() as u64, sha256: Sha256::digest(bytes).into() }
    }
}

cocoonbox_core::secret! {
    /// A URL that whoever has it may use; relative for a store that the edge serves.
    pub struct PresignedUrl;
}

/// What may be done with a URL, and what must be sent with it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Presigned {
    /// The URL.
    pub url: PresignedUrl,
    /// Headers that were signed and must be sent as they are.
    pub headers: Vec<(String, String)>,
}

impl Presigned {
    /// Puts a URL and what must be sent with it together.
    pub const fn new(url: PresignedUrl, headers: Vec<(String, String)>) -> Self {
        Self { url, headers }
    }
}

/// Makes URLs for one object each.
///
/// # Behavior
/// - A URL is good for its method, its object, its length and its checksum, for `lifetime`, at most 15 minutes, and a
///   put through it overwrites nothing where the store can be told so.
#[async_trait]
pub trait Presign: fmt::Debug + Send + Sync + 'static {
    /// Makes a URL to put an object.
    async fn presign_put(&self, grant: &PutGrant, lifetime: Duration) -> Result<Presigned, ObjectError>;
    /// Makes a URL to get an object.
    async fn presign_get(&self, key: &ObjectKey, lifetime: Duration) -> Result<Presigned, ObjectError>;
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: Fetch + ?Sized> Fetch for Arc<T> {
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Fetched, ObjectError> {
        (**self).get(key, range).await
    }
}
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: Upload + ?Sized> Upload for Arc<T> {
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), ObjectError> {
        (**self).put(key, bytes).await
    }
}
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: Objects + ?Sized> Objects for Arc<T> {
    async fn head(&self, key: &ObjectKey) -> Result<Option<Listed>, ObjectError> {
        (**self).head(key).await
    }
    async fn list(&self, prefix: &Prefix) -> Result<Vec<Listed>, ObjectError> {
        (**self).list(prefix).await
    }
    async fn delete(&self, key: &ObjectKey) -> Result<(), ObjectError> {
        (**self).delete(key).await
    }
}
