//! What of a node is on the machine: processes, mounts, cgroups, sockets, loop devices, directories.
//!
//! Everything is found by looking at the machine, never by asking the node. Other nodes of the machine do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A claim as its record says, and its first process as the machine says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "the fields are what they are called")]
pub struct Claim {
    pub id: String,
    pub tenant: Option<String>,
    pub phase: String,
    /// Its first process, if that is there.
    pub first: Option<i32>,
}

impl Claim {
    /// Whether processes of it may be there.
    fn may_have_processes(&self) -> bool {
        matches!(self.phase.as_str(), "running" | "frozen")
    }
}

/// Reads the records below a node's data directory.
///
/// # Errors
/// Names each record that cannot be read: a journal is whole at every moment.
pub fn claims(node: &Path) -> Result<Vec<Claim>, String> {
    let mut claims = Vec::new();
    for entry in fs::read_dir(node.join("claims")).into_iter().flatten().flatten() {
        let path = entry.path().join("claim.json");
        // a directory without a record is about to get one, or was moved away meanwhile
        let Ok(bytes) = fs::read(&path) else { continue };
        let record: Value =
            serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let phase = match &record["phase"] {
            Value::String(phase) => phase.clone(),
            Value::Object(phase) => phase.keys().next().cloned().unwrap_or_default(),
            other => return Err(format!("{}: the phase is {other}", path.display())),
        };
        let first = record["process"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let start = record["process"]["start_time"].as_u64();
        claims.push(Claim {
            id: text(&record["id"]).ok_or_else(|| format!("{}: no id", path.display()))?,
            tenant: text(&record["tenant"]),
            phase,
            first: first.filter(|pid| start.is_some() && stat(*pid).map(|stat| stat.1) == start),
        });
    }
    Ok(claims)
}

/// Returns a process's parent and start time; nothing when it is over.
fn stat(pid: i32) -> Option<(i32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    Some((parent, fields.nth(17)?.parse().ok()?))
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_launcher(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"cocoonbox-box "))
}

/// A process that belongs to a box.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "the fields are what they are called")]
pub struct Resident {
    pub pid: i32,
    pub claim: String,
    pub command: String,
}

/// Returns every process that sees files of a claim of `node`: launchers and all that runs in boxes.
pub fn residents(node: &Path) -> Vec<Resident> {
    let marks = [mark(node), mark(node).replace("/claims/", "/trash/")];
    pids()
        .filter_map(|pid| {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
            let (_, rest) = marks.iter().find_map(|mark| mounts.split_once(mark))?;
            let claim: String =
                rest.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
            // one that ends while we look may have no mounts of its own any more, and no state
            stat(pid)?;
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ").trim_end().to_owned();
            Some(Resident { pid, claim, command })
        })
        .collect()
}

/// What the paths of a node's claims have in every mount namespace: the temporary folder's own name is in it.
fn mark(node: &Path) -> String {
    let mut parts: Vec<_> = node.components().rev().take(3).map(|part| part.as_os_str().to_owned()).collect();
    parts.reverse();
    let path: PathBuf = parts.iter().collect();
    format!("/{}/claims/", path.display())
}

/// Returns the directories of the cgroups that `pid` is in and that are named after a claim.
fn cgroups_of(pid: i32) -> Vec<PathBuf> {
    let (Ok(text), Ok(mounts)) =
        (fs::read_to_string(format!("/proc/{pid}/cgroup")), fs::read_to_string("/proc/self/mountinfo"))
    else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        if !path.rsplit('/').next().is_some_and(|name| name.starts_with("sb_")) {
            continue;
        }
        for mount in mounts.lines() {
            let Some((left, right)) = mount.split_once(" - ") else { continue };
            let mut kind = right.split(' ');
            let is_v2 = kind.next() == Some("cgroup2");
            let options = kind.nth(1).unwrap_or_default();
            let wanted = if is_v2 {
                controllers.is_empty()
            } else {
                !controllers.is_empty()
                    && right.starts_with("cgroup ")
                    && controllers.split(',').all(|one| options.split(',').any(|option| option == one))
            };
            let mut left = left.split(' ').skip(3);
            if let (true, Some(root), Some(point)) = (wanted, left.next(), left.next()) {
                let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
                found.push(PathBuf::from(format!("{point}{below}")));
            }
        }
    }
    found
}

/// What is known of a node's cgroups: collected while boxes run, as only then the machine tells where they are.
#[derive(Debug, Default)]
pub struct Cgroups(BTreeSet<PathBuf>);

impl Cgroups {
    /// Looks where the boxes' first processes are.
    pub fn look(&mut self, claims: &[Claim]) {
        for pid in claims.iter().filter_map(|claim| claim.first) {
            self.0.extend(cgroups_of(pid));
        }
    }

    /// Returns how many were seen.
    pub fn seen(&self) -> usize {
        self.0.len()
    }

    /// Returns those that are there and belong to none of `live`.
    fn left(&self, live: &BTreeSet<&str>) -> BTreeSet<PathBuf> {
        let parents: BTreeSet<_> = self.0.iter().filter_map(|path| path.parent()).collect();
        let siblings = parents.into_iter().flat_map(|parent| {
            fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path())
        });
        let all = siblings.chain(self.0.iter().cloned()).filter(|path| path.is_dir());
        all.filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            !live.contains(name)
        })
        .collect()
    }

    /// Returns the directories above the boxes' own that are there.
    pub fn parents(&self) -> Vec<PathBuf> {
        let parents: BTreeSet<_> = self.0.iter().filter_map(|path| path.parent()).collect();
        parents.into_iter().filter(|path| path.is_dir()).map(Path::to_owned).collect()
    }
}

/// Names what of `node` is on the machine without a claim that explains it; `server` may have no dead children.
pub fn leftovers(node: &Path, cgroups: &Cgroups, server: Option<i32>) -> Vec<String> {
    let claims = match claims(node) {
        Ok(claims) => claims,
        Err(broken) => return vec![format!("journal: {broken}")],
    };
    let by_id: BTreeMap<_, _> = claims.iter().map(|claim| (claim.id.as_str(), claim)).collect();
    let lives = |id: &str| by_id.get(id).is_some_and(|claim| claim.may_have_processes());
    let mut left: Vec<String> = residents(node)
        .into_iter()
        .filter(|resident| !lives(&resident.claim))
        .map(|resident| format!("process {} of {}: {}", resident.pid, resident.claim, resident.command))
        .collect();
    for claim in &claims {
        if claim.may_have_processes() && claim.first.is_none() {
            left.push(format!("claim {} is {} without a process", claim.id, claim.phase));
        }
    }

    let running: BTreeSet<&str> = by_id.keys().copied().filter(|id| lives(id)).collect();
    left.extend(cgroups.left(&running).iter().map(|path| format!("cgroup {}", path.display())));

    let mark = mark(node);
    let claim_in = |text: &str| {
        let (_, rest) = text.split_once(&mark)?;
        let id: String =
            rest.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
        Some(id)
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().filter(|line| claim_in(line).is_some_and(|id| !by_id.contains_key(&*id)));
    left.extend(mounted.map(|line| format!("mount {line}")));

    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if claim_in(&backing).is_some_and(|id| !by_id.contains_key(&*id))
            || backing.contains(&mark.replace("/claims/", "/trash/"))
        {
            left.push(format!("loop device {} on {}", entry.path().display(), backing.trim()));
        }
    }

    for (folder, expected) in
        [("claims", by_id.keys().copied().collect::<BTreeSet<_>>()), ("trash", BTreeSet::new())]
    {
        for entry in fs::read_dir(node.join(folder)).into_iter().flatten().flatten() {
            if !entry.file_name().to_str().is_some_and(|name| expected.contains(name)) {
                left.push(format!("directory {}", entry.path().display()));
            }
        }
    }
    sockets(node, 4, &mut |path| {
        let inside = claim_in(&path.to_string_lossy());
        if inside.is_none_or(|id| !by_id.contains_key(&*id)) && path.starts_with(node.join("claims")) {
            left.push(format!("socket {}", path.display()));
        }
    });

    if let Some(server) = server {
        for pid in pids() {
            let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let fields = text.rsplit_once(')').map(|(_, rest)| rest.trim_start()).unwrap_or_default();
            if fields.starts_with(&format!("Z {server} ")) {
                left.push(format!("zombie {pid} of the server"));
            }
        }
    }
    left
}

/// Calls `found` for each socket at most `depth` folders below `folder`.
fn sockets(folder: &Path, depth: u32, found: &mut impl FnMut(PathBuf)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_socket() => found(entry.path()),
            Ok(kind) if kind.is_dir() && depth > 0 => sockets(&entry.path(), depth - 1, found),
            _ => {}
        }
    }
}

/// Returns how many files a process has open.
pub fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Ends every process of a node's boxes and removes their cgroups: for a test that failed half-way.
pub fn clear(node: &Path, cgroups: &mut Cgroups) {
    for _ in 0..50 {
        let mut residents: Vec<i32> = residents(node).into_iter().map(|resident| resident.pid).collect();
        // where the directory is a file system of its own, mounts do not tell whose they are, but records do
        for first in claims(node).unwrap_or_default().into_iter().filter_map(|claim| claim.first) {
            let launcher = stat(first).map(|(parent, _)| parent).filter(|parent| is_launcher(*parent));
            residents.extend([Some(first), launcher].into_iter().flatten());
        }
        for pid in &residents {
            cgroups.0.extend(cgroups_of(*pid));
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
            // one that stands still ends when it is let go
            let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
        }
        for cgroup in cgroups.left(&BTreeSet::new()) {
            let _ = fs::write(cgroup.join("cgroup.kill"), "1");
            let _ = fs::write(cgroup.join("cgroup.freeze"), "0");
            let _ = fs::remove_dir(cgroup);
        }
        if residents.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for parent in cgroups.parents() {
        let _ = fs::remove_dir(parent);
    }
}
