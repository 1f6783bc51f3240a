//! What this machine can do, found out by doing it.
//!
//! A machine's files say what it should be able to do: `/dev/kvm` opens where no guest boots, namespaces are compiled in
//! and switched off, a cgroup is mounted and cannot be written. So each check does the thing in small, cleans up after
//! itself, and says in words what is missing and what to type.

mod cgroup;
mod child;
mod kvm;
pub(crate) mod namespace;
mod place;
mod tool;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

/// What to probe with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProbeOptions {
    /// The directory that boxes will live in; it need not be there.
    pub data: PathBuf,
    /// Where a podman service may listen.
    pub podman_sockets: Vec<PathBuf>,
    /// How long one program may take.
    pub limit: Duration,
}

impl ProbeOptions {
    /// Probes for boxes in `data`, with ten seconds for each program.
    pub fn new(data: PathBuf) -> Self {
        let uid = rustix::process::getuid().as_raw();
        let user = PathBuf::from(format!("/run/user/{uid}/podman/podman.sock"));
        let podman_sockets = vec![PathBuf::from("/run/podman/podman.sock"), user];
        Self { data, podman_sockets, limit: Duration::from_secs(10) }
    }

    /// Sets how long one program may take.
    pub const fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

/// The answer of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::exhaustive_enums, reason = "callers print each answer")]
pub enum Status {
    /// It works.
    Yes,
    /// It works in part, or something stands in for it.
    Degraded,
    /// It does not work.
    No,
}

/// One thing that a machine can do or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// What was checked, in a few words.
    pub name: &'static str,
    /// Whether it works.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// Why it does not work; there whenever the status is not yes.
    pub reason: Option<String>,
    /// What to do about it; there whenever the status is not yes.
    pub remedy: Option<String>,
}

impl Check {
    pub(crate) fn yes(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: Status::Yes, detail: detail.into(), reason: None, remedy: None }
    }

    /// Makes one that says no.
    pub fn no(
        name: &'static str,
        detail: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (reason, remedy) = (Some(reason.into()), Some(remedy.into()));
        Self { name, status: Status::No, detail: detail.into(), reason, remedy }
    }

    pub(crate) fn degraded(mut self) -> Self {
        self.status = Status::Degraded;
        self
    }
}

/// What a machine can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Each check, always all of them and in one order.
    pub checks: Vec<Check>,
}

impl Report {
    /// Returns the check called `name`.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }

    /// Returns whether bubblewrap boxes run here: what they need is there, if only in part.
    pub fn boxes_run(&self) -> bool {
        [namespace::NAME, tool::BUBBLEWRAP, place::DATA, place::SPACE, place::PATHS]
            .iter()
            .all(|name| self.check(name).is_some_and(|check| check.status != Status::No))
    }
}

/// Probes this machine. Nothing of it is left behind.
pub async fn probe(options: &ProbeOptions) -> Report {
    let (limit, data) = (options.limit, options.data.as_path());
    let (bubblewrap, podman, tmux, rsync, git) = tokio::join!(
        tool::bubblewrap(limit),
        tool::podman(&options.podman_sockets, limit),
        tool::version("tmux", &["-V"], "tmux", limit),
        tool::version("rsync", &["--version"], "rsync", limit),
        tool::version("git", &["--version"], "git", limit),
    );
    // what forks and waits does so on threads that may wait; they end by themselves in seconds
    let (namespaces, freezer, limits, kvm) = tokio::join!(
        tokio::task::spawn_blocking(namespace::check),
        tokio::task::spawn_blocking(cgroup::check),
        tokio::task::spawn_blocking(cgroup::limits),
        tokio::task::spawn_blocking(kvm::check),
    );
    let failed =
        |name| move |_| Check::no(name, "not found out", "the check itself failed", "report this as a fault");
    let checks = vec![
        namespaces.unwrap_or_else(failed(namespace::NAME)),
        bubblewrap,
        freezer.unwrap_or_else(failed(cgroup::NAME)),
        limits.unwrap_or_else(failed(cgroup::LIMITS)),
        namespace::subordinate_ids(),
        namespace::landlock(),
        kvm.unwrap_or_else(failed(kvm::NAME)),
        podman,
        tmux,
        rsync,
        git,
        place::data(data),
        place::space(data),
        place::paths(data),
    ];
    Report { checks }
}
