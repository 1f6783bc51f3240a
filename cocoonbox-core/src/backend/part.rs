//! The optional parts of a backend: what it hands out when it has it.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{BackendError, NetworkMode, SandboxId, Size};
use crate::{ImageName, TenantName, Timestamp};

/// Caps by tenant: an optional part of a backend.
///
/// # Behavior
/// - Until a tenant is put, claims in its name are counted and not capped.
/// - Lowering a cap ends no claim; it refuses the next one.
/// - Caps last as claims do.
#[async_trait]
pub trait Tenants: fmt::Debug + Send + Sync + 'static {
    /// Sets how many claims `tenant` may hold at once, hibernated ones included; 0 is no cap.
    async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), BackendError>;
}

/// What warm sandboxes of one pool have in common; a claim that asks for just this may get one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "the three axes of the node's API")]
pub struct PoolKey {
    /// The image they run.
    pub image: ImageName,
    /// What they can reach.
    pub network: NetworkMode,
    /// Their size.
    pub size: Size,
}

/// How many warm sandboxes a pool should hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "a key and a number")]
pub struct PoolTarget {
    /// Which pool.
    pub key: PoolKey,
    /// How many.
    pub warm: u32,
}

/// How a pool stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatus {
    /// What it should hold.
    pub target: PoolTarget,
    /// How many sandboxes wait in it now.
    pub warm: u32,
    /// How many are on their way.
    pub refilling: u32,
}

impl PoolStatus {
    /// Makes a status.
    pub const fn new(target: PoolTarget, warm: u32, refilling: u32) -> Self {
        Self { target, warm, refilling }
    }
}

/// Warm pools: sandboxes that run and answer before anybody claims them. An optional part of a backend.
///
/// # Behavior
/// - A warm sandbox is nobody's: it is not a claim, `find` does not show it, no cap counts it, and nothing of an earlier
///   claim was ever in it.
/// - A claim that gets a warm one is in every other way like one that was started for it: its host name, host files, doors
///   and limits are its own before it is answered.
/// - `put_pools` replaces all targets, and they last as claims do. Pools fill up in the background; an empty pool only
///   makes a claim slower. Lowering a target ends the warm ones that are too many.
/// - A warm sandbox that dies is replaced and never handed out.
#[async_trait]
pub trait Pools: fmt::Debug + Send + Sync + 'static {
    /// Sets what every pool should hold; pools not named are emptied.
    async fn put_pools(&self, targets: Vec<PoolTarget>) -> Result<(), BackendError>;

    /// Returns how each pool stands, in the order they were put.
    async fn pools(&self) -> Result<Vec<PoolStatus>, BackendError>;
}

/// What a sandbox uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measurement {
    /// The bytes of memory that it may use; absent where nothing limits it.
    pub memory_limit_bytes: Option<u64>,
    /// The bytes of memory that it uses now; absent where this was not measured.
    pub memory_used_bytes: Option<u64>,
    /// When this was measured.
    pub measured_at: Timestamp,
}

impl Measurement {
    /// Makes a measurement without values.
    pub const fn new(measured_at: Timestamp) -> Self {
        Self { memory_limit_bytes: None, memory_used_bytes: None, measured_at }
    }
    /// Sets the bytes of memory that may be used.
    pub const fn with_memory_limit_bytes(mut self, bytes: Option<u64>) -> Self {
        self.memory_limit_bytes = bytes;
        self
    }
    /// Sets the bytes of memory in use.
    pub const fn with_memory_used_bytes(mut self, bytes: Option<u64>) -> Self {
        self.memory_used_bytes = bytes;
        self
    }
}

/// Measures sandboxes: an optional part of a backend.
///
/// # Behavior
/// - Measuring disturbs nothing: it neither wakes a sandbox nor counts as activity. A hibernated one uses what is still kept
///   in memory for it.
#[async_trait]
pub trait Meter: fmt::Debug + Send + Sync + 'static {
    /// Returns what a sandbox uses now.
    async fn measure(&self, id: &SandboxId) -> Result<Measurement, BackendError>;
}
