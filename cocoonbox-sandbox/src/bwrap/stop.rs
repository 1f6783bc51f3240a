//! Holding a box still, letting it go, ending it.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use cocoonbox_core::backend::{BackendError, SandboxId};
use rustix::process::Signal;

use super::cgroup::{self, Cgroup};
use super::error::{refused, unavailable};
use super::journal::{Process, Record};
use super::registry::{Entry, hold};
use super::start::Places;
use super::{Inner, disk, process, serve, volume};

/// How long processes have to stand still.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);
/// How long programs have to write what they hold before a box that goes to disk is ended; its first process gives them
/// two seconds of it.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// After this the processes that keep a box's lock are looked for one by one.
const SEARCH_AFTER: u32 = 40;

impl Inner {
    /// Holds every process of a box still; the answer names those that stood still before, where that is known.
    pub(super) async fn freeze(&self, record: &Record) -> Result<Vec<i32>, BackendError> {
        let Some(process) = &record.process else { return Ok(Vec::new()) };
        let stopped = async {
            match self.cgroup_of(&record.id, process)?.filter(Cgroup::freezes) {
                Some(cgroup) => {
                    cgroup.freeze(true)?;
                    let mut events = cgroup.events()?;
                    while !cgroup::is_frozen(&mut events)? {
                        serve::pause(Duration::from_millis(1)).await;
                    }
                    Ok(Vec::new())
                }
                None => stop_tree(process.pid).await,
            }
        };
        match serve::within(FREEZE_LIMIT, stopped).await {
            Some(Ok(before)) => Ok(before),
            Some(Err(error)) => Err(unavailable("the box could not be frozen", error)),
            None => {
                let error = io::Error::from(io::ErrorKind::TimedOut);
                Err(unavailable("the box did not stand still within 10 s", error))
            }
        }
    }

    /// Lets every process of a box go on that stood still because of us.
    pub(super) async fn thaw(&self, record: &Record) -> Result<(), BackendError> {
        let Some(process) = record.process.clone() else { return Ok(()) };
        let cgroup = self.cgroup_of(&record.id, &process).map_err(refused("the box could not be thawed"))?;
        if let Some(cgroup) = cgroup.filter(Cgroup::freezes) {
            return cgroup.freeze(false).map_err(refused("the box could not be thawed"));
        }
        serve::blocking(move || {
            if process::look(&process).map_err(refused("the box could not be thawed"))? {
                // those that others started go on first, so that nobody sees a child that stands still
                for (pid, stat) in process::tree(process.pid).into_iter().rev() {
                    if !process.stopped_before.contains(&pid) {
                        process::signal(pid, &stat, Signal::CONT);
                    }
                }
            }
            Ok(())
        })
        .await
    }

    /// The cgroup that a box is in, by its first process: it may have been launched by a node in another place of the
    /// hierarchy, or by one that could make none.
    pub(super) fn cgroup_of(&self, id: &SandboxId, process: &Process) -> io::Result<Option<Cgroup>> {
        if process::look(process)? {
            cgroup::of_process(&self.node, id.as_str(), process.pid)
        } else {
            Ok(None)
        }
    }

    /// Asks a running box to end by itself, and waits for that a moment. What is left of it afterwards is ended.
    pub(super) async fn ask_to_end(&self, record: &Record) {
        let Some(handle) = record.process.as_ref().and_then(process::open) else { return };
        if process::terminate(&handle) {
            // one that does not listen is ended all the same
            let _ = serve::within(LAST_WORDS, serve::ended(handle)).await;
        }
    }

    /// Ends every process of a box, whoever started it, and waits until none is left.
    pub(super) async fn end(&self, entry: &Entry, record: &Record) -> Result<(), BackendError> {
        *hold(&entry.doors) = None;
        self.end_in(&entry.id, &entry.directory, record.process.as_ref()).await
    }

    /// Ends every process of the box `id`, whose directory is `directory` now.
    pub(super) async fn end_in(
        &self,
        id: &SandboxId,
        directory: &Path,
        first: Option<&Process>,
    ) -> Result<(), BackendError> {
        let limit = self.config.end_limit;
        let Some(ended) = serve::within(limit, self.end_all(id, directory, first)).await else {
            let error = io::Error::from(io::ErrorKind::TimedOut);
            return Err(unavailable(&format!("processes of the box did not end within {limit:?}"), error));
        };
        ended.map_err(refused("the processes of the box could not be ended"))
    }

    async fn end_all(&self, id: &SandboxId, directory: &Path, first: Option<&Process>) -> io::Result<()> {
        let lock = Places::of(directory).lock;
        let cgroup = first.map(|process| self.cgroup_of(id, process)).transpose()?.flatten();
        let cgroup = cgroup.unwrap_or_else(|| self.cgroups.of(id.as_str()));
        cgroup.kill();
        if let Some(handle) = first.and_then(process::open) {
            // the kernel ends a pid namespace with its first process, and that ends when the last of them did
            process::kill(&handle);
            serve::ended(handle).await?;
        }
        let mut turns = 0;
        loop {
            // whoever was started for this box holds its lock, known to the record or not
            let free = !lock.exists() || disk::lock(&lock)?.is_some();
            if free && cgroup.remove() {
                let directory = directory.to_owned();
                let detach = move || volume::detach(&directory).map_err(refused("its file system is busy"));
                return serve::blocking(detach).await.map_err(io::Error::other);
            }
            turns += 1;
            if !free && (first.is_none() || turns > SEARCH_AFTER) && turns % 10 == 1 {
                let name = id.clone();
                let search = move || {
                    process::of_box(name.as_str()).iter().for_each(process::kill);
                    Ok(())
                };
                // reads all of /proc
                serve::blocking(search).await.map_err(io::Error::other)?;
            }
            cgroup.kill();
            serve::pause(Duration::from_millis(5)).await;
        }
    }
}

/// Stops a process and all below it, from the first on, until none moves; the answer names those that stood before.
async fn stop_tree(root: i32) -> io::Result<Vec<i32>> {
    let mut seen = Seen::default();
    loop {
        let moving;
        // reads all of /proc
        let turn = move || {
            let moving = seen.stop(root).map_err(refused("its processes could not be looked at"))?;
            Ok((seen, moving))
        };
        (seen, moving) = serve::blocking(turn).await.map_err(io::Error::other)?;
        if !moving {
            return Ok(seen.before.into_iter().collect());
        }
        serve::pause(Duration::from_millis(2)).await;
    }
}

/// Who stood still before, and who does because of us.
#[derive(Debug, Default)]
struct Seen {
    before: BTreeSet<i32>,
    stopped: BTreeSet<i32>,
}

impl Seen {
    /// Stops what still moves below `root`; true when something did.
    fn stop(&mut self, root: i32) -> io::Result<bool> {
        let mut moving = false;
        let tree = process::tree(root);
        if tree.is_empty() {
            // gone, or out of sight: either way nothing is known to stand still
            return Err(io::ErrorKind::NotFound.into());
        }
        for (pid, stat) in tree {
            match stat.state {
                'Z' | 'X' => {}
                // it waits in the kernel, and stops before it does anything of its own: one that started a child by
                // vfork waits for that child, which stands still
                'D' if self.stopped.contains(&pid) => {}
                'T' | 't' => {
                    if !self.stopped.contains(&pid) {
                        self.before.insert(pid);
                    }
                }
                _ => {
                    process::signal(pid, &stat, Signal::STOP);
                    self.stopped.insert(pid);
                    moving = true;
                }
            }
        }
        Ok(moving)
    }
}
