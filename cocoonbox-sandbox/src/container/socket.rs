//! Where engines of this machine answer, if any does.

use std::path::PathBuf;
use std::time::Duration;

use super::engine::{Engine, Flavor};
use super::serve;

/// How long an engine has to say who it is; one that was started by its socket needs a moment.
const LIMIT: Duration = Duration::from_secs(10);

/// The sockets where an engine may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineSockets {
    /// Podman's, in the order they are tried.
    pub podman: Vec<PathBuf>,
    /// Docker's.
    pub docker: Vec<PathBuf>,
}

impl EngineSockets {
    /// Returns where podman and Docker listen by default, for root's engine and this user's own; each user first looks
    /// for their own.
    pub fn of_this_user() -> Self {
        let own = rustix::process::geteuid();
        let places = |system: &str, user: &str| {
            let mut list = vec![PathBuf::from(system)];
            if !own.is_root() {
                list.insert(0, PathBuf::from(format!("/run/user/{}/{user}", own.as_raw())));
            }
            list
        };
        Self {
            podman: places("/run/podman/podman.sock", "podman/podman.sock"),
            docker: places("/run/docker.sock", "docker.sock"),
        }
    }

    /// Returns the first of podman's sockets where podman answers.
    pub async fn podman(&self) -> Option<PathBuf> {
        first(&self.podman, Flavor::Podman).await
    }

    /// Returns the first of Docker's sockets where Docker answers.
    pub async fn docker(&self) -> Option<PathBuf> {
        first(&self.docker, Flavor::Docker).await
    }
}

async fn first(sockets: &[PathBuf], flavor: Flavor) -> Option<PathBuf> {
    for socket in sockets.iter().filter(|socket| socket.exists()) {
        if let Some(Ok(engine)) = serve::within(LIMIT, Engine::connect(socket)).await
            && engine.facts.flavor == flavor
        {
            return Some(socket.clone());
        }
    }
    None
}
