//! Holding a box still, letting it go, ending it.

use std::io;
use std::path::Path;
use std::time::Duration;

use cocoonbox_core::backend::{BackendError, SandboxId};

use super::error::{engine, refused, unavailable};
use super::journal::{Process, Record};
use super::registry::{Entry, hold};
use super::start::Places;
use super::{Inner, serve};
use crate::bwrap::{disk, process};

/// How long processes have to end.
const END_LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);

impl Inner {
    /// Holds every process of a box still.
    pub(super) async fn freeze(&self, record: &Record) -> Result<(), BackendError> {
        let paused = self.engine.pause(&self.container(&record.id)).await;
        paused.map_err(engine("the box could not be frozen"))
    }

    /// Lets every process of a box go on.
    pub(super) async fn thaw(&self, record: &Record) -> Result<(), BackendError> {
        let gone_on = self.engine.unpause(&self.container(&record.id)).await;
        gone_on.map_err(engine("the box could not be thawed"))
    }

    /// Ends every process of a box, whoever started it, and waits until none is left.
    pub(super) async fn end(&self, entry: &Entry, record: &Record) -> Result<(), BackendError> {
        *hold(&entry.doors) = None;
        self.end_in(&entry.id, &entry.directory, record.process.as_ref()).await
    }

    /// Ends every process of the box `id`, whose directory is `directory` now, and removes its container.
    pub(super) async fn end_in(
        &self,
        id: &SandboxId,
        directory: &Path,
        first: Option<&Process>,
    ) -> Result<(), BackendError> {
        let lock = Places::of(directory).lock;
        let work = async {
            let name = self.container(id);
            let handle = first.and_then(|process| self.open(process));
            if let Some(handle) = &handle {
                // dies now, or the moment that it is thawed
                process::kill(handle);
                // one that is not held is no failure, and one that cannot be let go is ended by the removal
                let _ = self.engine.unpause(&name).await;
            }
            let mut removed = self.engine.remove(&name).await;
            if removed.is_err() && self.service.is_some() {
                // a service of our own that died under the call is started again
                Box::pin(self.ready()).await?;
                removed = self.engine.remove(&name).await;
            }
            removed.map_err(engine("the box's container could not be removed"))?;
            if let Some(handle) = handle {
                serve::ended(handle).await.map_err(refused("the box's end could not be awaited"))?;
            }
            // whoever was started for this box holds its lock, known to the record or not
            while lock.exists()
                && disk::lock(&lock).map_err(refused("the box's lock cannot be read"))?.is_none()
            {
                serve::pause(PAUSE).await;
            }
            Ok(())
        };
        serve::within(END_LIMIT, work).await.unwrap_or_else(|| {
            let error = io::Error::from(io::ErrorKind::TimedOut);
            Err(unavailable("processes of the box did not end within 30 s", error))
        })
    }
}
