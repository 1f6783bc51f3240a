//! `cocoonbox-sandboxd`: a node standing alone.

use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Parser;
use cocoonbox_core::{SystemClock, SystemEntropy};
use cocoonbox_sandbox::doors::EdgeDoor;
use cocoonbox_sandbox::http::{Rate, preview_router, router_with_rate, serve};
use cocoonbox_sandbox::node::{
    Idle, Node, NodeOptions, NodeToken, PreviewKey, SandboxKey, serve as node_serve,
};
use cocoonbox_sandbox::{BackendChoice, BwrapConfig, DiskLimit, EngineOptions, Limits, open_backend};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A node: holds sandboxes and serves them over the sandboxd HTTP API.
///
/// The root token is read from --token-file (mode 0600) or COCOONBOX_NODE_TOKEN; without one the node is open to
/// whoever reaches it, which it allows on loopback alone. Sandboxes go on running when the node stops, and the next
/// start finds them.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Where sandboxes are kept [default: /var/lib/cocoonbox as root, else ~/.local/share/cocoonbox].
    #[arg(long, env = "COCOONBOX_DATA")]
    data: Option<PathBuf>,
    /// The address to listen on.
    #[arg(long, env = "COCOONBOX_NODE_LISTEN", default_value = "127.0.0.1:7421")]
    listen: SocketAddr,
    /// The guest's binary [default: cocoonbox-agent beside this program].
    #[arg(long, env = "COCOONBOX_AGENT")]
    agent: Option<PathBuf>,
    /// What isolates sandboxes: auto, bwrap, podman or docker; auto is a container engine where one answers and
    /// --default-image names an image for it, else bwrap.
    #[arg(long, env = "COCOONBOX_BACKEND", default_value = "auto")]
    backend: BackendChoice,
    /// The container engine's socket [default: where podman or Docker listen].
    #[arg(long, env = "DOCKER_SOCKET")]
    docker_socket: Option<PathBuf>,
    /// The container engine's runtime for sandboxes, such as runc.
    #[arg(long, env = "COCOONBOX_BOX_RUNTIME")]
    box_runtime: Option<String>,
    /// Where a container engine pulls images from, such as docker.io/library [default: nowhere].
    #[arg(long, env = "COCOONBOX_IMAGE_REGISTRY")]
    image_registry: Option<String>,
    /// The image that auto looks for a container engine for.
    #[arg(long, env = "COCOONBOX_DEFAULT_IMAGE")]
    default_image: Option<cocoonbox_core::ImageName>,
    /// The program bwrap.
    #[arg(long, default_value = "bwrap")]
    bwrap: PathBuf,
    /// How many sandboxes the node holds, hibernated ones included.
    #[arg(long, default_value_t = 1000)]
    max_claims: u32,
    /// By what the disk of a box is limited: `watch` holds a box still that is over, `loop` gives each box a file system
    /// of its own in an image (as root; starting a box takes longer), `off` not at all.
    #[arg(long, value_name = "HOW", default_value = "watch", value_parser = disk_limit)]
    disk_limit: DiskLimit,
    /// The file with the root token; only its owner may read it.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// The address to serve preview URLs on; without it none are minted.
    #[arg(long, env = "COCOONBOX_NODE_PREVIEW_LISTEN")]
    preview_listen: Option<SocketAddr>,
    /// What preview URLs begin with, when clients reach the preview address by another name
    /// [default: http:// and the address].
    #[arg(long, env = "COCOONBOX_NODE_PREVIEW_URL")]
    preview_url: Option<String>,
    /// What clients are told to reach this node by [default: the address it listens on].
    #[arg(long, env = "COCOONBOX_NODE_ADVERTISE")]
    advertise: Option<String>,
    /// The edge whose boxes this node keeps, HOST:PORT: boxes save their state there [default: they cannot].
    #[arg(long, env = "COCOONBOX_EDGE")]
    edge: Option<String>,
    /// After how many seconds without a connection a sandbox is hibernated, unless its pool says; 0 is never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = at_most_a_year())]
    idle_hibernate_seconds: u32,
    /// After how many more a hibernated one is archived, unless its pool says; 0 is never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = at_most_a_year())]
    archive_after_seconds: u32,
    /// After how many more an archived one is released, unless its pool says; 0 is never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = at_most_a_year())]
    archive_delete_after_seconds: u32,
    /// How many requests a second each caller may make.
    #[arg(long, default_value_t = Rate::default().per_second)]
    rate: NonZeroU32,
    /// How many requests each caller may make at once.
    #[arg(long, default_value_t = Rate::default().burst)]
    burst: NonZeroU32,
}

fn at_most_a_year() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=365 * 24 * 3600)
}

/// The longest token.
const MAX_TOKEN: usize = 512;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    run(Options::parse()).await
}

async fn run(options: Options) -> anyhow::Result<()> {
    let token = token(options.token_file.as_deref())?;
    if token.is_none() && !options.listen.ip().is_loopback() {
        bail!(
            "{} is not loopback: a node that others reach needs a root token; write one to a file of mode 0600 and \
             pass --token-file",
            options.listen
        );
    }
    let data = options.data.or_else(default_data).context("no home directory: pass --data")?;
    let agent = match options.agent {
        Some(agent) => agent,
        None => std::env::current_exe().context("finding this program")?.with_file_name("cocoonbox-agent"),
    };
    let config = BwrapConfig::new(&data, agent)
        .with_bwrap(options.bwrap)
        .with_max_claims(options.max_claims)
        .with_limits(Limits::default().with_disk(options.disk_limit));
    let config = match &options.edge {
        Some(edge) => config.with_doors(Arc::new(EdgeDoor::new(edge))),
        None => config,
    };
    let engines = EngineOptions::default()
        .with_socket(options.docker_socket)
        .with_runtime(options.box_runtime)
        .with_registry(options.image_registry)
        .with_image(options.default_image);
    let clock = Arc::new(SystemClock);
    let backend = open_backend(options.backend, config, engines, clock, Arc::new(SystemEntropy)).await?;
    let key = SandboxKey::new(key_file(&data, "sandbox-key")?);
    let (listener, address) = listen(options.listen, "--listen").await?;
    let advertised = options.advertise.unwrap_or_else(|| address.to_string());
    let idle = Idle {
        hibernate_seconds: options.idle_hibernate_seconds,
        archive_seconds: options.archive_after_seconds,
        delete_seconds: options.archive_delete_after_seconds,
    };
    let mut settings = NodeOptions::new(data.join("node"), key, advertised)
        .with_max_claims(options.max_claims)
        .with_idle(idle);
    if let Some(token) = token {
        settings = settings.with_token(token);
    }
    let mut previews = None;
    if let Some(wanted) = options.preview_listen {
        let (listener, address) = listen(wanted, "--preview-listen").await?;
        let base = options.preview_url.unwrap_or_else(|| format!("http://{address}"));
        settings = settings.with_previews(base, PreviewKey::new(key_file(&data, "preview-key")?));
        previews = Some(listener);
    }
    let node = Node::open(settings, backend).await?;
    tracing::info!(%address, data = %data.display(), "the node serves");
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let tended = tokio::spawn(node_serve::tend(node.clone(), stop.clone()));
    let previewed = previews
        .map(|listener| tokio::spawn(serve::run(listener, preview_router(node.clone()), stop.clone())));
    let rate = Rate::new(options.rate, options.burst);
    serve::run(listener, router_with_rate(node, rate), stop).await?;
    if let Some(previewed) = previewed {
        previewed.await??;
    }
    tended.await?;
    tracing::info!("the node stopped; its sandboxes go on");
    Ok(())
}

async fn listen(wanted: SocketAddr, option: &str) -> anyhow::Result<(tokio::net::TcpListener, SocketAddr)> {
    let listener = tokio::net::TcpListener::bind(wanted)
        .await
        .with_context(|| format!("cannot listen on {wanted}; choose another {option}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Reads by what disks are limited.
fn disk_limit(text: &str) -> Result<DiskLimit, String> {
    match text {
        "watch" => Ok(DiskLimit::Watch),
        "loop" => Ok(DiskLimit::Loop),
        "off" => Ok(DiskLimit::Off),
        _ => Err("use watch, loop or off".to_owned()),
    }
}

async fn stop_on_signal(stop: CancellationToken) {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
    stop.cancel();
}

fn default_data() -> Option<PathBuf> {
    let id = std::fs::metadata("/proc/self").ok()?.uid();
    if id == 0 {
        return Some("/var/lib/cocoonbox".into());
    }
    let share = std::env::var_os("XDG_DATA_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let share = share.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share")))?;
    Some(share.join("cocoonbox"))
}

/// Reads the root token, never from the command line.
fn token(file: Option<&Path>) -> anyhow::Result<Option<NodeToken>> {
    let text = match file {
        Some(path) => {
            let mode = std::fs::metadata(path).with_context(|| format!("reading {}", path.display()))?.mode();
            if mode & 0o077 != 0 {
                bail!("{} can be read by others: chmod 600 {}", path.display(), path.display());
            }
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        }
        None => match std::env::var("COCOONBOX_NODE_TOKEN") {
            Ok(text) => text,
            Err(_) => return Ok(None),
        },
    };
    let text = text.trim();
    if !(16..=MAX_TOKEN).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("a root token is 16 to {MAX_TOKEN} printable characters without spaces");
    }
    Ok(Some(NodeToken::new(text.to_owned())))
}

/// Reads one of the node's keys, 64 hex digits; draws it at the first start.
fn key_file(data: &Path, name: &str) -> anyhow::Result<String> {
    let path = data.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().len() == 64 => return Ok(text.trim().to_owned()),
        Ok(_) => bail!("{} is damaged: remove it, and what follows from it is made anew", path.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    }
    let key = SandboxKey::draw(&SystemEntropy)?;
    let new = data.join(format!(".{name}.new"));
    let write = || -> std::io::Result<()> {
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(key.reveal().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        std::fs::File::open(data)?.sync_all()
    };
    write().with_context(|| format!("writing {}", path.display()))?;
    Ok(key.reveal().to_owned())
}
