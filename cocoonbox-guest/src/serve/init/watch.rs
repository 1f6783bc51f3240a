//! `fs_watch` on the guest channel.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cocoonbox_wire::silkd::{EventKind, Response};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Guest;
use super::channel::{Failure, Input, Output, Refusal};
use super::files::path;
use crate::sys;

/// The most directories of one watch.
const MAX_WATCHES: usize = 8192;

/// What is watched.
struct Watches {
    fd: AsyncFd<OwnedFd>,
    places: HashMap<i32, PathBuf>,
    recursive: bool,
}

fn flags() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
}

impl Watches {
    fn open(root: &Path, recursive: bool) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let fd = sys::watch(fd, Interest::READABLE)?;
        let mut watches = Self { fd, places: HashMap::new(), recursive };
        watches.add(root)?;
        if recursive {
            watches.add_below(root, &mut Vec::new())?;
        }
        Ok(watches)
    }

    fn add(&mut self, place: &Path) -> io::Result<()> {
        if self.places.len() >= MAX_WATCHES {
            return Err(io::Error::other(format!("more than {MAX_WATCHES} directories to watch")));
        }
        let number = inotify::add_watch(self.fd.get_ref(), place, flags() | WatchFlags::DONT_FOLLOW)?;
        self.places.insert(number, place.to_owned());
        Ok(())
    }

    /// Watches the directories below `place` and adds what is in them already to `found`.
    fn add_below(&mut self, place: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
        let mut left = vec![place.to_owned()];
        while let Some(place) = left.pop() {
            for entry in std::fs::read_dir(&place).into_iter().flatten().flatten() {
                found.push(entry.path());
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    match self.add(&entry.path()) {
                        // gone again
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        added => added?,
                    }
                    left.push(entry.path());
                }
            }
        }
        Ok(())
    }

    /// Waits for something to happen.
    async fn next(&mut self) -> io::Result<Vec<(EventKind, PathBuf)>> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut raw = Vec::new();
            let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
            let mut reader = inotify::Reader::new(self.fd.get_ref(), &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => raw.push((
                        event.wd(),
                        event.events(),
                        event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                    )),
                    Err(rustix::io::Errno::WOULDBLOCK) => {
                        ready.clear_ready();
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
                if raw.len() >= 1024 {
                    break;
                }
            }
            drop(ready);
            let mut events = Vec::new();
            for (number, what, name) in raw {
                if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                    return Err(io::Error::other("more happened than could be told"));
                }
                if what.contains(ReadFlags::IGNORED) {
                    self.places.remove(&number);
                    continue;
                }
                let Some(place) = self.places.get(&number).cloned() else { continue };
                let at = name.map_or_else(|| place.clone(), |name| place.join(name));
                let kind = if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                    EventKind::Create
                } else if what.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::DELETE_SELF)
                {
                    EventKind::Remove
                } else {
                    EventKind::Modify
                };
                events.push((kind, at.clone()));
                if self.recursive && kind == EventKind::Create && what.contains(ReadFlags::ISDIR) {
                    let mut found = Vec::new();
                    if self.add(&at).is_ok() {
                        self.add_below(&at, &mut found)?;
                    }
                    // made before the watch was there
                    events.extend(found.into_iter().map(|path| (EventKind::Create, path)));
                }
            }
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }
}

pub(super) async fn watch(
    text: String,
    recursive: bool,
    guest: &Guest,
    input: &mut Input,
    output: &mut Output,
) -> Result<(), Failure> {
    let root = path(&text, guest)?;
    let mut watches = Watches::open(&root, recursive).map_err(Refusal::from)?;
    output.send(&Response::Ready {}).await?;
    loop {
        let events = tokio::select! {
            events = watches.next() => events.map_err(Refusal::internal)?,
            over = input_over(input) => return over,
        };
        for (kind, path) in events {
            let path = path.to_string_lossy().into_owned();
            output.send(&Response::Event { kind, path }).await?;
        }
    }
}

/// Waits until the client leaves, or asks for something else, which ends the watch.
async fn input_over(input: &mut Input) -> Result<(), Failure> {
    while input.next_input().await.is_some() {}
    if input.is_over() { Err(Failure::Gone) } else { Ok(()) }
}
