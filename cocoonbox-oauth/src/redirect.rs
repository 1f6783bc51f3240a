//! Where a browser may be sent back to.

use std::fmt;
use std::str::FromStr;

use url::{Host, Url};

/// The longest redirect URI in bytes.
pub const REDIRECT_URI_MAX: usize = 2048;

/// The hosts that mean this machine; the URI must spell them so, and none stands for another (RFC 8252, section 8.3).
const LOOPBACK: [&str; 3] = ["127.0.0.1", "[::1]", "localhost"];

/// A text that is no redirect URI, with the rule it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a redirect URI: {rule}")]
#[non_exhaustive]
pub struct RedirectUriError {
    /// What is asked of one.
    pub rule: &'static str,
}

/// A URI that a browser is sent back to, as its client wrote it: `https`, or `http` to a loopback host.
///
/// It is kept and compared letter by letter, never in a normalized form: what two parsers could read in two ways is
/// refused when it is read.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RedirectUri {
    text: Box<str>,
    host: Box<str>,
    loopback: bool,
}

impl RedirectUri {
    /// Returns the URI as its client wrote it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns its host, as a person is shown it.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns whether it leads to a program on the computer that the browser runs on.
    pub const fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// Returns whether a request may ask for `asked` where this one is registered: they are the same text, or the same
    /// loopback URI but for the port (RFC 8252, section 7.3).
    pub fn allows(&self, asked: &Self) -> bool {
        self.text == asked.text
            || match (without_port(&self.text), without_port(&asked.text)) {
                (Some(ours), Some(theirs)) => ours == theirs,
                _ => false,
            }
    }

    /// Returns the URI with members added to its query.
    pub fn with(&self, members: &[(&str, &str)]) -> String {
        let added: String = form_urlencoded::Serializer::new(String::new()).extend_pairs(members).finish();
        let joint = if self.text.contains('?') { '&' } else { '?' };
        format!("{}{joint}{added}", self.text)
    }
}

/// Splits a loopback URI into its host and what follows the port.
fn without_port(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("http://")?;
    let host = LOOPBACK.into_iter().find(|host| rest.starts_with(host))?;
    let rest = &rest[host.len()..];
    let rest = match rest.strip_prefix(':') {
        Some(port) => port.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => rest,
    };
    (rest.is_empty() || rest.starts_with(['/', '?'])).then_some((host, rest))
}

impl FromStr for RedirectUri {
    type Err = RedirectUriError;

    fn from_str(text: &str) -> Result<Self, RedirectUriError> {
        let refuse = |rule| Err(RedirectUriError { rule });
        if text.len() > REDIRECT_URI_MAX {
            return refuse("at most 2048 bytes");
        }
        if !text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'<' | b'>' | b'`'))
        {
            return refuse("printable ASCII without spaces, quotes, angle brackets and backslashes");
        }
        if text.contains('#') {
            return refuse("no fragment");
        }
        let Ok(url) = Url::parse(text) else { return refuse("an absolute URI") };
        let Some((scheme @ ("https" | "http"), after)) = text.split_once("://") else {
            return refuse("https://, or http:// to 127.0.0.1, [::1] or localhost");
        };
        let authority = after.split(['/', '?']).next().unwrap_or_default();
        // what stands between the slashes is what a person reads; nothing in it may be hidden or encoded
        if authority.contains(['@', '%']) || !url.username().is_empty() || url.password().is_some() {
            return refuse("no user, password or escapes before the path");
        }
        let Some(host) = url.host() else { return refuse("a host") };
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let spelled = format!("{host}{port}");
        // a trailing dot, upper case, an address in another form, a name in another script, a default port
        let dotted = matches!(host, Host::Domain(name) if name.ends_with('.'));
        if spelled != authority || dotted {
            return refuse("the host in its plain form: lower case, no trailing dot, no default port");
        }
        let name = host.to_string();
        let loopback = scheme == "http" && LOOPBACK.contains(&name.as_str());
        if scheme == "http" && !loopback {
            return refuse("https://, or http:// to 127.0.0.1, [::1] or localhost");
        }
        if scheme == "https" && matches!(host, Host::Ipv4(_) | Host::Ipv6(_)) {
            return refuse("a host with a name");
        }
        let path = &after[authority.len()..];
        // a path that a server or a browser would walk up, and slashes that only one of them sees
        let lower = path.to_ascii_lowercase();
        if ["%2f", "%5c", "%2e", "%00", "%0a", "%0d"].iter().any(|hidden| lower.contains(hidden))
            || path.split(['/', '?']).any(|part| part == "." || part == "..")
        {
            return refuse("no dots, slashes or line ends in disguise");
        }
        Ok(Self { text: text.into(), host: name.into(), loopback })
    }
}

impl fmt::Debug for RedirectUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> RedirectUri {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn plain_uris_are_taken_as_they_are() {
        for (text, host, loopback) in [
            ("https://app.example/cb", "app.example", false),
            ("https://app.example:8443/cb?x=1", "app.example", false),
            ("https://app.example", "app.example", false),
            ("http://127.0.0.1/callback", "127.0.0.1", true),
            ("http://127.0.0.1:49152/callback", "127.0.0.1", true),
            ("http://localhost:1/", "localhost", true),
            ("http://[::1]:7/cb", "[::1]", true),
            ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", false),
        ] {
            let uri = read(text);
            assert_eq!((uri.as_str(), uri.host(), uri.is_loopback()), (text, host, loopback));
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for text in [
            "",
            "cb",
            "//app.example/cb",
            "javascript:alert(1)",
            "data:text/html,x",
            "cursor://x/cb",
            "file:///etc/passwd",
            "http://app.example/cb",
            "http://127.0.0.1.evil.example/cb",
            "http://127.0.0.1@evil.example/cb",
            "https://user@app.example/cb",
            "https://user:pw@app.example/cb",
            "https://app.example@evil.example/cb",
            "https://App.example/cb",
            "HTTPS://app.example/cb",
            "https://app.example./cb",
            "https://app.example:443/cb",
            "https://app.example:/cb",
            "https://app.example:8443./cb",
            "https://app%2eexample/cb",
            "https://app.example%2f@evil.example/cb",
            "https://app.example\\@evil.example/cb",
            "https:\\\\app.example/cb",
            "https:/app.example/cb",
            "https://app.example/a/../cb",
            "https://app.example/a/%2e%2e/cb",
            "https://app.example/a%2Fb",
            "https://app.example/cb#x",
            "https://app.example/c b",
            "https://app.example/c\nb",
            "https://app.example/c\tb",
            "https://app.example/c\u{0}b",
            "https://app.example/%0d%0aset-cookie:x",
            "https://bücher.example/cb",
            "https://app.exаmple/cb",
            "https://127.0.0.1/cb",
            "https://[::1]/cb",
            "http://127.1/cb",
            "http://2130706433/cb",
            "http://0x7f.0.0.1/cb",
            "http://0177.0.0.1/cb",
            "http://[0:0:0:0:0:0:0:1]/cb",
            "http://[::ffff:127.0.0.1]/cb",
            "http://[::1%25lo]/cb",
            "http://LOCALHOST/cb",
            "http://localhost./cb",
            "http://127.0.0.1:99999/cb",
            "http://127.0.0.1:080/cb",
            "http://127.0.0.1:80/cb",
        ] {
            assert!(text.parse::<RedirectUri>().is_err(), "{text:?}");
        }
        let long = format!("https://app.example/{}", "a".repeat(REDIRECT_URI_MAX));
        assert!(long.parse::<RedirectUri>().is_err());
    }

    #[test]
    fn only_a_loopback_port_may_differ() {
        let loopback = read("http://127.0.0.1/callback");
        for (asked, allowed) in [
            ("http://127.0.0.1/callback", true),
            ("http://127.0.0.1:1/callback", true),
            ("http://127.0.0.1:65535/callback", true),
            ("http://127.0.0.1:1/callback/", false),
            ("http://127.0.0.1:1/callback?x=1", false),
            ("http://127.0.0.1:1/Callback", false),
            ("http://localhost:1/callback", false),
            ("http://[::1]:1/callback", false),
            ("https://127-0-0-1.example/callback", false),
        ] {
            assert_eq!(loopback.allows(&read(asked)), allowed, "{asked}");
        }
        let web = read("https://app.example/cb");
        for asked in ["https://app.example/cb/", "https://app.example:8443/cb", "https://app.example/cb?a=b"]
        {
            assert!(!web.allows(&read(asked)), "{asked}");
        }
        assert!(web.allows(&web.clone()));
        assert!(read("http://localhost:3000/cb").allows(&read("http://localhost:4000/cb")));
    }

    #[test]
    fn members_are_added_to_a_query() {
        assert_eq!(
            read("https://a.example/cb").with(&[("code", "x y"), ("iss", "http://h:1")]),
            "https://a.example/cb?code=x+y&iss=http%3A%2F%2Fh%3A1"
        );
        assert_eq!(
            read("https://a.example/cb?k=v").with(&[("state", "&#")]),
            "https://a.example/cb?k=v&state=%26%23"
        );
    }

    proptest! {
        #[test]
        fn what_is_read_leads_where_a_browser_goes(text in "(https?)://[a-z0-9.\\[\\]:@%-]{1,20}[/?a-z.%0-9]{0,12}") {
            if let Ok(uri) = text.parse::<RedirectUri>() {
                let url = Url::parse(uri.as_str()).unwrap();
                prop_assert_eq!(url.host_str().unwrap(), uri.host());
                prop_assert!(url.scheme() == "https" || uri.is_loopback());
                prop_assert!(url.username().is_empty() && url.fragment().is_none());
            }
        }
    }
}
