//! A container engine, by its API on a unix socket.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::error::{Answer as _, shown};
use super::plan::{NODE_LABEL, Plan, SANDBOX_LABEL};

/// How long one call may take, in seconds; images have longer.
const CALL_SECONDS: u64 = 120;
/// How long an import, a load or a pull may take, in seconds.
const IMAGE_SECONDS: u64 = 3600;
/// The most bytes of an answer of podman's own API.
const MAX_ANSWER: usize = 64 * 1024;
/// The most bytes of a container's log that are looked at.
const MAX_LOG: usize = 2048;

/// Whose engine it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavor {
    Podman,
    Docker,
}

impl Flavor {
    /// The name in capabilities.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }
}

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) flavor: Flavor,
    pub(super) version: String,
    /// It runs as an ordinary user.
    pub(super) rootless: bool,
    /// It maps every container's ids in one way of its own.
    pub(super) remapped: bool,
    pub(super) seccomp: bool,
    /// Its cgroups can hold still and limit what is in them.
    pub(super) cgroups: bool,
    pub(super) memory: bool,
    pub(super) cpu: bool,
    pub(super) pids: bool,
    /// The runtimes it knows by name.
    pub(super) runtimes: Vec<String>,
}

/// An engine that answers.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    docker: Docker,
    images: Docker,
    socket: PathBuf,
    pub(super) facts: Facts,
}

/// How a container stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) node: String,
    pub(super) sandbox: String,
    pub(super) state: Standing,
    /// The host pid of its first process; 0 when it has none.
    pub(super) pid: i64,
}

/// Whether a container's processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Running,
    Paused,
    Over,
}

/// How long podman is left alone after an answer that made no sense.
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_millis(300);
/// How often a container whose files are in use is removed again.
const BUSY_TRIES: u32 = 20;

impl Engine {
    /// Returns whether an engine answers at `socket`.
    pub(super) async fn answers(socket: &Path) -> bool {
        let docker = Docker::connect_with_unix(&socket.to_string_lossy(), CALL_SECONDS, API_DEFAULT_VERSION);
        match docker {
            Ok(docker) => docker.ping().await.is_ok(),
            Err(_) => false,
        }
    }

    /// Asks who answers on `socket`.
    pub(super) async fn connect(socket: &Path) -> Result<Self, Error> {
        let path = socket.to_string_lossy();
        let docker = Docker::connect_with_unix(&path, CALL_SECONDS, API_DEFAULT_VERSION)?;
        let docker = docker.negotiate_version().await?;
        let (version, info) = (docker.version().await?, docker.info().await?);
        let podman =
            version.components.iter().flatten().any(|component| component.name.starts_with("Podman"));
        let flavor = if podman { Flavor::Podman } else { Flavor::Docker };
        let options = info.security_options.unwrap_or_default();
        let says = |name: &str| options.iter().any(|option| option.split(',').any(|part| part == name));
        // podman 4.3 tells it in its own API alone
        let rootless = says("name=rootless") || (podman && Box::pin(is_rootless(socket)).await?);
        let second = info.cgroup_version.is_some_and(|version| version.to_string() == "2");
        let systemd = info.cgroup_driver.is_some_and(|driver| driver.to_string() == "systemd");
        // an ordinary user has no cgroup of its own but where systemd gave it one
        let cgroups = !rootless || (second && systemd);
        let facts = Facts {
            flavor,
            version: shown(&version.version.unwrap_or_default()),
            rootless,
            remapped: says("name=userns"),
            seccomp: says("name=seccomp"),
            cgroups,
            memory: cgroups && info.memory_limit == Some(true),
            cpu: cgroups && info.cpu_cfs_quota == Some(true),
            pids: cgroups && info.pids_limit == Some(true),
            runtimes: info.runtimes.map(|runtimes| runtimes.into_keys().collect()).unwrap_or_default(),
        };
        let images = docker.clone().with_timeout(std::time::Duration::from_secs(IMAGE_SECONDS));
        Ok(Self { docker, images, socket: socket.to_owned(), facts })
    }

    /// Returns the client for images, which is patient.
    pub(super) const fn images(&self) -> &Docker {
        &self.images
    }

    /// Makes a container; one of the same name that is there already is removed first. Returns its id.
    pub(super) async fn create(&self, plan: &Plan) -> Result<String, Error> {
        match self.create_once(plan).await {
            // podman says 500 where Docker says 409
            Err(Error::DockerResponseServerError { status_code: 409 | 500, message })
                if message.contains("already in use") =>
            {
                self.remove(&plan.name).await?;
                self.create_once(plan).await
            }
            // an ordinary user's podman that is asked twice at once at its start may find its own ids empty
            Err(Error::DockerResponseServerError { status_code: 500, message })
                if message.contains("keep-id requires") && message.contains("%!w(<nil>)") =>
            {
                super::serve::pause(ASK_AGAIN).await;
                self.create_once(plan).await
            }
            other => other,
        }
    }

    async fn create_once(&self, plan: &Plan) -> Result<String, Error> {
        if self.facts.flavor == Flavor::Docker {
            let options = CreateContainerOptionsBuilder::new().name(&plan.name).build();
            return Ok(self.docker.create_container(Some(options), plan.docker()).await?.id);
        }
        let body = serde_json::to_vec(&plan.podman()).map_err(|error| io::Error::other(error.to_string()))?;
        let (status_code, answer) =
            ask(&self.socket, http::Method::POST, "/v4.0.0/libpod/containers/create", body).await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
        match answer["Id"].as_str() {
            Some(id) if status_code == 201 => Ok(id.to_owned()),
            _ => {
                let message = answer["message"].as_str().unwrap_or("podman said nothing").to_owned();
                Err(Error::DockerResponseServerError { status_code, message })
            }
        }
    }

    /// Starts a container.
    pub(super) async fn start(&self, name: &str) -> Result<(), Error> {
        self.docker.start_container(name, None).await
    }

    /// Holds a container's processes still.
    pub(super) async fn pause(&self, name: &str) -> Result<(), Error> {
        self.docker.pause_container(name).await
    }

    /// Lets a container's processes go on; one that is not held is left as it is.
    pub(super) async fn unpause(&self, name: &str) -> Result<(), Error> {
        let paused = self.look(name).await?.is_some_and(|container| container.state == Standing::Paused);
        if paused { self.docker.unpause_container(name).await } else { Ok(()) }
    }

    /// Ends and removes a container; one that is not there is removed.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Error> {
        let mut tries = BUSY_TRIES;
        loop {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            match self.docker.remove_container(name, Some(options)).await.there() {
                // somebody else removes it just now
                Err(Error::DockerResponseServerError { status_code: 409, .. }) => return Ok(()),
                // podman takes away what its own clean-up of the ended container has not let go of
                Err(Error::DockerResponseServerError { status_code: 500, message })
                    if tries > 0 && message.contains("device or resource busy") =>
                {
                    tries -= 1;
                    super::serve::pause(ASK_AGAIN).await;
                }
                other => return other.map(|_| ()),
            }
        }
    }

    /// Returns how a container stands.
    pub(super) async fn look(&self, name: &str) -> Result<Option<Container>, Error> {
        let found = self.docker.inspect_container(name, None).await.there()?;
        Ok(found.map(container))
    }

    /// Returns what a container's first process complained.
    pub(super) async fn log(&self, name: &str) -> String {
        let options = LogsOptionsBuilder::new().stderr(true).stdout(true).tail("20").build();
        let mut lines = self.docker.logs(name, Some(options));
        let mut text = String::new();
        while let Some(Ok(line)) = lines.next().await {
            text.push_str(&line.to_string());
            if text.len() > MAX_LOG {
                break;
            }
        }
        shown(&text)
    }

    /// Lists the containers of a node: their ids and whose they are.
    pub(super) async fn of_node(&self, node: &str) -> Result<Vec<(String, String)>, Error> {
        let filters = HashMap::from([("label", vec![format!("{NODE_LABEL}={node}")])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let found = self.docker.list_containers(Some(options)).await?;
        let whose = |labels: Option<HashMap<String, String>>| labels?.remove(SANDBOX_LABEL);
        Ok(found
            .into_iter()
            .filter_map(|container| Some((container.id?, whose(container.labels).unwrap_or_default())))
            .collect())
    }
}

fn container(found: ContainerInspectResponse) -> Container {
    let mut labels = found.config.and_then(|config| config.labels).unwrap_or_default();
    let state = found.state.unwrap_or_default();
    let standing = match state.status {
        Some(ContainerStateStatusEnum::PAUSED) => Standing::Paused,
        Some(ContainerStateStatusEnum::RUNNING) => Standing::Running,
        _ => Standing::Over,
    };
    Container {
        id: found.id.unwrap_or_default(),
        node: labels.remove(NODE_LABEL).unwrap_or_default(),
        sandbox: labels.remove(SANDBOX_LABEL).unwrap_or_default(),
        state: standing,
        pid: state.pid.unwrap_or_default(),
    }
}

/// Whether podman says that it runs as an ordinary user.
async fn is_rootless(socket: &Path) -> io::Result<bool> {
    let (_, answer) = ask(socket, http::Method::GET, "/v4.0.0/libpod/info", Vec::new()).await?;
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
    Ok(answer["host"]["security"]["rootless"] == true)
}

/// Asks podman's own API, which the client library does not know.
async fn ask(socket: &Path, method: http::Method, path: &str, body: Vec<u8>) -> io::Result<(u16, Bytes)> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, "podman")
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::CONNECTION, "close")
        .body(Full::new(Bytes::from(body)))
        .map_err(io::Error::other)?;
    let exchange = async move {
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(io::Error::other)?;
        Ok((status, body.to_bytes()))
    };
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}
