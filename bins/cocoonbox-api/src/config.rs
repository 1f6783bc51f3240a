//! What a server is told: flags over environment over `api.yaml` over defaults.

use std::fs;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cocoonbox_client::cli::{Environment, UpArgs};
use cocoonbox_core::ImageName;
use serde::Deserialize;

/// The keys of `api.yaml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: Option<SocketAddr>,
    backend: Option<String>,
    default_image: Option<String>,
    user_idle_hibernate: Option<String>,
    freeze_to_disk_after: Option<String>,
    max_boxes: Option<u32>,
    max_running: Option<u32>,
    database_url_file: Option<PathBuf>,
    agent: Option<PathBuf>,
}

/// The most bytes that `api.yaml` may have.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// What holds after all layers are read.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where everything is kept.
    pub data: PathBuf,
    /// The address of the one port.
    pub listen: SocketAddr,
    /// The image of new boxes.
    pub default_image: ImageName,
    /// How long a user's box runs unused; zero is for ever.
    pub user_idle_hibernate: Duration,
    /// How long a sleeping box keeps its memory; zero is for ever.
    pub freeze_to_disk_after: Duration,
    /// Boxes that a user may have.
    pub max_boxes: u32,
    /// Boxes of a user that may run at once.
    pub max_running: u32,
    /// A file with a PostgreSQL URL; absent: SQLite in the data directory.
    pub database_url_file: Option<PathBuf>,
    /// The agent's binary.
    pub agent: PathBuf,
}

impl ServerConfig {
    /// Reads the environment and `api.yaml` under the flags.
    ///
    /// # Errors
    /// A setting cannot be read; the message names it.
    pub fn resolve(flags: &UpArgs, environment: &Environment) -> anyhow::Result<Self> {
        let text = |key: &str| -> anyhow::Result<Option<String>> {
            let name = format!("COCOONBOX_{}", key.to_uppercase());
            let value = environment.variable(&name).map(|value| value.to_str().map(ToOwned::to_owned));
            value.map(|value| value.with_context(|| format!("{name} is not UTF-8"))).transpose()
        };
        let path = |name: &str| environment.variable(name).map(PathBuf::from);
        let data = flags.data.clone().or_else(|| path("COCOONBOX_DATA"));
        let data = data.map_or_else(|| default_data(environment), Ok)?;
        let data = std::path::absolute(&data).context("the data directory has no absolute path")?;
        let file = File::read(&data.join("api.yaml"))?;

        let backend = flags.backend.clone().or(text("backend")?).or(file.backend).unwrap_or_else(|| "auto".to_owned());
        if !matches!(backend.as_str(), "auto" | "bwrap") {
            bail!("there is no backend {backend:?} in this version: use auto or bwrap");
        }
        let listen = number(flags.listen, text("listen")?, file.listen, "listen")?;
        let image = flags.default_image.clone().or(text("default_image")?).or(file.default_image);
        let span = |flag: &Option<String>, file: Option<String>, key: &str| -> anyhow::Result<Duration> {
            let Some(value) = flag.clone().or(text(key)?).or(file) else { return Ok(Duration::ZERO) };
            humantime::parse_duration(&value)
                .with_context(|| format!("{key}: {value:?} is no span of time such as 30m or 2h"))
        };
        Ok(Self {
            listen: listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7420))),
            default_image: image.map_or_else(|| Ok(ImageName::host()), |image| image.parse()).context("default_image")?,
            user_idle_hibernate: span(&flags.user_idle_hibernate, file.user_idle_hibernate, "user_idle_hibernate")?,
            freeze_to_disk_after: span(&flags.freeze_to_disk_after, file.freeze_to_disk_after, "freeze_to_disk_after")?,
            max_boxes: number(flags.max_boxes, text("max_boxes")?, file.max_boxes, "max_boxes")?.unwrap_or(1),
            max_running: number(flags.max_running, text("max_running")?, file.max_running, "max_running")?.unwrap_or(1),
            database_url_file: flags
                .database_url_file
                .clone()
                .or_else(|| path("COCOONBOX_DATABASE_URL_FILE"))
                .or(file.database_url_file),
            agent: flags
                .agent
                .clone()
                .or_else(|| path("COCOONBOX_AGENT"))
                .or(file.agent)
                .map_or_else(default_agent, Ok)?,
            data,
        })
    }
}

fn number<T: std::str::FromStr>(
    flag: Option<T>,
    environment: Option<String>,
    file: Option<T>,
    key: &str,
) -> anyhow::Result<Option<T>> {
    if flag.is_some() {
        return Ok(flag);
    }
    let Some(text) = environment else { return Ok(file) };
    let parsed = text.parse().ok();
    parsed.map(Some).with_context(|| format!("COCOONBOX_{}: {text:?} cannot be read", key.to_uppercase()))
}

impl File {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let mut text = String::new();
        match fs::File::open(path) {
            Ok(file) => {
                let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
                read.with_context(|| format!("{} cannot be read", path.display()))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| format!("{} cannot be opened", path.display())),
        }
        if text.len() as u64 > MAX_FILE_BYTES {
            bail!("{} has more than {MAX_FILE_BYTES} bytes", path.display());
        }
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_yaml_ng::from_str(&text).with_context(|| format!("{} is not understood", path.display()))
    }
}

fn default_data(environment: &Environment) -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/cocoonbox"));
    }
    let base = environment.variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || environment.variable("HOME").map(|home| Path::new(home).join(".local/share"));
    let base = base.or_else(home).context("neither XDG_DATA_HOME nor HOME is set: give --data DIR")?;
    Ok(base.join("cocoonbox"))
}

fn default_agent() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("this program's own path is unknown: give --agent FILE")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    // in a build tree the static agent lies beside the profiles' folders; the one in them may need libraries
    let built = folder.parent().unwrap_or(folder).join("agent/cocoonbox-agent");
    [built, folder.join("cocoonbox-agent")].into_iter().find(|path| path.is_file()).with_context(|| {
        format!("there is no cocoonbox-agent beside {}: build it with `make agent`, or give --agent FILE", program.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flags: &UpArgs, variables: &[(&str, &str)]) -> anyhow::Result<ServerConfig> {
        let mut variables: Vec<_> = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        variables.push(("COCOONBOX_AGENT".into(), "/agent".into()));
        ServerConfig::resolve(flags, &Environment::new(variables, "host"))
    }

    #[test]
    fn flags_come_before_variables_and_variables_before_the_file() -> anyhow::Result<()> {
        let data = tempfile::tempdir()?;
        fs::write(data.path().join("api.yaml"), "user_idle_hibernate: 2h\nmax_boxes: 7\nmax_running: 5\n")?;
        let mut flags = UpArgs::default();
        flags.data = Some(data.path().to_owned());
        flags.max_boxes = Some(9);
        let config = resolve(&flags, &[("COCOONBOX_MAX_BOXES", "8"), ("COCOONBOX_MAX_RUNNING", "6")])?;
        assert_eq!((config.max_boxes, config.max_running), (9, 6));
        assert_eq!(config.user_idle_hibernate, Duration::from_secs(7200));
        assert_eq!(config.listen.to_string(), "127.0.0.1:7420");
        assert_eq!(config.default_image, ImageName::host());
        Ok(())
    }

    #[test]
    fn a_wrong_setting_is_named() -> anyhow::Result<()> {
        let data = tempfile::tempdir()?;
        let mut flags = UpArgs::default();
        flags.data = Some(data.path().to_owned());
        let says = |result: anyhow::Result<ServerConfig>| format!("{:#}", result.map(|_| ()).unwrap_err());
        assert!(says(resolve(&flags, &[("COCOONBOX_MAX_BOXES", "many")])).contains("COCOONBOX_MAX_BOXES"));
        assert!(says(resolve(&flags, &[("COCOONBOX_BACKEND", "chroot")])).contains("bwrap"));
        assert!(says(resolve(&flags, &[("COCOONBOX_FREEZE_TO_DISK_AFTER", "soon")])).contains("freeze_to_disk_after"));
        fs::write(data.path().join("api.yaml"), "idle: 2h\n")?;
        assert!(says(resolve(&flags, &[])).contains("user_idle_hibernate"));
        fs::write(data.path().join("api.yaml"), vec![b'#'; 70_000])?;
        assert!(says(resolve(&flags, &[])).contains("more than"));
        Ok(())
    }
}
