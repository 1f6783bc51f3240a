use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_core::{Clock, Timestamp};

use super::{ByteRange, Fetch, Fetched, Listed, ObjectError, Objects, Upload};
use crate::{ObjectKey, Prefix};

/// A store in memory. It answers after it gave way to others, and forgets all when it is dropped.
#[derive(Clone, Debug)]
pub struct MemoryObjects {
    clock: Arc<dyn Clock>,
    objects: Arc<Mutex<BTreeMap<ObjectKey, (Bytes, Timestamp)>>>,
}

impl MemoryObjects {
    /// Makes an empty store.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, objects: Arc::default() }
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, (Bytes, Timestamp)>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces an object behind everybody's back, for tests of damage.
    #[cfg(any(test, feature = "testkit"))]
    pub fn tamper(&self, key: &ObjectKey, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
        if let Some((bytes, _)) = self.objects().get_mut(key) {
            *bytes = Bytes::from(change(bytes.to_vec()));
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Fetch for MemoryObjects {
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Fetched, ObjectError> {
        tokio::task::yield_now().await;
        let bytes = self.objects().get(key).map(|object| object.0.clone()).ok_or(ObjectError::NotFound)?;
        Fetched::of(&bytes, &range)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for MemoryObjects {
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), ObjectError> {
        tokio::task::yield_now().await;
        let put = {
            let mut objects = self.objects();
            let free = !objects.contains_key(key);
            if free {
                objects.insert(key.clone(), (bytes, self.clock.now()));
            }
            free
        };
        tokio::task::yield_now().await;
        if put { Ok(()) } else { Err(ObjectError::AlreadyExists) }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Objects for MemoryObjects {
    async fn head(&self, key: &ObjectKey) -> Result<Option<Listed>, ObjectError> {
        tokio::task::yield_now().await;
        Ok(self.objects().get(key).map(|(bytes, at)| Listed::new(key.clone(), bytes.len() as u64, *at)))
    }

    async fn list(&self, prefix: &Prefix) -> Result<Vec<Listed>, ObjectError> {
        tokio::task::yield_now().await;
        let objects = self.objects();
        let within = objects.iter().filter(|(key, _)| key.as_str().starts_with(prefix.as_str()));
        let mut listed: Vec<Listed> =
            within.map(|(key, (bytes, at))| Listed::new(key.clone(), bytes.len() as u64, *at)).collect();
        listed.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(listed)
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), ObjectError> {
        tokio::task::yield_now().await;
        self.objects().remove(key);
        Ok(())
    }
}
