//! Where the server is.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tonic::transport;

/// Where a server listens: `http://host:port` or `unix:/path`.
///
/// The text it was parsed from is normal: lower-case host, no path, no user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(Place);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Http(Box<str>),
    Unix(PathBuf),
}

/// A text that names no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// It is not `http://host[:port]` or `unix:/path`.
    #[error("not an endpoint: use http://host:port or unix:/path")]
    Malformed,
    /// It asks for TLS, which this client does not speak.
    #[error("https is not spoken by this client: reach the server through a tunnel or a local proxy")]
    Tls,
}

const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
/// More than a few commands whose output nobody reads can fill: they must not hold the others up.
const CONNECTION_WINDOW: u32 = 16 * STREAM_WINDOW;
/// The largest frame that is taken: output in few large pieces wakes everybody on its way less often.
const FRAME: u32 = 512 * 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(10);

impl Endpoint {
    /// Returns where `cocoonbox up` listens unless told otherwise.
    pub fn local() -> Self {
        Self(Place::Http("http://127.0.0.1:7420".into()))
    }

    /// Returns whether bytes to the server stay on this machine.
    pub fn is_local(&self) -> bool {
        match &self.0 {
            Place::Unix(_) => true,
            Place::Http(url) => {
                let authority = url.trim_start_matches("http://");
                let host = authority.rsplit_once(':').map_or(authority, |(host, port)| {
                    if port.bytes().all(|byte| byte.is_ascii_digit()) { host } else { authority }
                });
                let host = host.trim_start_matches('[').trim_end_matches(']');
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }

    /// Dials the server and returns an h2 channel that dials again by itself after a loss.
    pub(crate) async fn dial(&self) -> Result<transport::Channel, transport::Error> {
        let (url, unix) = match &self.0 {
            Place::Http(url) => (url.to_string(), None),
            Place::Unix(path) => ("http://cocoonbox".to_owned(), Some(path.clone())),
        };
        let endpoint = transport::Endpoint::from_shared(url)?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME);
        match unix {
            None => endpoint.connect().await,
            Some(path) => {
                let connector = tower::service_fn(move |_| {
                    let path = path.clone();
                    async move { tokio::net::UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
                });
                endpoint.connect_with_connector(connector).await
            }
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path.strip_prefix("//").unwrap_or(path));
            // sun_path holds 107 bytes and a zero
            return if path.is_absolute() && path.as_os_str().len() <= 107 {
                Ok(Self(Place::Unix(path.to_owned())))
            } else {
                Err(EndpointError::Malformed)
            };
        }
        if text.starts_with("https://") {
            return Err(EndpointError::Tls);
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.len() > 300 || rest.contains(['/', '@', '?', '#', ' ']) {
            return Err(EndpointError::Malformed);
        }
        let authority: tonic::codegen::http::uri::Authority =
            rest.parse().map_err(|_| EndpointError::Malformed)?;
        let bare = authority.as_str().len() == authority.host().len();
        if authority.host().is_empty() || (!bare && authority.port_u16().is_none()) {
            return Err(EndpointError::Malformed);
        }
        Ok(Self(Place::Http(format!("http://{}", authority.as_str().to_ascii_lowercase()).into())))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Http(url) => f.pad(url),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_follow_the_grammar() {
        for (text, expected) in [
            ("http://127.0.0.1:7420", Ok("http://127.0.0.1:7420")),
            ("127.0.0.1:7420", Ok("http://127.0.0.1:7420")),
            ("http://Box.Example:80/", Ok("http://box.example:80")),
            ("[::1]:7420", Ok("http://[::1]:7420")),
            ("unix:/run/cb.sock", Ok("unix:/run/cb.sock")),
            ("unix:///run/cb.sock", Ok("unix:/run/cb.sock")),
            ("unix:cb.sock", Err(EndpointError::Malformed)),
            ("https://box.example", Err(EndpointError::Tls)),
            ("http://user:secret@host", Err(EndpointError::Malformed)),
            ("http://host/path", Err(EndpointError::Malformed)),
            ("http://host:99999", Err(EndpointError::Malformed)),
            ("", Err(EndpointError::Malformed)),
            ("ftp://host", Err(EndpointError::Malformed)),
        ] {
            assert_eq!(
                text.parse::<Endpoint>().map(|endpoint| endpoint.to_string()),
                expected.map(str::to_owned),
                "{text}"
            );
        }
    }

    #[test]
    fn loopback_is_local_and_the_rest_is_not() -> Result<(), EndpointError> {
        for (text, local) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("unix:/x", true),
            ("10.0.0.1:1", false),
            ("a.b", false),
        ] {
            assert_eq!(text.parse::<Endpoint>()?.is_local(), local, "{text}");
        }
        Ok(())
    }
}
