//! The server's wiring: adapters are built here and handed to the libraries that do the work.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::middleware::from_fn_with_state;
use cocoonbox_boxes::edge::{Edge, Pool, serve};
use cocoonbox_boxes::mcp::McpDoor;
use cocoonbox_boxes::store::SqlStore;
use cocoonbox_boxes::usage::SqlUsageStore;
use cocoonbox_boxes::{Engine, EngineConfig, Limits};
use cocoonbox_core::backend::{NetworkMode, PoolKey, PoolTarget, SandboxBackend, Size};
use cocoonbox_core::{Clock, Entropy, SystemClock, SystemEntropy};
use cocoonbox_db::{DatabaseUrl, Db, DbOptions, Hold, Use};
use cocoonbox_oauth::http::AuthorityOptions;
use cocoonbox_oauth::{
    AgentIndex, FirstStart, GrantStore as _, Issuer, ServiceOptions, SqlUserStore, TokenIndex,
};
use cocoonbox_seal::Key;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::caller::{self, Users, UsersAndAgents};
use crate::{DataDir, LinkToken, ServerConfig};

/// What a server has to say once it serves.
#[derive(Debug)]
pub struct Started {
    /// Where it listens.
    pub address: SocketAddr,
    /// The first start's secrets; they cannot be had again.
    pub first: Option<FirstStart>,
    /// The sign-in link that was asked for, if this is not the first start, which has one of its own.
    pub link: Option<LinkToken>,
    /// How many boxes were found.
    pub boxes: u32,
}

/// Runs edge and node in this process until `shutdown` fires; `started` is told once everything is served.
///
/// Boxes go on when it returns; the next run finds them.
///
/// # Errors
/// Something it needs is missing or taken; the message says what to do.
pub async fn run(
    config: ServerConfig,
    started: impl FnOnce(&DataDir, &Started) -> anyhow::Result<()>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let data = DataDir::open(&config.data)?;
    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!(
            "cannot listen on {}: if another server has the port, stop it or give --listen ADDR",
            config.listen
        )
    })?;
    let address = listener.local_addr()?;
    let key = Arc::new(data.signing_key(entropy.as_ref())?);

    let db = Db::open(&database(&config, &data)?, &DbOptions::default())
        .await
        .context("the database does not open")?;
    let users = Arc::new(SqlUserStore::open(db.clone(), clock.now()).await.context("the users' tables")?);
    let changes = users.changes().await.context("the users' tables")?;

    let _sole = sole(&db, &config).await?;
    let nodes = crate::node::Nodes::open(&config, &data, &clock, &entropy, address).await?;
    let boxes = SqlStore::open(db.clone(), clock.now()).await.context("the boxes' tables")?;
    let pool = Arc::new(Pool::default());
    let settings = EngineConfig::new(config.default_image.clone(), key.verifying_key())
        .with_size(config.box_size)
        .with_agent_idle_hibernate(config.agent_idle_hibernate)
        .with_user_idle_hibernate(config.user_idle_hibernate)
        .with_freeze_to_disk_after(config.freeze_to_disk_after);
    let backend = nodes.backend();
    keep_warm(backend.as_ref(), &config, settings.size).await;
    let engine = Engine::new(Arc::new(boxes), backend, Arc::clone(&clock), Arc::clone(&entropy), settings);
    let parts = crate::state::Parts {
        data: &data,
        store: &config.state_store,
        db: &db,
        users: Arc::clone(&users),
        call_key: Arc::clone(&key),
        clock: &clock,
        entropy: &entropy,
    };
    let (keeper, door) = crate::state::open(parts).await?;
    let ledger = SqlUsageStore::open(db.clone(), clock.now()).await.context("the ledger of model calls")?;
    let engine = engine
        .with_before_sleep(Arc::clone(&pool) as _)
        .with_keeper(Arc::clone(&keeper) as _)
        .with_usage(Arc::new(ledger));
    let engine = Arc::new(engine);
    let reconciled = engine.start().await.context("the boxes could not be compared with their sandboxes")?;

    let master = Key::new(*data.secret_key(crate::state::MASTER, entropy.as_ref())?);
    let oauth_key = crate::account::oauth_key(users.as_ref(), &master, entropy.as_ref()).await?;
    let agents = Arc::new(AgentIndex::load(users.as_ref(), clock.now()).await?);
    let user_changes = users.changes().await.context("the users' tables")?;
    let grant_changes = users.grant_changes().await?;
    let issuer = issuer(&config, address)?;

    // last of all that may fail: what is made here is told once
    let first = crate::first::begin(&data, users.as_ref(), clock.now(), entropy.as_ref()).await?;
    let link = match (&first, config.new_link) {
        (None, true) => cocoonbox_oauth::admin_link(users.as_ref(), clock.now(), entropy.as_ref()).await?,
        _ => None,
    };
    let index = Arc::new(TokenIndex::load(users.as_ref()).await?);
    let limits = Limits {
        max_boxes: Some(config.max_boxes),
        max_running: Some(config.max_running),
        max_agent_boxes: None,
    };
    let callers = Users { index: Arc::clone(&index), clock: Arc::clone(&clock), limits };
    let mut authority = AuthorityOptions::new(
        issuer.clone(),
        Arc::clone(&users) as _,
        Arc::clone(&index),
        Arc::clone(&agents),
        Arc::new(oauth_key),
        Arc::clone(&clock),
        Arc::clone(&entropy),
    )
    .with_origins(origins(address))
    .with_belongings(Arc::new(crate::account::Boxes(Arc::clone(&engine))))
    .with_trusted_proxies(config.trusted_proxies.clone())
    .with_version(env!("CARGO_PKG_VERSION"));
    if config.client_documents
        && let Some(documents) = crate::account::documents(&clock)
    {
        authority = authority.with_documents(Arc::new(documents));
    }
    let account = ServiceOptions::new(
        Arc::clone(&users) as _,
        Arc::clone(&index),
        Arc::clone(&agents),
        Arc::clone(&clock),
        entropy,
    )
    .with_trusted_proxies(config.trusted_proxies.clone())
    .with_version(env!("CARGO_PKG_VERSION"));
    let care =
        cocoonbox_boxes::state::look_after(Arc::clone(&keeper) as _, Arc::clone(&clock), shutdown.clone());
    let boxes = cocoonbox_boxes::page::routes(Arc::clone(&engine))
        .layer(from_fn_with_state(callers.clone(), caller::from_console));
    let outside = UsersAndAgents { users: callers.clone(), agents: Arc::clone(&agents) };
    let mut control = McpDoor::new(Arc::new(outside))
        .with_metadata_url(issuer.at("/.well-known/oauth-protected-resource/cocoonbox.mcp/control"))
        .with_origin(issuer.as_str());
    if let Some((_, host)) = issuer.as_str().split_once("://") {
        control = control.with_host(host);
    }
    let users_clock = Arc::clone(&clock);
    let edge = Edge::new(Arc::clone(&engine), Arc::new(callers), key, clock, pool).with_care(keeper);
    let router = edge
        .router(cocoonbox_oauth::services(account))
        .await?
        .merge(door.router())
        .merge(cocoonbox_oauth::http::router(authority, boxes))
        .merge(cocoonbox_boxes::mcp::router(&engine, control))
        .merge(cocoonbox_console::pages());

    started(&data, &Started { address, first, link, boxes: reconciled.boxes })?;
    crate::first::end(&data)?;
    let tokens = cocoonbox_oauth::serve::run(&index, users.as_ref(), changes, shutdown.clone());
    let grants = cocoonbox_oauth::serve::run_agents(
        &agents,
        users.as_ref(),
        users_clock.as_ref(),
        user_changes,
        grant_changes,
        shutdown.clone(),
    );
    let nodes = nodes.serve(&engine, shutdown.clone());
    tokio::join!(
        serve(listener, router, shutdown.clone()),
        engine.serve(shutdown.clone()),
        tokens,
        grants,
        nodes,
        care
    );
    db.close().await;
    Ok(())
}

/// Makes sure that no server compares this database's boxes with sandboxes of which it sees but its own: it would hold
/// every other's for dead.
async fn sole(db: &Db, config: &ServerConfig) -> anyhow::Result<Hold> {
    let share = if config.nodes.is_empty() { Use::Alone } else { Use::Shared };
    let mut patience = 0;
    loop {
        if let Some(hold) = db.hold("node", share).await.context("the database cannot be taken")? {
            return Ok(hold);
        }
        // one that was just ended may not be over yet
        patience += 1;
        if patience > 50 {
            bail!(
                "another server uses this database, and one of the two keeps boxes on its own machine: stop the \
                 other, or give both --node URL, so that they see the same nodes"
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns how the server is reached: as the configuration says, else at its own address.
fn issuer(config: &ServerConfig, address: SocketAddr) -> anyhow::Result<Issuer> {
    if let Some(url) = &config.public_url {
        return url.parse().with_context(|| format!("oauth.public_url is {url:?}"));
    }
    // who listens everywhere, or on another network, is reached from this machine at least
    let host = match address.ip() {
        IpAddr::V6(ip) if ip.is_loopback() => "[::1]",
        _ => "127.0.0.1",
    };
    Ok(origin(host, address.port()).parse()?)
}

/// Returns the origins that a browser may reach the server by, its own address among them.
fn origins(address: SocketAddr) -> Vec<String> {
    let host = match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    ["localhost", "127.0.0.1", "[::1]", &host].map(|host| origin(host, address.port())).to_vec()
}

/// Writes an origin as browsers do: without the scheme's own port.
fn origin(host: &str, port: u16) -> String {
    if port == 80 { format!("http://{host}") } else { format!("http://{host}:{port}") }
}

/// Has the backend keep sandboxes ready for what a new box asks for. Without them a box only starts more slowly.
async fn keep_warm(backend: &dyn SandboxBackend, config: &ServerConfig, size: Size) {
    let Some(pools) = backend.pools() else { return };
    let key = PoolKey { image: config.default_image.clone(), network: NetworkMode::default(), size };
    if let Err(error) = pools.put_pools(vec![PoolTarget { key, warm: config.warm }]).await {
        tracing::warn!(%error, "no sandbox is kept warm");
    }
}

pub(crate) fn database(config: &ServerConfig, data: &DataDir) -> anyhow::Result<DatabaseUrl> {
    let Some(file) = &config.database_url_file else {
        return Ok(DatabaseUrl::sqlite(data.join("cocoonbox.db")));
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    text.trim().parse().with_context(|| format!("{} holds no database URL", file.display()))
}

/// Fires when the process is asked to stop (SIGINT, SIGTERM).
///
/// # Errors
/// The runtime takes no signal handlers.
pub fn stop_signal() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = CancellationToken::new();
    let fires = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        fires.cancel();
    });
    Ok(stop)
}

/// Lets the log speak on standard error; `COCOONBOX_LOG` chooses what of it.
///
/// # Errors
/// The filter cannot be read.
pub fn log_to_stderr(filter: Option<&str>) -> anyhow::Result<()> {
    let filter = filter.unwrap_or("warn,cocoonbox_boxes=info,cocoonbox_sandbox=info");
    let filter = tracing_subscriber::EnvFilter::try_new(filter).context("COCOONBOX_LOG")?;
    let log =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).with_target(false);
    if let Err(error) = log.try_init() {
        bail!("the log does not start: {error}");
    }
    Ok(())
}
