//! Where a node is reached.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// The address of a node's API: `http://HOST:PORT`.
///
/// There is no TLS here: the token goes over the wire as it is, so nodes belong into a network of their own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeAddress {
    authority: Box<str>,
}

/// Why a text is no node's address. It does not repeat the text, which may hold what somebody took for a place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a node's address: {rule}")]
#[non_exhaustive]
pub struct AddressError {
    /// The rule it breaks.
    pub rule: &'static str,
}

impl NodeAddress {
    /// The longest address.
    pub const MAX_BYTES: usize = 300;

    /// Returns `HOST:PORT`.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl FromStr for NodeAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |rule| Err(AddressError { rule });
        let form = "use http://HOST:PORT";
        if text.len() > Self::MAX_BYTES {
            return wrong("it is too long");
        }
        let Ok(uri) = text.parse::<Uri>() else { return wrong(form) };
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return wrong("a node speaks http, without TLS: use http://HOST:PORT"),
            _ => return wrong(form),
        }
        let Some(authority) = uri.authority() else { return wrong(form) };
        if authority.as_str().contains('@') {
            return wrong("the token belongs in a file, not in the address");
        }
        if authority.host().is_empty() || authority.port_u16().is_none_or(|port| port == 0) {
            return wrong(form);
        }
        if uri.path_and_query().is_some_and(|rest| rest.as_str() != "/") {
            return wrong("it has a path: use http://HOST:PORT");
        }
        Ok(Self { authority: authority.as_str().to_ascii_lowercase().into() })
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}
impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_host_and_port_and_nothing_else() {
        for good in
            ["http://127.0.0.1:7421", "http://node-a:80/", "http://[::1]:7421", "http://Node.Example:1"]
        {
            let read: NodeAddress = good.parse().unwrap();
            assert_eq!(read.to_string(), good.trim_end_matches('/').to_lowercase());
        }
        for (bad, word) in [
            ("", "HOST:PORT"),
            ("127.0.0.1:7421", "HOST:PORT"),
            ("node", "HOST:PORT"),
            ("http://node", "HOST:PORT"),
            ("http://:80", "HOST:PORT"),
            ("http://node:0", "HOST:PORT"),
            ("http://node:99999", "HOST:PORT"),
            ("https://node:443", "TLS"),
            ("unix:///run/node.sock", "HOST:PORT"),
            ("http://canary@node:80", "file"),
            ("http://user:canary@node:80", "file"),
            ("http://node:80/v1", "path"),
            ("http://node:80/?token=canary", "path"),
        ] {
            let refusal = bad.parse::<NodeAddress>().unwrap_err().to_string();
            assert!(refusal.contains(word) && !refusal.contains("canary"), "{bad}: {refusal}");
        }
        assert!(format!("http://{}:80", "a".repeat(300)).parse::<NodeAddress>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_read_is_read_again(text in "http://[a-z0-9.:@/?\\[\\]-]{0,40}") {
            if let Ok(address) = text.parse::<NodeAddress>() {
                prop_assert_eq!(address.to_string().parse::<NodeAddress>(), Ok(address));
            }
        }
    }
}
