use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::BackendError;
use crate::{ImageName, NameError, TenantName, Timestamp};

/// A backend's own name for a claim: 1 to 128 of `[A-Za-z0-9_-]`, by custom `sb_…`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

impl SandboxId {
    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl FromStr for SandboxId {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let good = (1..=128).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError { noun: "sandbox id", rule: "use 1 to 128 of a-z, A-Z, 0-9, _ and -" })
        }
    }
}
impl TryFrom<String> for SandboxId {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}
impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}
impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The caller's own name for a claim, a label to find it by: 1 to 256 bytes of printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClaimRef(String);

impl ClaimRef {
    /// Returns the label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl FromStr for ClaimRef {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if (1..=256).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError { noun: "claim reference", rule: "use 1 to 256 printable ASCII characters" })
        }
    }
}
impl TryFrom<String> for ClaimRef {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}
impl From<ClaimRef> for String {
    fn from(claim_ref: ClaimRef) -> Self {
        claim_ref.0
    }
}
impl From<&crate::BoxId> for ClaimRef {
    fn from(id: &crate::BoxId) -> Self {
        Self(id.as_str().to_owned())
    }
}

/// What a sandbox can reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkMode {
    /// No interface but `lo`, no doors' policy.
    #[default]
    None,
    /// No interface but `lo`; the doors lead to the node's proxy.
    Egress,
    /// A real interface.
    Open,
}

/// Whether the doors to the node exist in the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Doors {
    /// None: dialling them is refused by the guest itself.
    #[default]
    Absent,
    /// 127.0.0.1:3128 (HTTP proxy), 127.0.0.1:1080 (SOCKS5), 10.203.0.1:18090 (gateway), 10.203.0.1:18091 (box door).
    Bound,
}

/// Whether user namespaces may be made inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Nesting {
    /// No.
    #[default]
    Denied,
    /// Yes, for sandboxes inside the box.
    Allowed,
}

/// A size tier; the node's API has no free-form sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Size {
    /// 1 processor, 512 MiB, 512 processes and threads, 10 GiB of disk.
    #[default]
    Small,
    /// 2 processors, 1 GiB, 1,024 processes and threads, 20 GiB of disk.
    Medium,
    /// 4 processors, 4 GiB, 2,048 processes and threads, 40 GiB of disk.
    Large,
    /// 4 processors, 8 GiB, 2,048 processes and threads, 80 GiB of disk.
    Xlarge,
    /// 8 processors, 16 GiB, 4,096 processes and threads, 160 GiB of disk.
    #[serde(rename = "2xlarge")]
    Xxlarge,
}

impl Size {
    /// Every tier, from the smallest.
    pub const ALL: [Self; 5] = [Self::Small, Self::Medium, Self::Large, Self::Xlarge, Self::Xxlarge];

    /// Returns the tier's name, which it has on every wire and command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
            Self::Xlarge => "xlarge",
            Self::Xxlarge => "2xlarge",
        }
    }

    /// Returns the tier's processors.
    pub const fn cpus(self) -> u32 {
        match self {
            Self::Small => 1,
            Self::Medium => 2,
            Self::Large | Self::Xlarge => 4,
            Self::Xxlarge => 8,
        }
    }

    /// Returns the tier's memory in bytes.
    pub const fn memory_bytes(self) -> u64 {
        let mib: u64 = match self {
            Self::Small => 512,
            Self::Medium => 1024,
            Self::Large => 4096,
            Self::Xlarge => 8192,
            Self::Xxlarge => 16384,
        };
        mib * 1024 * 1024
    }

    /// Returns how many processes and threads the tier may have at once.
    pub const fn pids(self) -> u32 {
        self.cpus() * 512
    }

    /// Returns the tier's disk in bytes.
    pub const fn disk_bytes(self) -> u64 {
        let gib: u64 = match self {
            Self::Small => 10,
            Self::Medium => 20,
            Self::Large => 40,
            Self::Xlarge => 80,
            Self::Xxlarge => 160,
        };
        gib * 1024 * 1024 * 1024
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Size {
    type Err = BackendError;

    fn from_str(name: &str) -> Result<Self, BackendError> {
        Self::ALL.into_iter().find(|size| size.as_str() == name).ok_or_else(|| BackendError::Invalid {
            reason: "a size is small, medium, large, xlarge or 2xlarge".to_owned(),
        })
    }
}

/// Labels fixed when a claim is made: at most 16 pairs and 4 KiB; keys 1 to 128 printable ASCII without `=` and `&`,
/// values at most 512 bytes without control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// Takes labels in.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] when a limit above is broken.
    pub fn new(pairs: BTreeMap<String, String>) -> Result<Self, BackendError> {
        let invalid = |what: &str| Err(BackendError::Invalid { reason: what.to_owned() });
        if pairs.len() > 16 {
            return invalid("metadata has more than 16 pairs");
        }
        let mut bytes = 0;
        for (key, value) in &pairs {
            let good = (1..=128).contains(&key.len())
                && key.bytes().all(|byte| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'=' | b'&'));
            if !good {
                return invalid("a metadata key is not 1 to 128 printable ASCII characters without = and &");
            }
            if value.len() > 512 || value.chars().any(char::is_control) {
                return invalid("a metadata value is over 512 bytes or has control characters");
            }
            bytes += key.len() + value.len() + 6;
        }
        if bytes > 4096 { invalid("metadata is over 4 KiB") } else { Ok(Self(pairs)) }
    }

    /// The key of a keeper's mark.
    pub const MARK: &str = "cocoonbox.mark";

    /// Adds the mark by which whoever keeps a record of the claim finds it again, beyond what a caller may label.
    pub fn marked(mut self, mark: &str) -> Self {
        self.0.insert(Self::MARK.to_owned(), mark.to_owned());
        self
    }
    /// Returns the mark.
    pub fn mark(&self) -> Option<&str> {
        self.0.get(Self::MARK).map(String::as_str)
    }

    /// Returns the labels, a mark among them.
    pub const fn pairs(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

/// The name of a host-owned file in the guest: 1 to 64 of `[a-z0-9.-]`, not starting with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostFileName(Box<str>);

impl HostFileName {
    /// The box's identity, `identity`.
    pub fn identity() -> Self {
        Self("identity".into())
    }
    /// The machine id of this boot or wake, `machine-id`.
    pub fn machine_id() -> Self {
        Self("machine-id".into())
    }
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl FromStr for HostFileName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let good = (1..=64).contains(&text.len())
            && !text.starts_with('.')
            && text.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-')
            });
        if good {
            Ok(Self(text.into()))
        } else {
            Err(NameError {
                noun: "host file name",
                rule: "use 1 to 64 of a-z, 0-9, . and -, not starting with a dot",
            })
        }
    }
}

/// A file that the host writes and the guest reads, in `/run/cocoonbox-identity`.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostFile {
    /// Its name in the directory.
    pub name: HostFileName,
    /// Its content, at most 64 KiB.
    pub bytes: Vec<u8>,
}

impl HostFile {
    /// The most bytes a host file holds.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Makes a file; what is too large is refused where it is put.
    pub fn new(name: HostFileName, bytes: Vec<u8>) -> Self {
        Self { name, bytes }
    }
}
impl fmt::Debug for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostFile({}, {} bytes)", self.name.as_str(), self.bytes.len())
    }
}

/// What to claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// The caller's label.
    pub claim_ref: ClaimRef,
    /// The image to run.
    pub image: ImageName,
    /// What it can reach.
    pub network: NetworkMode,
    /// Its size.
    pub size: Size,
    /// Whom it counts for.
    pub tenant: Option<TenantName>,
    /// Labels.
    pub metadata: Metadata,
    /// Whether the doors exist.
    pub doors: Doors,
    /// Whether sandboxes may be made inside.
    pub nesting: Nesting,
    /// The guest's host name, 1 to 63 of `[a-z0-9-]`; absent: the backend's choice.
    pub hostname: Option<String>,
    /// Files that are there before the guest's first process starts.
    pub host_files: Vec<HostFile>,
}

impl ClaimRequest {
    /// Asks for a small sandbox of `image` without network, doors, tenant or labels.
    pub fn new(claim_ref: ClaimRef, image: ImageName) -> Self {
        Self {
            claim_ref,
            image,
            network: NetworkMode::default(),
            size: Size::default(),
            tenant: None,
            metadata: Metadata::default(),
            doors: Doors::default(),
            nesting: Nesting::default(),
            hostname: None,
            host_files: Vec::new(),
        }
    }
    /// Sets what it can reach.
    pub const fn with_network(mut self, network: NetworkMode) -> Self {
        self.network = network;
        self
    }
    /// Sets its size.
    pub const fn with_size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }
    /// Sets whom it counts for.
    pub fn with_tenant(mut self, tenant: TenantName) -> Self {
        self.tenant = Some(tenant);
        self
    }
    /// Sets its labels.
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }
    /// Sets whether the doors exist.
    pub const fn with_doors(mut self, doors: Doors) -> Self {
        self.doors = doors;
        self
    }
    /// Sets whether sandboxes may be made inside.
    pub const fn with_nesting(mut self, nesting: Nesting) -> Self {
        self.nesting = nesting;
        self
    }
    /// Sets the host name.
    pub fn with_hostname(mut self, hostname: impl Into<String>) -> Self {
        self.hostname = Some(hostname.into());
        self
    }
    /// Adds a file that is there from the start.
    pub fn with_host_file(mut self, file: HostFile) -> Self {
        self.host_files.push(file);
        self
    }
}

/// Which claims to find; what is absent matches all.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ClaimFilter {
    /// This claim alone.
    pub id: Option<SandboxId>,
    /// Those with this label.
    pub claim_ref: Option<ClaimRef>,
    /// Those that count for this tenant.
    pub tenant: Option<TenantName>,
    /// Those that carry all of these labels.
    pub metadata: BTreeMap<String, String>,
}

impl ClaimFilter {
    /// Matches every claim.
    pub fn all() -> Self {
        Self::default()
    }
    /// Matches the claim `id`.
    pub fn by_id(id: SandboxId) -> Self {
        Self { id: Some(id), ..Self::default() }
    }
    /// Matches the claims labelled `claim_ref`.
    pub fn by_ref(claim_ref: ClaimRef) -> Self {
        Self { claim_ref: Some(claim_ref), ..Self::default() }
    }
    /// Matches the claims of `tenant`.
    pub fn by_tenant(tenant: TenantName) -> Self {
        Self { tenant: Some(tenant), ..Self::default() }
    }
    /// Returns whether `claim` matches.
    pub fn matches(&self, claim: &Claim) -> bool {
        self.id.as_ref().is_none_or(|id| *id == claim.id)
            && self.claim_ref.as_ref().is_none_or(|claim_ref| *claim_ref == claim.claim_ref)
            && (self.tenant.is_none() || self.tenant == claim.tenant)
            && self.metadata.iter().all(|(key, value)| claim.metadata.pairs().get(key) == Some(value))
    }
}

/// Where a hibernate should put the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HibernateTo {
    /// Keep processes, held still, where the backend can.
    #[default]
    Memory,
    /// End the processes and keep files alone.
    Disk,
}

/// What became of the memory of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::exhaustive_enums, reason = "callers match on each answer")]
pub enum Memory {
    /// Processes stand where they stood.
    Kept,
    /// Only files are left.
    Lost,
}

/// How a claim stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClaimState {
    /// It runs.
    Running,
    /// It does not run and can be woken.
    Hibernated {
        /// What a wake will find.
        memory: Memory,
    },
    /// Its sandbox died; a wake starts it anew from its files.
    Failed {
        /// Why, in words.
        reason: String,
    },
    /// The node that holds it does not answer: how it stands is not known until it does.
    Away {
        /// Which node, and since when, in words.
        reason: String,
    },
}

/// One sandbox, held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The backend's name for it.
    pub id: SandboxId,
    /// The caller's label.
    pub claim_ref: ClaimRef,
    /// The image it runs.
    pub image: ImageName,
    /// Whom it counts for.
    pub tenant: Option<TenantName>,
    /// Its labels.
    pub metadata: Metadata,
    /// Its size.
    pub size: Size,
    /// What it can reach.
    pub network: NetworkMode,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// How it stands.
    pub state: ClaimState,
    /// Why the backend itself hibernated it, in words; absent where a caller did, and once it is woken.
    pub held: Option<String>,
}

impl Claim {
    /// Makes the claim that answers `request`.
    pub fn new(id: SandboxId, request: &ClaimRequest, claimed_at: Timestamp, state: ClaimState) -> Self {
        Self {
            id,
            claim_ref: request.claim_ref.clone(),
            image: request.image.clone(),
            tenant: request.tenant.clone(),
            metadata: request.metadata.clone(),
            size: request.size,
            network: request.network,
            claimed_at,
            state,
            held: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_one_name_in_words_and_on_every_wire() {
        for size in Size::ALL {
            assert_eq!(size.to_string().parse::<Size>().ok(), Some(size));
            assert_eq!(serde_json::to_value(size).ok(), Some(size.as_str().into()));
        }
        for name in ["", "Small", "xxlarge", "2XLARGE", " small"] {
            assert!(matches!(name.parse::<Size>(), Err(BackendError::Invalid { .. })), "{name:?}");
        }
    }
}
