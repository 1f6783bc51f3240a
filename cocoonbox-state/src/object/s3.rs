use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cocoonbox_core::Timestamp;
use futures::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use rusty_s3::actions::{GetObject, PutObject, S3Action};
use rusty_s3::{Bucket, Credentials, UrlStyle};

use super::{
    ByteRange, Fetch, Fetched, Listed, ObjectError, Objects, Presign, Presigned, PresignedUrl, PutGrant,
    URL_LIFETIME_MAX, Upload,
};
use crate::{ObjectKey, ObjectKind, Prefix};

cocoonbox_core::secret! {
    /// The secret key of an S3 account.
    pub struct S3Secret;
}

/// Where a bucket is, and who may use it.
#[derive(Debug)]
#[non_exhaustive]
pub struct S3Config {
    /// The server, such as `https://s3.example.org`; buckets are named in the path.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// The region; any for servers that have none.
    pub region: String,
    /// The public half of the account.
    pub access_key: String,
    /// The secret half.
    pub secret: S3Secret,
}

impl S3Config {
    /// Describes a bucket in a region of any name.
    pub fn new(endpoint: String, bucket: String, access_key: String, secret: S3Secret) -> Self {
        Self { endpoint, bucket, region: "us-east-1".to_owned(), access_key, secret }
    }
}

/// A store in a bucket that speaks S3.
///
/// An object is put in one request: a put in parts cannot be conditional on a free name, and no pack is over 33 MiB.
#[derive(Clone)]
pub struct S3Objects {
    store: Arc<AmazonS3>,
    signing: Arc<(Bucket, Credentials)>,
}

impl std::fmt::Debug for S3Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S3Objects({})", self.signing.0.name())
    }
}

impl S3Objects {
    /// Opens a bucket; nothing is sent yet.
    ///
    /// # Errors
    /// An endpoint or bucket that is none.
    pub fn open(config: &S3Config) -> Result<Self, ObjectError> {
        let store = AmazonS3Builder::new()
            .with_endpoint(&config.endpoint)
            .with_bucket_name(&config.bucket)
            .with_region(&config.region)
            .with_access_key_id(&config.access_key)
            .with_secret_access_key(config.secret.reveal())
            .with_allow_http(config.endpoint.starts_with("http://"))
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .build()
            .map_err(ObjectError::unavailable)?;
        let endpoint = config.endpoint.parse().map_err(|_| ObjectError::Misbehaved { what: "no URL" })?;
        let bucket = Bucket::new(endpoint, UrlStyle::Path, config.bucket.clone(), config.region.clone())
            .map_err(ObjectError::unavailable)?;
        let credentials = Credentials::new(config.access_key.clone(), config.secret.reveal().to_owned());
        Ok(Self { store: Arc::new(store), signing: Arc::new((bucket, credentials)) })
    }
}

fn path(key: &ObjectKey) -> Path {
    Path::from(key.as_str())
}

fn error(source: object_store::Error) -> ObjectError {
    match source {
        object_store::Error::NotFound { .. } => ObjectError::NotFound,
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
            ObjectError::AlreadyExists
        }
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            ObjectError::Denied
        }
        // its text may hold what the server sent and a URL
        other if other.to_string().contains("416") => ObjectError::OutOfRange,
        other => ObjectError::unavailable(other),
    }
}

fn listed(meta: &object_store::ObjectMeta) -> Option<Listed> {
    let key = meta.location.as_ref().parse().ok()?;
    Some(Listed::new(key, meta.size, Timestamp::from_millis(meta.last_modified.timestamp_millis())))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Fetch for S3Objects {
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Fetched, ObjectError> {
        let wanted = match &range {
            ByteRange::Whole => None,
            ByteRange::Span(span) => Some(GetRange::Bounded(span.clone())),
            ByteRange::Tail(most) => Some(GetRange::Suffix(*most)),
        };
        let result = match self
            .store
            .get_opts(&path(key), GetOptions { range: wanted, ..GetOptions::default() })
            .await
        {
            Ok(result) => result,
            // a range beyond the end is told in several ways
            Err(source) => {
                // some servers say 200 with a part of an object, which the client refuses with an error that has no
                // variant of its own, and 416 to a tail that is longer than the object
                let text = format!("{source:?}");
                let tail = matches!(range, ByteRange::Tail(_)) && text.contains("416");
                if range != ByteRange::Whole && (tail || text.contains("NotPartial")) {
                    let whole =
                        self.store.get(&path(key)).await.map_err(error)?.bytes().await.map_err(error)?;
                    return Fetched::of(&whole, &range);
                }
                let failed = error(source);
                if let (ByteRange::Span(span), ObjectError::Unavailable { .. }) = (&range, &failed)
                    && self.head(key).await?.is_some_and(|head| head.length < span.end)
                {
                    return Err(ObjectError::OutOfRange);
                }
                return Err(failed);
            }
        };
        let length = result.meta.size;
        let bytes = result.bytes().await.map_err(error)?;
        if let ByteRange::Span(span) = range
            && bytes.len() as u64 != span.end - span.start
        {
            return Err(ObjectError::OutOfRange);
        }
        Ok(Fetched::new(bytes, length))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for S3Objects {
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), ObjectError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        self.store.put_opts(&path(key), bytes.into(), options).await.map(|_| ()).map_err(error)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Objects for S3Objects {
    async fn head(&self, key: &ObjectKey) -> Result<Option<Listed>, ObjectError> {
        match self.store.head(&path(key)).await {
            Ok(meta) => Ok(listed(&meta)),
            Err(source) => match error(source) {
                ObjectError::NotFound => Ok(None),
                other => Err(other),
            },
        }
    }

    async fn list(&self, prefix: &Prefix) -> Result<Vec<Listed>, ObjectError> {
        let folder = Path::from(prefix.as_str());
        let metas: Vec<_> = self.store.list(Some(&folder)).try_collect().await.map_err(error)?;
        let mut found: Vec<Listed> = metas.iter().filter_map(listed).collect();
        found.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(found)
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), ObjectError> {
        match self.store.delete(&path(key)).await.map_err(error) {
            Err(ObjectError::NotFound) => Ok(()),
            done => done,
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Presign for S3Objects {
    async fn presign_put(&self, grant: &PutGrant, lifetime: Duration) -> Result<Presigned, ObjectError> {
        if grant.key.kind() == ObjectKind::Catalog {
            return Err(ObjectError::Denied);
        }
        let (bucket, credentials) = &*self.signing;
        let mut action = PutObject::new(bucket, Some(credentials), grant.key.as_str());
        // headers that are part of the signature: another length, other bytes or a taken name are refused
        let headers = [
            ("content-length", grant.length.to_string()),
            ("if-none-match", "*".to_owned()),
            ("x-amz-checksum-sha256", STANDARD.encode(grant.sha256)),
        ];
        for (name, value) in &headers {
            action.headers_mut().insert(*name, value.clone());
        }
        let url = action.sign(lifetime.min(URL_LIFETIME_MAX));
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Presigned { url: PresignedUrl::new(url.into()), headers })
    }

    async fn presign_get(&self, key: &ObjectKey, lifetime: Duration) -> Result<Presigned, ObjectError> {
        let (bucket, credentials) = &*self.signing;
        let action = GetObject::new(bucket, Some(credentials), key.as_str());
        let url = action.sign(lifetime.min(URL_LIFETIME_MAX));
        Ok(Presigned { url: PresignedUrl::new(url.into()), headers: Vec::new() })
    }
}
