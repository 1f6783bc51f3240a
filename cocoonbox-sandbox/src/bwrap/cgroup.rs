//! The cgroups of boxes.
//!
//! ```text
//!  version 2   <place>/cocoonbox-<node>/<box>    the freezer and a kill that misses nothing; no controller needed
//!  limits      <place>/cocoonbox-<node>/<box>    in version 2 where it has the controller, else in version 1
//!              <place>/cocoonbox-<node>          what all boxes of the node together may use
//! ```
//!
//! A machine may have any mixture of both versions. Each controller is found by the mount table and believed when it
//! was seen to work: a cgroup made, limited, and a process moved into it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::control::{Control, Controller, Version};
use super::hierarchy::{Hierarchy, candidates, mounts_of, own_path};
use super::limit::{Limits, Machine, ProcessLimit, Tier};
use super::process::is_gone;

/// The file that lists a cgroup's processes, and that a process joins by.
const MEMBERS: &str = "cgroup.procs";
/// The file of version 1 that a thread joins by; it takes no lock that all of the machine's forks wait for.
const THREADS: &str = "tasks";
/// The cgroup that a node moves itself to, out of the way of the controllers of the one it was given.
const SERVER: &str = "cocoonbox-server";

/// The directories that hold the cgroups of this node's boxes.
#[derive(Debug)]
pub(super) struct Cgroups {
    /// Version 2's.
    unified: Option<PathBuf>,
    /// What limits them.
    controls: Vec<Control>,
}

/// One box's cgroups.
#[derive(Clone, Debug)]
pub(super) struct Cgroup {
    /// Version 2's.
    unified: Option<PathBuf>,
    /// Version 1's.
    others: Vec<PathBuf>,
}

impl Cgroups {
    /// Finds places for cgroups; none where this process may not make any.
    pub(super) fn find(node: &str, limits: &Limits) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (mounts, own) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
        let unified = candidates(&mounts, &own, Hierarchy::Unified).into_iter().find_map(|place| {
            // a node that moved itself aside makes its boxes where it was before
            let place = if place.ends_with(SERVER) { place.parent()?.to_owned() } else { place };
            freezer(&place, node)
        });
        let mut found = Self { unified, controls: Vec::new() };
        if limits.processes == ProcessLimit::Cgroup {
            let machine = Machine::look();
            let mut mover = Mover::default();
            for controller in Controller::ALL {
                let two = found.unified.clone().map(|parent| (Version::Two, parent));
                let one = candidates(&mounts, &own, Hierarchy::Of(controller.name()));
                let one = one.into_iter().map(|place| (Version::One, place.join(parent_name(node))));
                let mut places = two.into_iter().chain(one);
                let working = places.find_map(|(version, parent)| {
                    let control = Control::new(controller, version, parent, &machine, &limits.reserve);
                    works(&control, &mut mover).then_some(control)
                });
                found.controls.extend(working);
            }
            drop(mover);
            found.of("probe").remove_soon();
        }
        found
    }

    /// Takes the kernel's lock under which a process joins a cgroup of version 2, and lets it go again.
    ///
    /// Whoever takes it first waits until every processor was seen elsewhere, some 7 ms; the next one, shortly after,
    /// does not. Called in time, that wait lies beside other work. It moves this process to where it is.
    pub(super) fn hurry(&self) {
        if self.unified.is_none() {
            return;
        }
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (mounts, own) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
        let place = own_path(&own, Hierarchy::Unified)
            .and_then(|own| mounts_of(&mounts, Hierarchy::Unified).find_map(|mount| mount.shows(own)));
        if let Some(place) = place {
            // where it may not, boxes only start more slowly
            let _ = fs::write(place.join(MEMBERS), "0");
        }
    }

    /// Whether the kernel holds boxes still.
    pub(super) fn freezes(&self) -> bool {
        self.unified.is_some()
    }

    /// Whether boxes are limited by a controller.
    pub(super) fn limits(&self, controller: Controller) -> bool {
        self.version(controller).is_some()
    }

    /// Returns the version of a controller's cgroups, where it can be used.
    pub(super) fn version(&self, controller: Controller) -> Option<&'static str> {
        let control = self.controls.iter().find(|control| control.controller == controller)?;
        Some(match control.version {
            Version::One => "v1",
            Version::Two => "v2",
        })
    }

    /// Ends and removes what is there without a claim.
    pub(super) fn sweep(&self, is_claim: impl Fn(&str) -> bool) {
        for parent in self.unified.iter().chain(self.controls.iter().map(|control| &control.parent)) {
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if let Some(name) = name.to_str().filter(|name| entry.path().is_dir() && !is_claim(name)) {
                    let cgroup = self.of(name);
                    cgroup.kill();
                    cgroup.remove();
                }
            }
        }
    }

    /// Names a box's cgroups.
    pub(super) fn of(&self, id: &str) -> Cgroup {
        let others = self.controls.iter().filter(|control| control.version == Version::One);
        let mut others: Vec<_> = others.map(|control| control.parent.join(id)).collect();
        // controllers may share a hierarchy
        others.dedup();
        Cgroup { unified: self.unified.as_ref().map(|parent| parent.join(id)), others }
    }

    /// Makes a box's cgroups, which may exist, limits them, and opens the files that a process joins by.
    pub(super) fn make(&self, id: &str, tier: &Tier) -> io::Result<Vec<OwnedFd>> {
        if let Some(parent) = &self.unified
            && made(parent)?
        {
            let mut controls = self.controls.iter().filter(|control| control.version == Version::Two);
            controls.try_for_each(Control::prepare)?;
        }
        let cgroup = self.of(id);
        if let Some(directory) = &cgroup.unified {
            made(directory)?;
        }
        for control in &self.controls {
            if control.version == Version::One && made(&control.parent)? {
                control.prepare()?;
            }
            made(&control.parent.join(id))?;
            control.limit(id, tier)?;
        }
        let unified = cgroup.unified.iter().map(|directory| directory.join(MEMBERS));
        let others = cgroup.others.iter().map(|directory| directory.join(THREADS));
        let open = |path: PathBuf| Ok(OpenOptions::new().write(true).open(path)?.into());
        unified.chain(others).map(open).collect()
    }
}

/// The cgroups of the box `id` that the process `pid` is in; nothing when a node of another name made them, or nobody.
///
/// # Errors
/// It cannot be told.
pub(super) fn of_process(node: &str, id: &str, pid: i32) -> io::Result<Option<Cgroup>> {
    let text = match fs::read_to_string(format!("/proc/{pid}/cgroup")) {
        Err(error) if is_gone(&error) => return Ok(None),
        read => read?,
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let end = format!("/{}/{id}", parent_name(node));
    let place = |hierarchy| {
        let own = own_path(&text, hierarchy).filter(|path| path.ends_with(&end))?;
        mounts_of(&mounts, hierarchy).filter_map(|mount| mount.place(own)).find(|path| path.is_dir())
    };
    let unified = place(Hierarchy::Unified);
    let others = Controller::ALL.into_iter().filter_map(|controller| place(Hierarchy::Of(controller.name())));
    let mut others: Vec<_> = others.collect();
    others.dedup();
    Ok((unified.is_some() || !others.is_empty()).then_some(Cgroup { unified, others }))
}

fn parent_name(node: &str) -> String {
    format!("cocoonbox-{node}")
}

/// Makes a directory; true when it is new.
fn made(directory: &Path) -> io::Result<bool> {
    match fs::create_dir(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the directory of the boxes' cgroups in `place`, seen to freeze.
fn freezer(place: &Path, node: &str) -> Option<PathBuf> {
    let door = |directory: &Path| OpenOptions::new().write(true).open(directory.join(MEMBERS)).is_ok();
    // whoever moves a process must be able to write where both cgroups meet
    if !door(place) {
        return None;
    }
    let parent = place.join(parent_name(node));
    let probe = parent.join("probe");
    // seen by doing: a mount may be read-only or lack the freezer
    let works = made(&parent).and_then(|_| made(&probe)).is_ok()
        && probe.join("cgroup.freeze").exists()
        && door(&probe);
    let _ = fs::remove_dir(&probe);
    if works {
        return Some(parent);
    }
    let _ = fs::remove_dir(&parent);
    None
}

/// Whether a controller can be used: a cgroup made, limited, and a process moved into it.
fn works(control: &Control, mover: &mut Mover) -> bool {
    let probe = control.parent.join("probe");
    let mut tried = || -> io::Result<()> {
        if control.version == Version::Two {
            make_way(&control.parent, control.controller)?;
        }
        made(&control.parent)?;
        control.prepare()?;
        made(&probe)?;
        control.limit("probe", &Tier::of(cocoonbox_core::backend::Size::Small))?;
        mover.enter(&probe.join(MEMBERS))
    };
    let result = tried();
    if let Err(error) = &result {
        tracing::debug!(controller = control.controller.name(), parent = %control.parent.display(), %error,
            "no limits by this cgroup controller");
        let _ = fs::remove_dir(&probe);
        if control.version == Version::One {
            let _ = fs::remove_dir(&control.parent);
        }
    }
    result.is_ok()
}

/// Has `parent`'s own parent hand a controller of version 2 down.
fn make_way(parent: &Path, controller: Controller) -> io::Result<()> {
    let place = parent.parent().unwrap_or(parent);
    match controller.hand_down(place) {
        // a cgroup that hands controllers down has no processes of its own
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            let own = std::process::id().to_string();
            if fs::read_to_string(place.join(MEMBERS))?.lines().any(|pid| pid != own) {
                return Err(error);
            }
            let aside = place.join(SERVER);
            made(&aside)?;
            fs::write(aside.join(MEMBERS), own)?;
            controller.hand_down(place)
        }
        other => other,
    }
}

/// A process to be moved about, which ends with this value.
#[derive(Debug, Default)]
struct Mover(Option<std::process::Child>);

impl Mover {
    fn enter(&mut self, members: &Path) -> io::Result<()> {
        use std::process::{Command, Stdio};
        if self.0.is_none() {
            let mut sleep = Command::new("/bin/sleep");
            sleep.arg("10").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            self.0 = Some(sleep.spawn()?);
        }
        let pid = self.0.as_ref().map(|child| child.id().to_string()).unwrap_or_default();
        fs::write(members, pid)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.of("probe").remove();
        // goes only when no box is in it
        for parent in self.unified.iter().chain(self.controls.iter().map(|control| &control.parent)) {
            let _ = fs::remove_dir(parent);
        }
    }
}

impl Cgroup {
    /// Whether the kernel can hold it still.
    pub(super) fn freezes(&self) -> bool {
        self.unified.is_some()
    }

    /// Asks the kernel to hold everything still or to let it go.
    pub(super) fn freeze(&self, frozen: bool) -> io::Result<()> {
        fs::write(self.file("cgroup.freeze")?, if frozen { "1" } else { "0" })
    }

    /// Opens the file that tells of changes; it is readable with priority when there is one.
    pub(super) fn events(&self) -> io::Result<File> {
        File::open(self.file("cgroup.events")?)
    }

    fn file(&self, name: &str) -> io::Result<PathBuf> {
        let unified = self.unified.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        Ok(unified.join(name))
    }

    /// Ends everything in it; one that is not there holds nothing.
    pub(super) fn kill(&self) {
        if let Ok(kill) = self.file("cgroup.kill") {
            let _ = fs::write(kill, "1");
            let _ = self.freeze(false);
        }
    }

    /// Returns the processes in it.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut directories = self.unified.iter().chain(&self.others);
        let text = directories.find_map(|directory| fs::read_to_string(directory.join(MEMBERS)).ok());
        text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Removes it; true when it is gone.
    pub(super) fn remove(&self) -> bool {
        self.unified.iter().chain(&self.others).fold(true, |gone, directory| {
            let result = fs::remove_dir(directory);
            gone && result.err().is_none_or(|error| error.kind() == io::ErrorKind::NotFound)
        })
    }

    /// Removes what a process has just left, which the kernel may see a moment later.
    fn remove_soon(&self) {
        for attempt in 0..200 {
            if self.remove() {
                return;
            }
            // mostly at once; on a machine that is busy the last of a process is seen late
            if attempt < 50 { std::thread::yield_now() } else { super::serve::moment() }
        }
    }

    /// Returns the bytes of memory in use but for files that can be read again; nothing where nobody counts.
    pub(super) fn memory_used(&self) -> Option<u64> {
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        self.unified.iter().chain(&self.others).find_map(|directory| {
            let (used, kept) = match number(directory.join("memory.current")) {
                Some(used) => (used, "inactive_file "),
                None => (number(directory.join("memory.usage_in_bytes"))?, "total_inactive_file "),
            };
            let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
            let files = stat.lines().find_map(|line| line.strip_prefix(kept)?.parse().ok()).unwrap_or(0);
            Some(used.saturating_sub(files))
        })
    }
}

/// Returns whether everything stands still, by the file of [`Cgroup::events`].
pub(super) fn is_frozen(events: &mut File) -> io::Result<bool> {
    let mut text = String::new();
    events.rewind()?;
    events.read_to_string(&mut text)?;
    Ok(text.lines().any(|line| line == "frozen 1"))
}
