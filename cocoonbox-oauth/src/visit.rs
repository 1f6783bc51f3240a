//! Who comes to a door: from where, and how it is remembered.

use std::net::IpAddr;

use cocoonbox_core::{Entropy, SignInId, Timestamp, UserId};

use crate::{AccountStore, Door, SignInRecord, UserStoreError};

/// The longest that is remembered of what came, in bytes.
const WHAT_MAX: usize = 128;

/// Returns where a request comes from: `peer`, unless that is a proxy that is trusted; then what the proxy says of it.
///
/// `forwarded` are the values of `X-Forwarded-For`, in their order. Each proxy adds the address that it saw at the end, so
/// that they are read from there, as far as proxies are trusted: what stands before was written by whoever asks.
pub(crate) fn origin<'a>(
    peer: Option<IpAddr>,
    forwarded: impl DoubleEndedIterator<Item = &'a str>,
    trusted: &[IpAddr],
) -> Option<IpAddr> {
    let mut seen = peer?.to_canonical();
    for hop in forwarded.flat_map(|value| value.split(',')).rev() {
        if !trusted.contains(&seen) {
            break;
        }
        let Ok(hop) = hop.trim().parse::<IpAddr>() else { break };
        seen = hop.to_canonical();
    }
    Some(seen)
}

/// A sign-in, or an attempt at one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit<'a> {
    pub(crate) user: Option<&'a UserId>,
    pub(crate) door: Door,
    pub(crate) let_in: bool,
    pub(crate) from: Option<IpAddr>,
    pub(crate) what: &'a str,
}

impl Visit<'_> {
    /// Remembers it. What cannot be remembered keeps nobody out.
    pub(crate) async fn remember(self, store: &dyn AccountStore, entropy: &dyn Entropy, at: Timestamp) {
        let what = &self.what[..self.what.floor_char_boundary(WHAT_MAX)];
        let (user, door, from) = (self.user, self.door.as_str(), self.from);
        tracing::info!(?user, door, let_in = self.let_in, ?from, what, "somebody came to a door");
        let kept = async {
            let no_bytes = |_| UserStoreError::Unavailable { source: "no random bytes".into() };
            let record = SignInRecord {
                id: SignInId::random(entropy).map_err(no_bytes)?,
                user: self.user.cloned(),
                at,
                door: self.door,
                let_in: self.let_in,
                from: self.from,
                what: what.to_owned(),
            };
            store.remember_sign_in(&record).await
        };
        if let Err(error) = kept.await {
            tracing::error!(%error, "a sign-in is not remembered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(peer: &str, forwarded: &[&str], trusted: &[&str]) -> String {
        let trusted: Vec<IpAddr> =
            trusted.iter().map(|address| address.parse().expect("an address")).collect();
        let seen = origin(peer.parse().ok(), forwarded.iter().copied(), &trusted);
        seen.map(|seen| seen.to_string()).unwrap_or_default()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        assert_eq!(seen("203.0.113.9", &["192.0.2.1"], &[]), "203.0.113.9");
        assert_eq!(seen("203.0.113.9", &["192.0.2.1"], &["127.0.0.1"]), "203.0.113.9");
        assert_eq!(seen("127.0.0.1", &["192.0.2.1"], &["127.0.0.1"]), "192.0.2.1");
        // what the client wrote itself stands before what the proxy saw
        assert_eq!(seen("127.0.0.1", &["10.0.0.1, 192.0.2.1"], &["127.0.0.1"]), "192.0.2.1");
        assert_eq!(seen("127.0.0.1", &["10.0.0.1", "192.0.2.1"], &["127.0.0.1"]), "192.0.2.1");
        let two = &["127.0.0.1", "198.51.100.7"];
        assert_eq!(seen("127.0.0.1", &["192.0.2.1,198.51.100.7"], two), "192.0.2.1");
        assert_eq!(seen("::ffff:127.0.0.1", &["2001:db8::1"], &["127.0.0.1"]), "2001:db8::1");
    }

    #[test]
    fn what_is_no_address_leads_no_further() {
        assert_eq!(seen("127.0.0.1", &[], &["127.0.0.1"]), "127.0.0.1");
        assert_eq!(seen("127.0.0.1", &["192.0.2.1, unknown"], &["127.0.0.1"]), "127.0.0.1");
        assert_eq!(origin(None, ["192.0.2.1"].into_iter(), &[]), None);
    }

    #[tokio::test]
    async fn of_a_long_name_the_beginning_is_remembered() {
        use crate::{MemoryUserStore, SignInStore as _};
        let store = MemoryUserStore::default();
        let what = "ä".repeat(WHAT_MAX);
        let visit = Visit { user: None, door: Door::Agent, let_in: false, from: None, what: &what };
        visit.remember(&store, &cocoonbox_core::SystemEntropy, Timestamp::default()).await;
        let kept = store.sign_ins(None, None, 1).await.expect("asked");
        assert_eq!(kept[0].what, "ä".repeat(WHAT_MAX / 2));
    }
}
