//! From a record to a box that answers.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::{BackendError, Doors, HostFile, HostFileName, Nesting, SandboxId};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;

use super::arguments::{self, AGENT, Box_};
use super::defence::Defence;
use super::disk::Durable;
use super::error::{refused, unavailable};
use super::image::{self, Source};
use super::journal::{Process, Record};
use super::launch::{self, Launch, Without};
use super::map::Map;
use super::registry::{Entry, hold};
use super::stage::{self, Stage};
use super::work::left_behind;
use super::{Inner, channel, disk, process, serve, tree, volume};
use crate::filter;

/// How long a guest has until it answers for the first time.
const START_LIMIT: Duration = Duration::from_secs(15);
/// How long bwrap has to say which process it made.
const INFO_LIMIT: Duration = Duration::from_secs(10);
/// The most of bwrap's complaints that a reason repeats.
const MAX_LOG: usize = 2048;

/// The directories of a claim.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) lock: PathBuf,
    pub(super) channel: PathBuf,
    pub(super) doors: PathBuf,
    pub(super) identity: PathBuf,
    etc: PathBuf,
    home: PathBuf,
    workspace: PathBuf,
    temporary: PathBuf,
}

impl Places {
    pub(super) fn of(directory: &Path) -> Self {
        let files = directory.join("files");
        Self {
            lock: directory.join("lock"),
            channel: directory.join("channel"),
            doors: directory.join("doors"),
            identity: directory.join("identity"),
            etc: directory.join("etc"),
            home: files.join("home"),
            workspace: files.join("workspace"),
            temporary: files.join("tmp"),
        }
    }
}

/// Removes a tree, by whoever may.
pub(super) fn remove_tree(map: Option<&Map>, path: &Path) -> io::Result<()> {
    match map {
        Some(map) if path.symlink_metadata().is_ok() => map.remove(path),
        _ => tree::remove(path),
    }
}

impl Inner {
    /// The uid that the node itself gives a claim's files to; as an ordinary user the launch does it.
    pub(super) fn owner_of(&self, record: &Record) -> Option<u32> {
        record.uid.filter(|_| self.map.is_none())
    }
}

/// Makes the directories of a new claim and writes its host files; [`sync_host_files`] makes these last.
pub(super) fn make_places(directory: &Path, uid: Option<u32>, host_files: &[HostFile]) -> io::Result<()> {
    let places = Places::of(directory);
    disk::directory(&places.channel, 0o700)?;
    for path in [&places.doors, &places.identity, &places.etc] {
        disk::directory(path, 0o755)?;
    }
    disk::directory(&directory.join("files"), 0o700)?;
    for path in [&places.home, &places.workspace] {
        disk::owned_directory(path, 0o755, uid)?;
    }
    for (name, content) in image::new_home() {
        let path = places.home.join(name);
        fs::write(&path, content)?;
        disk::give(&path, uid)?;
    }
    for file in host_files {
        disk::prepare(&places.identity, file.name.as_str(), &file.bytes, 0o644, Durable::No)?;
        disk::put(&places.identity, file.name.as_str())?;
    }
    Ok(())
}

/// Writes the host files of a claim through to the disk.
pub(super) fn sync_host_files(directory: &Path, names: &[HostFileName]) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let identity = Places::of(directory).identity;
    names.iter().try_for_each(|name| disk::sync(&identity.join(name.as_str())))?;
    disk::sync(&identity)
}

/// Writes the files of `/etc` that hold a box's host name anew.
pub(super) fn write_names(directory: &Path, hostname: &str) -> io::Result<()> {
    let etc = Places::of(directory).etc;
    let named = image::own_etc(hostname).into_iter().filter(|(name, _)| image::NAMED.contains(name));
    named.into_iter().try_for_each(|(name, content)| disk::overwrite(&etc.join(name), content.as_bytes()))
}

/// A launch that is ready to go.
struct Prepared {
    launch: Launch,
    info: std::os::unix::net::UnixStream,
    doors: Option<std::os::unix::net::UnixListener>,
    /// The copy of the image's `/etc` that the box sees.
    etc: Option<String>,
}

/// Starts the processes of a claim and waits until its guest answers; `beside` is slow work on the record that runs
/// meanwhile, once it names the process.
///
/// On failure nothing of them is left. The record's phase is the caller's affair.
pub(super) async fn start(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    record: &mut Record,
    beside: impl FnOnce(Record) -> Result<(), BackendError> + Send + 'static,
) -> Result<(), BackendError> {
    let log = launch::log_file().map_err(|source| failed("its log could not be made", Some(source)))?;
    match attempt(inner, entry, record, &log, beside).await {
        Ok(()) => Ok(()),
        Err(error) => {
            let log = read_log(&log);
            match inner.end(entry, record).await {
                Ok(()) => record.process = None,
                Err(left) => left_behind(&entry.id, &left),
            }
            Err(explain(error, &log))
        }
    }
}

async fn attempt(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    record: &mut Record,
    log: &fs::File,
    beside: impl FnOnce(Record) -> Result<(), BackendError> + Send + 'static,
) -> Result<(), BackendError> {
    let (of, here, wanted) = (Arc::clone(inner), entry.directory.clone(), record.clone());
    let log = log.try_clone().map_err(|source| failed("its log could not be made", Some(source)))?;
    let prepared = serve::blocking(move || {
        let Prepared { launch, info, doors, etc } = prepare(&of, &here, &wanted, log)?;
        let program = launch.program.clone();
        launch.start(serve::spawn).map_err(|source| not_launched(&program, source))?;
        Ok((info, doors, etc))
    });
    let (info, doors, etc) = prepared.await?;
    if let Some(listener) = doors {
        let handle = serve::doors(inner, entry, listener).map_err(refused("cannot serve the doors"))?;
        *hold(&entry.doors) = Some(handle);
    }
    let made = serve::within(INFO_LIMIT, read_info(info)).await;
    let made = made.ok_or_else(|| failed("bwrap did not say which process it made", None))?;
    let made = made.map_err(|error| failed("bwrap ended before the sandbox ran", Some(error)))?;
    let stat =
        process::stat(made.pid).ok_or_else(|| failed("the guest's first process ended at once", None))?;
    // it may be over, and its pid another's
    let seen = process::pid_namespace(made.pid);
    let Some(pid_namespace) = seen.filter(|seen| made.pid_namespace.is_none_or(|made| made == *seen)) else {
        return Err(failed("the guest's first process ended at once", None));
    };
    let process = Process {
        pid: made.pid,
        start_time: stat.start_time,
        pid_namespace,
        agent: inner.agent.clone(),
        etc,
        stopped_before: Vec::new(),
    };
    record.process = Some(process.clone());
    let handle =
        process::open(&process).ok_or_else(|| failed("the guest's first process ended at once", None))?;

    let written = record.clone();
    let written = serve::blocking(move || beside(written));
    let channel = Places::of(&entry.directory).channel;
    let answer = async {
        let answered = first_answer(&entry.id, &channel).await;
        // its agent starts when somebody comes: now, and not when the first command waits for it
        if answered.is_ok() {
            let _ = channel::dial_agent(&channel).await;
        }
        answered
    };
    let (answered, written) = tokio::join!(serve::within(START_LIMIT, answer), written);
    match answered {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            return Err(failed(
                "its first process does not answer as it should",
                Some(io::Error::other(error)),
            ));
        }
        None => return Err(failed("its first process did not answer within 15 s", None)),
    }
    written?;
    serve::watch(inner, &entry.id, handle, process);
    Ok(())
}

/// Makes sure that the guest answers.
pub(super) async fn first_answer(id: &SandboxId, channel: &Path) -> Result<(), BackendError> {
    let stream =
        channel::dial(channel).await.map_err(|error| unavailable("the guest channel is closed", error))?;
    channel::ask_info(id, stream).await
}

fn prepare(
    inner: &Inner,
    directory: &Path,
    record: &Record,
    log: fs::File,
) -> Result<Prepared, BackendError> {
    let program =
        launch::find_program(&inner.config.bwrap).ok_or_else(|| bwrap_missing(&inner.config.bwrap))?;
    let source = image::find(&inner.data, &record.image)
        .ok_or_else(|| BackendError::UnknownImage { image: record.image.as_str().to_owned() })?;
    if record.uid.is_some() && inner.uids.is_none() {
        return Err(failed(
            "its files belong to an id that this node cannot give (root, or the range of /etc/subuid, gave it)",
            None,
        ));
    }
    let places = Places::of(directory);
    let work = move || -> io::Result<Prepared> {
        let lock = serve::lock_soon(&places.lock)?
            .ok_or_else(|| io::Error::other("processes of an earlier start still hold the box's lock"))?;
        volume::attach(directory)?;
        let map = record.uid.and(inner.map.as_deref());
        remove_tree(map, &places.temporary)?;
        disk::owned_directory(&places.temporary, 0o1777, inner.owner_of(record))?;
        // what the launch gives to the box's uid, where the node itself cannot
        let mut give = Vec::new();
        for path in [&places.home, &places.workspace] {
            // a guest that locked itself out is let in again, or its box would never start
            let found = fs::symlink_metadata(path)?;
            let mode = found.permissions().mode();
            match map {
                _ if mode & 0o700 == 0o700 => {}
                Some(map) if found.uid() != inner.own.0 => map.let_in(path)?,
                _ => fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o700))?,
            }
            if map.is_some() && found.uid() == inner.own.0 {
                // a home's own files first: it is new as long as it is the node's
                if *path == places.home {
                    give.extend(image::new_home().map(|(name, _)| path.join(name)));
                }
                give.push(path.clone());
            }
        }
        if map.is_some() {
            give.push(places.temporary.clone());
        }
        let source = match source {
            Source::Host if !inner.config.holds(Defence::HostAllowList) => Source::Rootfs(PathBuf::from("/")),
            source => source,
        };
        let etc_copy = inner.etc.latest(&source, inner.clock.steady());
        // those that hold the host name change while the box runs, so that it sees the files themselves
        let own = |name| etc_copy.is_none() || image::NAMED.contains(&name);
        let mut own_etc = image::own_etc(&record.hostname);
        own_etc.retain(|(name, _)| own(*name));
        for (name, content) in &own_etc {
            disk::overwrite(&places.etc.join(name), content.as_bytes())?;
        }
        let channel: OwnedFd = channel::listen(&places.channel)?.into();
        let agent: OwnedFd = channel::listen_agent(&places.channel)?.into();
        let doors = if record.doors == Doors::Bound { Some(bind_doors(&places.doors)?) } else { None };

        let mut stage = record.uid.map(|_| Stage::new(&inner.data)).transpose()?;
        let mut seen =
            |path: &Path| stage.as_mut().map_or_else(|| Ok(path.to_owned()), |stage| stage.bring(path));
        let rootfs = match &source {
            Source::Host => PathBuf::from("/"),
            Source::Rootfs(rootfs) if rootfs.parent().is_none() => rootfs.clone(),
            Source::Rootfs(rootfs) => seen(rootfs)?,
        };
        let (etc, home, workspace) = (seen(&places.etc)?, seen(&places.home)?, seen(&places.workspace)?);
        let (temporary, identity) = (seen(&places.temporary)?, seen(&places.identity)?);
        let bin = seen(&inner.data.join("bin").join(&inner.agent))?;
        let doors_seen = doors.as_ref().map(|_| seen(&places.doors)).transpose()?;
        let etc_seen = etc_copy.as_ref().map(|copy| seen(&inner.etc.path(&copy.name))).transpose()?;
        let how = etc_copy.as_ref().map_or(image::Etc::Entries, |copy| image::Etc::Copy(&copy.mounted));
        let parts = image::parts(&source, &rootfs, how)?;
        let etc_names: Vec<_> = own_etc.iter().map(|(name, _)| *name).collect();
        // user namespaces within are one defence, by bwrap and by the filter
        let makes_spaces = !inner.config.holds(Defence::UserNamespaceDenial);
        let filters = match record.nesting {
            _ if !inner.config.holds(Defence::SystemCallFilter) => Vec::new(),
            _ if makes_spaces => filter::files(Nesting::Allowed)?,
            nesting => filter::files(nesting)?,
        };
        let filter_numbers: Vec<_> = filters.iter().map(OwnedFd::as_raw_fd).collect();
        let options = arguments::options(&Box_ {
            config: &inner.config,
            hostname: &record.hostname,
            nesting: record.nesting,
            parts: &parts,
            etc_copy: etc_seen.as_deref(),
            etc: (&etc, &etc_names),
            home: &home,
            workspace: &workspace,
            temporary: &temporary,
            identity: &identity,
            bin: &bin,
            doors: doors_seen.as_deref(),
            channel: channel.as_raw_fd(),
            agent: agent.as_raw_fd(),
            lock: lock.as_raw_fd(),
            filters: &filter_numbers,
        });
        let tier = inner.config.limits.tier(record.size);
        let (info, info_end) = launch::info_pair()?;
        let launch = Launch {
            program: program.clone(),
            options: launch::options_file(&options)?,
            info: info_end,
            name: process::launcher_name(record.id.as_str()),
            command: [AGENT, "init"],
            handed: [channel, agent, lock.into()].into_iter().chain(filters).collect(),
            log,
            cgroups: inner.cgroups.make(record.id.as_str(), &tier)?,
            advice: inner.advice(&tier),
            uid: record.uid.unwrap_or(inner.own.0),
            gid: record.uid.unwrap_or(inner.own.1),
            drop_to: record.uid.zip(stage),
            enter: map.map(Map::space).transpose()?,
            give: stage::texts(&give)?,
            without: Without::of(&inner.config),
        };
        Ok(Prepared { launch, info, doors, etc: etc_copy.map(|copy| copy.name) })
    };
    work().map_err(|source| failed("its files could not be prepared", Some(source)))
}

/// Binds a box's door socket.
pub(super) fn bind_doors(directory: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let listener = channel::bind(directory, "door.sock")?;
    // the box's uid connects; the directory's mount keeps it from anything else
    fs::set_permissions(directory.join("door.sock"), fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// What bwrap says about the process that it made.
#[derive(Debug, Deserialize)]
struct Made {
    #[serde(rename = "child-pid")]
    pid: i32,
    /// Absent when it made none, which only a test asks for.
    #[serde(rename = "pid-namespace")]
    pid_namespace: Option<u64>,
}

async fn read_info(info: std::os::unix::net::UnixStream) -> io::Result<Made> {
    let mut info = tokio::net::UnixStream::from_std(info)?;
    let mut bytes = Vec::with_capacity(512);
    loop {
        let ended = (&mut info).take(4096).read_buf(&mut bytes).await? == 0;
        match serde_json::from_slice(&bytes) {
            Ok(made) => return Ok(made),
            Err(_) if bytes.is_empty() && ended => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if ended || bytes.len() > 4096 => return Err(io::Error::other(error)),
            Err(_) => {}
        }
    }
}

fn failed(reason: &str, source: Option<io::Error>) -> BackendError {
    let detail = source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
    BackendError::StartFailed { reason: format!("{reason}{detail}"), source: source.map(Into::into) }
}

fn bwrap_missing(program: &Path) -> BackendError {
    failed(
        &format!(
            "there is no {} on this machine: install it with `apt-get install bubblewrap`",
            program.display()
        ),
        None,
    )
}

fn not_launched(program: &Path, source: io::Error) -> BackendError {
    if source.kind() == io::ErrorKind::NotFound {
        return bwrap_missing(program);
    }
    failed(&format!("{} could not be started", program.display()), Some(source))
}

/// Adds to a failed start what bwrap said and what a person can do.
fn explain(error: BackendError, log: &str) -> BackendError {
    let BackendError::StartFailed { mut reason, source } = error else { return error };
    if !log.is_empty() {
        reason = format!("{reason}; it said: {log}");
    }
    if let Some(remedy) = remedy(&reason) {
        reason = format!("{reason}; {remedy}");
    }
    BackendError::StartFailed { reason, source }
}

fn remedy(reason: &str) -> Option<&'static str> {
    let namespaces = [
        "cannot make a user namespace",
        "reating new namespace",
        "create new namespace",
        "max_user_namespaces",
    ];
    if namespaces.iter().any(|text| reason.contains(text)) {
        return Some(
            "user namespaces are switched off here: `sysctl -w user.max_user_namespaces=15000` allows them (Debian: also \
             `sysctl -w kernel.unprivileged_userns_clone=1`; Ubuntu: also `sysctl -w \
             kernel.apparmor_restrict_unprivileged_userns=0`)",
        );
    }
    reason
        .contains("nknown option")
        .then_some("bubblewrap 0.8 or newer is needed: `apt-get install bubblewrap`")
}

/// Reads what was said on a launch's log, as text that a terminal can be shown: a guest may have said it.
fn read_log(log: &fs::File) -> String {
    use std::os::unix::fs::FileExt as _;
    let mut bytes = vec![0; MAX_LOG];
    let length = log.read_at(&mut bytes, 0).unwrap_or(0);
    let said = bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(said);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| line.chars().map(|letter| if acts(letter) { '?' } else { letter }).collect())
        .collect::<Vec<String>>()
        .join(" / ")
}

/// Whether a terminal acts on a letter: a control, or a turn of the direction of writing.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_log_ends_and_what_it_says_is_shown_without_escapes() -> io::Result<()> {
        let log = launch::log_file()?;
        assert_eq!(read_log(&log), "");
        let mut guest = log.try_clone()?;
        guest.write_all("one \x1b[2Jtwo\n\n thr\u{202e}ee\n".as_bytes())?;
        assert_eq!(read_log(&log), "one ?[2Jtwo / thr?ee");
        let chunk = [b'x'; 4096];
        let taken = (0..1000).take_while(|_| guest.write_all(&chunk).is_ok()).count();
        assert!(taken < 64, "{taken} chunks of 4 KiB");
        assert!(guest.set_len(1 << 30).is_err() && guest.set_len(0).is_err());
        let said = read_log(&log);
        assert!(said.ends_with("xxx"), "{said}");
        assert!(said.len() < MAX_LOG + 16, "{} bytes", said.len());
        Ok(())
    }
}
