//! Clients that are named by the address of a document which describes them.

pub(crate) mod serve;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::{Clock, Timestamp, is_public};
use rustls::ClientConfig;
use tokio::sync::Semaphore;

use crate::{Client, ClientId};

/// How long a document that was read is good.
const KEPT_FOR: Duration = Duration::from_mins(5);
/// Documents that are kept; the oldest makes room.
const KEPT_MAX: usize = 256;
/// Documents that are fetched at once; more are refused.
const AT_ONCE: usize = 16;

/// Finds the addresses of a host.
#[async_trait]
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// Returns all addresses of `host`.
    ///
    /// # Errors
    /// The host has none, or nobody could be asked.
    async fn resolve(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>>;
}

/// Which addresses may be dialled.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DialRules {
    /// Addresses that may be dialled although they are not public.
    pub also: Vec<IpAddr>,
}

impl DialRules {
    /// Lets an address be dialled that is not public.
    pub fn with(mut self, address: IpAddr) -> Self {
        self.also.push(address);
        self
    }

    fn allow(&self, address: IpAddr) -> bool {
        is_public(address) || self.also.contains(&address)
    }
}

/// Fetches metadata documents: over TLS from public addresses alone, at most 5 KiB within 10 seconds, and follows
/// nothing. The address that is dialled is the one that was judged, so that a name cannot change its mind in between.
#[derive(Clone)]
pub struct Documents {
    resolver: Arc<dyn Resolve>,
    rules: DialRules,
    tls: Arc<ClientConfig>,
    clock: Arc<dyn Clock>,
    turns: Arc<Semaphore>,
    kept: Arc<Mutex<HashMap<ClientId, (Client, Timestamp)>>>,
}

impl Documents {
    /// Makes one. `tls` has the roots that servers are verified against.
    pub fn new(
        resolver: Arc<dyn Resolve>,
        rules: DialRules,
        tls: Arc<ClientConfig>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        Self { resolver, rules, tls, clock, turns, kept: Arc::default() }
    }

    fn kept(&self, id: &ClientId) -> Option<Client> {
        let now = self.clock.now();
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // a clock that was set back keeps nothing
        kept.get(id)
            .filter(|(_, at)| *at <= now && now.since(*at) < KEPT_FOR)
            .map(|(client, _)| client.clone())
    }

    fn keep(&self, client: &Client) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX {
            let oldest = kept.iter().min_by_key(|(_, (_, at))| *at).map(|(id, _)| id.clone());
            oldest.and_then(|id| kept.remove(&id));
        }
        kept.insert(client.id.clone(), (client.clone(), self.clock.now()));
    }
}

impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents")
            .field("resolver", &self.resolver)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
