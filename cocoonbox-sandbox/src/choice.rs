//! Which backend makes the boxes of a node.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use cocoonbox_core::backend::SandboxBackend;
use cocoonbox_core::{Clock, Entropy, ImageName};

use crate::{BwrapBackend, BwrapConfig, OpenError};
#[cfg(feature = "container")]
use crate::{ContainerBackend, ContainerConfig, EngineChoice, EngineSockets};

/// A backend by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendChoice {
    /// A container engine that answers already, where an image for it is named; else bubblewrap.
    #[default]
    Auto,
    /// Bubblewrap.
    Bwrap,
    /// Podman: a service that answers, else one of the node's own.
    Podman,
    /// Docker.
    Docker,
}

/// A text that names no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a backend: use auto, bwrap, podman or docker")]
#[non_exhaustive]
pub struct UnknownBackend;

impl FromStr for BackendChoice {
    type Err = UnknownBackend;
    fn from_str(text: &str) -> Result<Self, UnknownBackend> {
        match text {
            "auto" => Ok(Self::Auto),
            "bwrap" => Ok(Self::Bwrap),
            "podman" => Ok(Self::Podman),
            "docker" => Ok(Self::Docker),
            _ => Err(UnknownBackend),
        }
    }
}

/// What a choice needs to know of container engines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The engine's socket, where it was named.
    pub socket: Option<PathBuf>,
    /// The engine's runtime for boxes.
    pub runtime: Option<String>,
    /// Where images are pulled from.
    pub registry: Option<String>,
    /// The image of boxes that name none.
    pub image: Option<ImageName>,
}

impl EngineOptions {
    /// Names the engine's socket.
    pub fn with_socket(mut self, socket: Option<PathBuf>) -> Self {
        self.socket = socket;
        self
    }
    /// Sets the engine's runtime for boxes.
    pub fn with_runtime(mut self, runtime: Option<String>) -> Self {
        self.runtime = runtime;
        self
    }
    /// Sets where images are pulled from.
    pub fn with_registry(mut self, registry: Option<String>) -> Self {
        self.registry = registry;
        self
    }
    /// Sets the image of boxes that name none.
    pub fn with_image(mut self, image: Option<ImageName>) -> Self {
        self.image = image;
        self
    }

    /// Whether boxes that name no image can be containers.
    #[cfg(feature = "container")]
    fn has_image(&self) -> bool {
        self.image.as_ref().is_some_and(|image| *image != ImageName::host())
    }
}

/// Opens the backend of a choice. `bwrap` says where, for whichever it becomes.
///
/// # Errors
/// Any of [`OpenError`].
pub async fn open_backend(
    choice: BackendChoice,
    bwrap: BwrapConfig,
    options: EngineOptions,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
) -> Result<Arc<dyn SandboxBackend>, OpenError> {
    #[cfg(feature = "container")]
    if let Some(engine) = engine(choice, &options).await? {
        let mut config = ContainerConfig::new(&bwrap.data, &bwrap.agent, engine)
            .with_max_claims(bwrap.max_claims)
            .with_doors(Arc::clone(&bwrap.doors));
        config.runtime = options.runtime;
        config.registry = options.registry;
        let backend = ContainerBackend::open(config, clock, entropy).await?;
        tracing::info!(backend = backend.capabilities().backend, "boxes are containers");
        return Ok(backend);
    }
    #[cfg(not(feature = "container"))]
    if !matches!(choice, BackendChoice::Auto | BackendChoice::Bwrap) {
        let reason = "this program was built without container engines".to_owned();
        return Err(OpenError::Engine {
            place: options.socket.unwrap_or_default().display().to_string(),
            reason,
        });
    }
    let backend: Arc<dyn SandboxBackend> = BwrapBackend::open(bwrap, clock, entropy).await?;
    Ok(backend)
}

/// Finds the engine of a choice; nothing when it is bubblewrap's turn.
#[cfg(feature = "container")]
async fn engine(choice: BackendChoice, options: &EngineOptions) -> Result<Option<EngineChoice>, OpenError> {
    let sockets = EngineSockets::of_this_user();
    match choice {
        BackendChoice::Bwrap => Ok(None),
        BackendChoice::Auto if !options.has_image() => {
            if let Some(socket) = &options.socket {
                let socket = socket.display();
                tracing::warn!(%socket, "an engine is named and no image for its boxes: boxes are bubblewrap's");
            }
            Ok(None)
        }
        _ if options.socket.is_some() => Ok(options.socket.clone().map(EngineChoice::Socket)),
        BackendChoice::Auto => {
            let podman = sockets.podman().await;
            let found = if podman.is_some() { podman } else { sockets.docker().await };
            Ok(found.map(EngineChoice::Socket))
        }
        BackendChoice::Podman => {
            Ok(Some(sockets.podman().await.map_or_else(EngineChoice::podman, EngineChoice::Socket)))
        }
        BackendChoice::Docker => match sockets.docker().await {
            Some(socket) => Ok(Some(EngineChoice::Socket(socket))),
            None => Err(OpenError::Engine {
                place: sockets.docker.first().cloned().unwrap_or_default().display().to_string(),
                reason: "Docker does not answer: start it, or name its socket in DOCKER_SOCKET".to_owned(),
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_have_names() {
        for (text, expected) in [
            ("auto", Some(BackendChoice::Auto)),
            ("bwrap", Some(BackendChoice::Bwrap)),
            ("podman", Some(BackendChoice::Podman)),
            ("docker", Some(BackendChoice::Docker)),
            ("Docker", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text:?}");
        }
    }

    #[cfg(feature = "container")]
    #[tokio::test]
    async fn an_engine_is_chosen_by_itself_only_where_an_image_is_named()
    -> Result<(), Box<dyn std::error::Error>> {
        let named = || EngineOptions::default().with_socket(Some("/nowhere.sock".into()));
        let chosen = Some(EngineChoice::Socket("/nowhere.sock".into()));
        assert_eq!(engine(BackendChoice::Auto, &named()).await?, None);
        assert_eq!(engine(BackendChoice::Auto, &named().with_image(Some(ImageName::host()))).await?, None);
        let small = named().with_image(Some("small:1".parse()?));
        assert_eq!(engine(BackendChoice::Auto, &small).await?, chosen);
        assert_eq!(engine(BackendChoice::Bwrap, &small).await?, None);
        for choice in [BackendChoice::Podman, BackendChoice::Docker] {
            assert_eq!(engine(choice, &named()).await?, chosen);
        }
        Ok(())
    }
}
