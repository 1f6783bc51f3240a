use serde::{Deserialize, Serialize};

use super::NetworkMode;

/// How a limit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Enforcement {
    /// The kernel holds it, whatever the guest does.
    Enforced,
    /// Somebody looks at it now and then and stops the box when it is over.
    Watched,
    /// It is asked for (an rlimit, a nice value) and a hostile guest can get round it.
    Advisory,
    /// There is none.
    Absent,
}

/// How processes are held still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Freeze {
    /// By the kernel, all at once (a cgroup's freezer, a paused machine).
    Kernel,
    /// By SIGSTOP to each process, which a process can tell.
    Signals,
    /// Not at all: hibernating ends the processes.
    Absent,
}

/// How each limit of a box's size holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LimitCapabilities {
    /// Memory of all processes.
    pub memory: Enforcement,
    /// Share of the processors.
    pub cpu: Enforcement,
    /// Number of processes.
    pub pids: Enforcement,
    /// Bytes on disk.
    pub disk: Enforcement,
}

impl LimitCapabilities {
    /// The same answer for each limit.
    pub const fn all(enforcement: Enforcement) -> Self {
        Self { memory: enforcement, cpu: enforcement, pids: enforcement, disk: enforcement }
    }
}

/// What a backend can do and guarantee, asked before instead of found out after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name: `memory`, `bwrap`, ….
    pub backend: &'static str,
    /// The network modes a claim may ask for.
    pub network_modes: Vec<NetworkMode>,
    /// How a hibernate with memory holds processes still; [`Freeze::Absent`] means that only files are ever kept.
    pub freeze: Freeze,
    /// Whether processes outlive a restart of the backend's own process.
    pub survives_restart: bool,
    /// Whether the agent in the box has a uid of its own, so that the box's user cannot act as the agent.
    pub separate_agent_user: bool,
    /// Whether the box's user can become root inside (passwordless sudo, apt).
    pub privileges_in_box: bool,
    /// Whether a claim may ask for user namespaces of its own inside.
    pub nesting: bool,
    /// Whether claims are counted by tenant.
    pub tenants: bool,
    /// How limits hold.
    pub limits: LimitCapabilities,
}

impl Capabilities {
    /// Makes the least that a backend can claim to do.
    pub fn new(backend: &'static str) -> Self {
        Self {
            backend,
            network_modes: vec![NetworkMode::None],
            freeze: Freeze::Absent,
            survives_restart: false,
            separate_agent_user: false,
            privileges_in_box: false,
            nesting: false,
            tenants: false,
            limits: LimitCapabilities::all(Enforcement::Absent),
        }
    }

    /// Sets the network modes.
    pub fn with_network_modes(mut self, modes: Vec<NetworkMode>) -> Self {
        self.network_modes = modes;
        self
    }
    /// Sets how processes are held still.
    pub const fn with_freeze(mut self, freeze: Freeze) -> Self {
        self.freeze = freeze;
        self
    }
    /// Says that processes outlive a restart of the backend.
    pub const fn with_survives_restart(mut self, survives: bool) -> Self {
        self.survives_restart = survives;
        self
    }
    /// Says that user namespaces inside may be asked for.
    pub const fn with_nesting(mut self, nesting: bool) -> Self {
        self.nesting = nesting;
        self
    }
    /// Says that claims are counted by tenant.
    pub const fn with_tenants(mut self, tenants: bool) -> Self {
        self.tenants = tenants;
        self
    }
    /// Sets how limits hold.
    pub const fn with_limits(mut self, limits: LimitCapabilities) -> Self {
        self.limits = limits;
        self
    }
}
