//! The guest protocol silkd: newline-delimited JSON on the guest channel.

use serde::{Deserialize, Serialize};

/// The protocol's version, the `v` of each request.
pub const VERSION: u32 = 1;

/// A request line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Request {
    /// Asks who is there.
    Info {},
    /// Asks for raw bytes to a guest port: after [`Response::Ready`] the connection is a pipe, each direction closing
    /// on its own. Ours; the public protocol has `port_forward`.
    XRelay {
        /// The port on the guest's loopback.
        port: u16,
    },
}

/// A response line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Response {
    /// The answer to [`Request::Info`].
    Info {
        /// The guest software's version.
        version: String,
        /// 2: a connection serves many requests, one after the other.
        proto: u32,
        /// Seconds since the guest's first process started.
        uptime_secs: u64,
        /// Processes that run.
        procs: u64,
        /// Sessions that live.
        sessions: u64,
    },
    /// The stream that was asked for begins.
    Ready {},
    /// The request failed; terminal.
    Error {
        /// Which kind.
        kind: ErrorKind,
        /// In words.
        message: String,
    },
}

/// The kinds of [`Response::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request breaks a rule.
    BadRequest,
    /// What it names is not there.
    NotFound,
    /// This guest cannot do it.
    Unimplemented,
    /// The guest failed.
    Internal,
}

/// Where a connection through the door socket should lead; the first line that the guest writes on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Door {
    /// 127.0.0.1:3128, an HTTP proxy.
    Http,
    /// 127.0.0.1:1080, SOCKS5.
    Socks5,
    /// 10.203.0.1:18090, the model gateway.
    Gateway,
    /// 10.203.0.1:18091, the box door.
    Box,
}

/// The first line on a connection through the door socket, `{"door":"http"}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "one line of a fixed protocol")]
pub struct DoorHello {
    /// Which door was dialled.
    pub door: Door,
}

/// Returns one line of the protocol: `value` as JSON and a newline; requests carry `"v":1` first.
pub fn request_line(request: &Request) -> Vec<u8> {
    #[derive(Serialize)]
    struct Versioned<'a> {
        v: u32,
        #[serde(flatten)]
        request: &'a Request,
    }
    line(&Versioned { v: VERSION, request })
}

/// Returns `value` as JSON and a newline.
pub fn line(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("protocol types are always JSON");
    bytes.push(b'\n');
    bytes
}
