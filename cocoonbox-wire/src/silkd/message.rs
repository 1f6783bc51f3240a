//! What is said: requests, responses and their parts.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The protocol's version, the `v` of each request.
pub const VERSION: u32 = 1;

/// A request line, or a line of input for the request in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Request {
    /// Asks who is there.
    Info {},
    /// Runs a program: [`Response::Started`], output, [`Response::Exit`]; detached, `Started` is terminal.
    Exec {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Where it starts; the user's home when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
        /// Variables on top of the guest's base set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        env: Option<BTreeMap<String, String>>,
        /// Whom to run it as.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// Runs on without this connection, its last output kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detach: Option<bool>,
        /// A persistent shell to run it in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
    },
    /// Signals a process and its group.
    Kill {
        /// Which process.
        pid: u32,
        /// Which signal; SIGKILL when absent or 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// Replays a detached process's kept output and follows it to its exit.
    Attach {
        /// Which process.
        pid: u32,
    },
    /// Replays a detached process's kept output: output, its exit if it has one, [`Response::Done`].
    Logs {
        /// Which process.
        pid: u32,
    },
    /// Lists the processes that were started here.
    Ps {},
    /// Replaces a file whole, from [`Request::Data`] up to [`Request::DataEnd`].
    FsWrite {
        /// Which file.
        path: String,
        /// Its permission bits; those it had, or 0644, when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
    /// Reads a file: [`Response::Data`], then [`Response::Done`].
    FsRead {
        /// Which file.
        path: String,
    },
    /// Lists a directory: [`Response::Entries`] in batches, then [`Response::Done`].
    FsList {
        /// Which directory.
        path: String,
    },
    /// Asks what a path is.
    FsStat {
        /// Which path; a last symbolic link is not followed.
        path: String,
    },
    /// Makes a directory.
    FsMkdir {
        /// Which directory.
        path: String,
        /// Makes those above it too, and accepts that it exists.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parents: Option<bool>,
    },
    /// Removes a path.
    FsRm {
        /// Which path.
        path: String,
        /// A directory with all it holds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recursive: Option<bool>,
    },
    /// Renames a path.
    FsRename {
        /// The old path.
        from: String,
        /// The new path.
        to: String,
    },
    /// Unpacks a tar stream, [`Request::Data`] up to [`Request::DataEnd`], into a directory.
    FsPush {
        /// Which directory.
        dest: String,
    },
    /// Packs a file or tree as a tar stream: [`Response::Data`], then [`Response::Done`].
    FsPull {
        /// Which path.
        path: String,
    },
    /// Runs the user's shell on a terminal: [`Response::Started`], output, [`Response::Exit`].
    PtyOpen {
        /// The terminal's width.
        cols: u16,
        /// The terminal's height.
        rows: u16,
        /// Where it starts; the user's home when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
        /// Variables on top of the guest's base set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        env: Option<BTreeMap<String, String>>,
        /// Whom to run it as.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
    },
    /// Gives a terminal another size.
    PtyResize {
        /// The process that [`Request::PtyOpen`] started.
        pid: u32,
        /// The new width.
        cols: u16,
        /// The new height.
        rows: u16,
    },
    /// Connects to a guest port: [`Response::Ready`], then data both ways; [`Request::DataEnd`] closes the way in,
    /// [`Response::Done`] tells that the guest's side closed.
    PortForward {
        /// The port on the guest's loopback.
        port: u16,
    },
    /// Asks for raw bytes to a guest port: after [`Response::Ready`] the connection is a pipe, each direction closing
    /// on its own. Ours; the public protocol has `port_forward`.
    XRelay {
        /// The port on the guest's loopback.
        port: u16,
    },
    /// Input of the program in flight.
    Stdin {
        /// The bytes.
        #[serde(with = "super::codec::base64_bytes")]
        data: Bytes,
    },
    /// The input of the program in flight ends.
    StdinClose {},
    /// Bytes of the upload or connection in flight.
    Data {
        /// The bytes.
        #[serde(with = "super::codec::base64_bytes")]
        data: Bytes,
    },
    /// The upload in flight, or this side's half of the connection in flight, ends.
    DataEnd {},
}

impl Request {
    /// The name of each operation in this enum.
    pub const OPERATIONS: [&'static str; 23] = [
        "info",
        "exec",
        "kill",
        "attach",
        "logs",
        "ps",
        "fs_write",
        "fs_read",
        "fs_list",
        "fs_stat",
        "fs_mkdir",
        "fs_rm",
        "fs_rename",
        "fs_push",
        "fs_pull",
        "pty_open",
        "pty_resize",
        "port_forward",
        "x_relay",
        "stdin",
        "stdin_close",
        "data",
        "data_end",
    ];

    /// Tells input of a request in flight from a request.
    pub fn is_input(&self) -> bool {
        matches!(self, Self::Stdin { .. } | Self::StdinClose {} | Self::Data { .. } | Self::DataEnd {})
    }
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
    /// The program runs.
    Started {
        /// Its process id in the guest.
        pid: u32,
    },
    /// Standard output, or a terminal's.
    Stdout {
        /// The bytes.
        #[serde(with = "super::codec::base64_bytes")]
        data: Bytes,
    },
    /// Standard error.
    Stderr {
        /// The bytes.
        #[serde(with = "super::codec::base64_bytes")]
        data: Bytes,
    },
    /// The program is over; terminal.
    Exit {
        /// Its exit code, or 128 and the signal that ended it.
        code: i32,
    },
    /// Bytes of the download or connection in flight.
    Data {
        /// The bytes.
        #[serde(with = "super::codec::base64_bytes")]
        data: Bytes,
    },
    /// The request is done; terminal.
    Done {},
    /// The answer to [`Request::Ps`].
    Procs {
        /// One per process.
        procs: Vec<ProcessEntry>,
    },
    /// A batch of the answer to [`Request::FsList`].
    Entries {
        /// One per name in the directory.
        entries: Vec<FileEntry>,
    },
    /// The answer to [`Request::FsStat`].
    Stat {
        /// What the path is.
        info: FileInfo,
    },
    /// The request failed; terminal.
    Error {
        /// Which kind.
        kind: ErrorKind,
        /// In words.
        message: String,
    },
}

/// A process that was started on the guest channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "a line of the public protocol")]
pub struct ProcessEntry {
    /// Its process id in the guest.
    pub pid: u32,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// It runs without a connection.
    pub detached: bool,
    /// Whether it runs.
    pub state: ProcessState,
    /// Its exit code, once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it was started, seconds since the Unix epoch.
    pub started_at_epoch_secs: u64,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It is over.
    Exited,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "a line of the public protocol")]
pub struct FileEntry {
    /// The name.
    pub name: String,
    /// What it names.
    #[serde(flatten)]
    pub info: FileInfo,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "a line of the public protocol")]
pub struct FileInfo {
    /// Which kind of file.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// When its content changed, seconds since the Unix epoch.
    pub mtime_epoch_secs: i64,
}

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Other,
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
