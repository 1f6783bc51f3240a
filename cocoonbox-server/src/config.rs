//! What a server is told: flags over environment over `api.yaml` over defaults.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cocoonbox_client::cli::{Environment, Settings, UpArgs};

/// Lays flags over environment over `api.yaml` over defaults, and over what this machine and program say.
///
/// # Errors
/// `api.yaml` cannot be read or has an unknown key, or there is no place for data.
pub fn settings(flags: &UpArgs, environment: &Environment) -> anyhow::Result<Settings> {
    let mut data = Settings::data(flags, environment);
    let folder = data.value.take().map_or_else(|| default_data(environment), |data| Ok(data.into()))?;
    data.value =
        Some(std::path::absolute(&folder).context("the data directory has no absolute path")?.into());
    let settings = Settings::gather(data, flags, environment)?;
    let settings = match environment.variable("DOCKER_SOCKET").filter(|path| !path.is_empty()) {
        Some(socket) => settings.with_default("docker_socket", PathBuf::from(socket)),
        None => settings,
    };
    Ok(match beside()? {
        Some(agent) => settings.with_default("agent", agent),
        None => settings,
    })
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

/// Returns the agent's binary that came with this program.
fn beside() -> anyhow::Result<Option<PathBuf>> {
    let program = std::env::current_exe().context("this program's own path is unknown")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    // in a build tree the static agent lies beside the profiles' folders; the one in them may need libraries
    let built = folder.parent().unwrap_or(folder).join("agent/cocoonbox-agent");
    Ok([built, folder.join("cocoonbox-agent")].into_iter().find(|path| path.is_file()))
}
