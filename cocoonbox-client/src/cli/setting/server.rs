//! What the words of the settings mean.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use cocoonbox_core::ImageName;
use cocoonbox_core::backend::Size;

use super::{SettingError, Settings};
use crate::cli::UpArgs;

/// A node that keeps boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an address and where its token is")]
pub struct NodeSetting {
    /// Where it is reached.
    pub address: String,
    /// The file with its token; absent for a node that is open to whoever reaches it.
    pub token_file: Option<PathBuf>,
}

/// Where saves are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a folder or a bucket")]
pub enum StateStore {
    /// A folder; none is the one in the data directory.
    Folder(Option<PathBuf>),
    /// A bucket of a server that speaks S3.
    S3 {
        /// The bucket.
        bucket: String,
        /// The server's URL.
        endpoint: String,
        /// The region.
        region: String,
        /// The file with the account: key id and secret, in two words.
        key_file: PathBuf,
    },
}

/// What a server is told, after all layers are read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Where everything is kept.
    pub data: PathBuf,
    /// The address of the one port.
    pub listen: SocketAddr,
    /// What isolates boxes: `auto`, `bwrap`, `podman` or `docker`.
    pub backend: String,
    /// The container engine to use, by its socket.
    pub docker_socket: Option<PathBuf>,
    /// The container engine's runtime for boxes, such as `runsc`.
    pub box_runtime: Option<String>,
    /// Where a container engine pulls images from, such as `docker.io/library`.
    pub image_registry: Option<String>,
    /// The image of new boxes.
    pub default_image: ImageName,
    /// The size of new boxes.
    pub box_size: Size,
    /// How long a user's box runs unused; zero is for ever.
    pub user_idle_hibernate: Duration,
    /// How long a sleeping box keeps its memory; zero is for ever.
    pub freeze_to_disk_after: Duration,
    /// Boxes that a user may have.
    pub max_boxes: u32,
    /// Boxes of a user that may run at once.
    pub max_running: u32,
    /// How the server is reached from elsewhere; absent: at its own address.
    pub public_url: Option<String>,
    /// How long a box that an outside agent made runs unused; zero is for ever.
    pub agent_idle_hibernate: Duration,
    /// Whether clients may be named by the https address of a document, which the server then fetches.
    pub client_documents: bool,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpAddr>,
    /// A file with a PostgreSQL URL; absent: SQLite in the data directory.
    pub database_url_file: Option<PathBuf>,
    /// The agent's binary; absent where nodes elsewhere keep the boxes.
    pub agent: Option<PathBuf>,
    /// Sandboxes of the default image that are kept running for new boxes.
    pub warm: u32,
    /// The nodes that keep the boxes; none: this machine does.
    pub nodes: Vec<NodeSetting>,
    /// Where saves are kept.
    pub state_store: StateStore,
    /// Whether to make a new sign-in link for the administrator.
    pub new_link: bool,
}

impl ServerConfig {
    /// Reads the settings, and of the flags what is no setting.
    ///
    /// # Errors
    /// A setting cannot be read, or has no value and no default.
    pub fn read(settings: &Settings, flags: &UpArgs) -> Result<Self, SettingError> {
        let must = |key, wanted| SettingError::Missing { key, wanted };
        let path = |key| settings.get(key).value.as_ref().map(PathBuf::from);
        let span = |key| {
            let wanted = "a span of time such as 30m or 2h";
            let read = |text: &str| humantime::parse_duration(text).ok();
            settings.get(key).read(wanted, read)?.ok_or_else(|| must(key, wanted))
        };
        let count = |key| {
            let wanted = "a number from 0 to 4294967295";
            settings.get(key).parse(wanted)?.ok_or_else(|| must(key, wanted))
        };
        let backends = "auto, bwrap, podman or docker";
        let backend =
            |text: &str| matches!(text, "auto" | "bwrap" | "podman" | "docker").then(|| text.to_owned());
        let word = |key| settings.get(key).read("one word", |text| Some(text.to_owned()));
        let nodes = nodes(settings)?;
        let agent = path("agent");
        if agent.is_none() && nodes.is_empty() {
            let wanted = "--agent FILE, or put cocoonbox-agent beside this program (`make agent` builds it)";
            return Err(must("agent", wanted));
        }
        let (address, image) = ("an address such as 127.0.0.1:7420", "an image's name, such as host");
        let origin = "https://HOST, or http:// on a loopback address";
        let proxies = "addresses such as 127.0.0.1, with commas between them";
        let addresses =
            |text: &str| text.split(',').map(|address| address.trim().parse().ok()).collect::<Option<_>>();
        let size = "small, medium, large, xlarge or 2xlarge";
        Ok(Self {
            data: path("data").ok_or_else(|| must("data", "--data DIR"))?,
            listen: settings.get("listen").parse(address)?.ok_or_else(|| must("listen", address))?,
            backend: settings
                .get("backend")
                .read(backends, backend)?
                .ok_or_else(|| must("backend", backends))?,
            docker_socket: path("docker_socket"),
            box_runtime: word("box_runtime")?,
            image_registry: word("image_registry")?,
            default_image: settings
                .get("default_image")
                .parse(image)?
                .ok_or_else(|| must("default_image", image))?,
            box_size: settings.get("box_size").parse(size)?.ok_or_else(|| must("box_size", size))?,
            user_idle_hibernate: span("user_idle_hibernate")?,
            freeze_to_disk_after: span("freeze_to_disk_after")?,
            max_boxes: count("max_boxes")?,
            max_running: count("max_running")?,
            public_url: settings.get("oauth.public_url").read(origin, |text| {
                // what it must be exactly is the server's to say; here, so that a typing error is told at once
                let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
                (!rest.is_empty() && !rest.contains(['@', '?', '#'])).then(|| text.to_owned())
            })?,
            agent_idle_hibernate: span("oauth.idle_hibernate")?,
            client_documents: settings.get("oauth.client_documents").parse("true or false")?.unwrap_or(true),
            trusted_proxies: settings.get("trusted_proxies").read(proxies, addresses)?.unwrap_or_default(),
            database_url_file: path("database_url_file"),
            agent,
            warm: count("warm")?,
            nodes,
            state_store: state_store(settings)?,
            new_link: flags.new_link,
        })
    }
}

/// Reads where saves are kept.
///
/// # Errors
/// A bucket without the file of its account, or words that are neither folder nor bucket.
fn state_store(settings: &Settings) -> Result<StateStore, SettingError> {
    const WANTED: &str = "a folder, or s3://BUCKET (3 to 63 of a-z, 0-9, . and -)";
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    let bucket = |text: &str| match text.strip_prefix("s3://").map(|bucket| bucket.trim_end_matches('/')) {
        None if text.is_empty() || text.contains("://") => None,
        None => Some(None),
        Some(bucket) => {
            ((3..=63).contains(&bucket.len()) && bucket.bytes().all(good)).then(|| Some(bucket.to_owned()))
        }
    };
    let setting = settings.get("state_store");
    let Some(bucket) = setting.read(WANTED, bucket)?.flatten() else {
        return Ok(StateStore::Folder(setting.value.as_ref().map(PathBuf::from)));
    };
    let web = |text: &str| {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
        (!rest.is_empty() && !rest.contains('@')).then(|| text.trim_end_matches('/').to_owned())
    };
    let region = settings.get("state_store_region").read("one word", |text| Some(text.to_owned()))?;
    let region = region.unwrap_or_default();
    let endpoint = settings.get("state_store_endpoint").read("https://HOST, without a name in it", web)?;
    let wanted = "--state-store-key-file FILE: key id and secret of the bucket's account, in two words";
    let key_file = settings.get("state_store_key_file").value.as_ref().map(PathBuf::from);
    Ok(StateStore::S3 {
        bucket,
        endpoint: endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com")),
        region,
        key_file: key_file.ok_or(SettingError::Missing { key: "state_store_key_file", wanted })?,
    })
}

/// Reads the nodes: addresses divided by commas, and one token file for all of them or one for each.
///
/// # Errors
/// An address is there twice, there are not as many files as nodes, or files and no node.
pub fn nodes(settings: &Settings) -> Result<Vec<NodeSetting>, SettingError> {
    const ADDRESSES: &str = "http://HOST:PORT, several of them divided by commas, none twice";
    const FILES: &str = "one file for all nodes, or as many as there are nodes, divided by commas";
    let words = |text: &str| -> Option<Vec<String>> {
        let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
        words.iter().all(|word| !word.is_empty()).then_some(words)
    };
    let distinct = |text: &str| {
        let words = words(text)?;
        let twice = words.iter().enumerate().any(|(nth, word)| words[..nth].contains(word));
        (!twice).then_some(words)
    };
    let addresses = settings.get("node").read(ADDRESSES, distinct)?.unwrap_or_default();
    let fits = |text: &str| words(text).filter(|files| files.len() == 1 || files.len() == addresses.len());
    let files = settings.get("node_token_file").read(FILES, fits)?.unwrap_or_default();
    if addresses.is_empty() && !files.is_empty() {
        return Err(SettingError::Missing { key: "node", wanted: "--node URL beside --node-token-file" });
    }
    let file = |nth| files.get(nth).or_else(|| files.first()).map(PathBuf::from);
    let node = |(nth, address)| NodeSetting { address, token_file: file(nth) };
    Ok(addresses.into_iter().enumerate().map(node).collect())
}
