use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{ByteRange, Fetch, Fetched, Listed, ObjectError, Objects, Upload};
use crate::serve::pause;
use crate::{ObjectKey, Prefix};

/// Which call of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "one for each call")]
pub enum ObjectCall {
    /// [`Fetch::get`].
    Get,
    /// [`Upload::put`].
    Put,
    /// [`Objects::list`] and [`Objects::head`].
    Look,
    /// [`Objects::delete`].
    Delete,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectFault {
    /// Not available, as after a 500, 503 or 429, and nothing happened.
    Unavailable,
    /// Not available, and it happened.
    UnavailableAfter,
    /// A put says that it happened, and it did not.
    Lose,
    /// What is put or got is cut short.
    Truncate,
    /// A bit of what is put or got is turned.
    Flip,
    /// What is got is another object's, or what is put is kept under another's bytes.
    Foreign,
    /// It takes a while.
    Delay(Duration),
}

#[derive(Debug, Default)]
struct Schedule {
    calls: BTreeMap<ObjectCall, u32>,
    faults: BTreeMap<(ObjectCall, u32), ObjectFault>,
    skew_micros: i64,
    last: Option<Bytes>,
}

/// A store that forwards to another, and fails where its schedule says so.
#[derive(Debug)]
pub struct FaultyObjects<S> {
    inner: S,
    schedule: Mutex<Schedule>,
}

impl<S> FaultyObjects<S> {
    /// Makes a store that forwards everything.
    pub fn new(inner: S) -> Self {
        Self { inner, schedule: Mutex::default() }
    }

    /// Lets the `nth` call from now, 1 being the next, fail.
    pub fn fail(&self, call: ObjectCall, nth: u32, fault: ObjectFault) {
        let mut schedule = self.schedule();
        let made = schedule.calls.get(&call).copied().unwrap_or(0);
        schedule.faults.insert((call, made + nth), fault);
    }

    /// Sets the store's clock off.
    pub fn skew(&self, micros: i64) {
        self.schedule().skew_micros = micros;
    }

    /// Returns how many calls were made.
    pub fn calls(&self, call: ObjectCall) -> u32 {
        self.schedule().calls.get(&call).copied().unwrap_or(0)
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, call: ObjectCall) -> Option<ObjectFault> {
        let mut schedule = self.schedule();
        let calls = schedule.calls.entry(call).or_default();
        *calls += 1;
        let nth = *calls;
        schedule.faults.remove(&(call, nth))
    }

    fn bend(&self, fault: ObjectFault, bytes: Bytes) -> Bytes {
        let mut bent = bytes.to_vec();
        match fault {
            ObjectFault::Truncate => bent.truncate(bytes.len() / 2),
            ObjectFault::Flip => {
                let middle = bytes.len() / 2;
                if let Some(byte) = bent.get_mut(middle) {
                    *byte ^= 4;
                }
            }
            ObjectFault::Foreign => {
                // as long as what was asked for, so that nothing but its content gives it away
                let other = self.schedule().last.clone().unwrap_or_default();
                for (byte, foreign) in bent.iter_mut().zip(other.iter().chain(std::iter::repeat(&0))) {
                    *byte = *foreign;
                }
            }
            _ => {}
        }
        bent.into()
    }

    fn told() -> ObjectError {
        ObjectError::unavailable("told to fail")
    }

    fn skewed(&self, listed: Listed) -> Listed {
        let skew = self.schedule().skew_micros;
        let modified = cocoonbox_core::Timestamp::from_micros(listed.modified.micros() + skew);
        Listed { modified, ..listed }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Objects> Fetch for FaultyObjects<S> {
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Fetched, ObjectError> {
        let fault = self.next(ObjectCall::Get);
        match fault {
            Some(ObjectFault::Unavailable | ObjectFault::UnavailableAfter | ObjectFault::Lose) => {
                Err(Self::told())
            }
            Some(ObjectFault::Delay(span)) => {
                pause(span).await;
                self.inner.get(key, range).await
            }
            Some(fault) => {
                let fetched = self.inner.get(key, range).await?;
                Ok(Fetched::new(self.bend(fault, fetched.bytes), fetched.length))
            }
            None => {
                let fetched = self.inner.get(key, range).await?;
                self.schedule().last = Some(fetched.bytes.clone());
                Ok(fetched)
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Objects> Upload for FaultyObjects<S> {
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), ObjectError> {
        match self.next(ObjectCall::Put) {
            Some(ObjectFault::Unavailable) => Err(Self::told()),
            Some(ObjectFault::UnavailableAfter) => {
                self.inner.put(key, bytes).await?;
                Err(Self::told())
            }
            Some(ObjectFault::Lose) => Ok(()),
            Some(ObjectFault::Delay(span)) => {
                pause(span).await;
                self.inner.put(key, bytes).await
            }
            Some(fault) => self.inner.put(key, self.bend(fault, bytes)).await,
            None => self.inner.put(key, bytes).await,
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Objects> Objects for FaultyObjects<S> {
    async fn head(&self, key: &ObjectKey) -> Result<Option<Listed>, ObjectError> {
        match self.next(ObjectCall::Look) {
            Some(ObjectFault::Delay(_)) | None => {
                Ok(self.inner.head(key).await?.map(|listed| self.skewed(listed)))
            }
            Some(_) => Err(Self::told()),
        }
    }

    async fn list(&self, prefix: &Prefix) -> Result<Vec<Listed>, ObjectError> {
        match self.next(ObjectCall::Look) {
            Some(ObjectFault::Delay(_)) | None => {
                let listed = self.inner.list(prefix).await?;
                Ok(listed.into_iter().map(|listed| self.skewed(listed)).collect())
            }
            Some(_) => Err(Self::told()),
        }
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), ObjectError> {
        match self.next(ObjectCall::Delete) {
            Some(ObjectFault::Delay(_)) | None => self.inner.delete(key).await,
            Some(ObjectFault::UnavailableAfter) => {
                self.inner.delete(key).await?;
                Err(Self::told())
            }
            Some(_) => Err(Self::told()),
        }
    }
}
