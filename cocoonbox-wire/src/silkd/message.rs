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
    /// Starts a persistent shell: [`Response::SessionCreated`].
    SessionCreate {
        /// What to call it; the guest's choice when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Where it starts; the user's home when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
        /// Variables on top of the guest's base set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        env: Option<BTreeMap<String, String>>,
    },
    /// Lists the persistent shells: [`Response::Sessions`].
    SessionList {},
    /// Ends a persistent shell.
    SessionRm {
        /// Which one.
        id: String,
    },
    /// Looks for lines in the files of a tree: [`Response::Match`] for each, then [`Response::Done`].
    FsFind {
        /// Which file or tree.
        path: String,
        /// A regular expression.
        pattern: String,
        /// Which file names, with `*` and `?`; all when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob: Option<String>,
    },
    /// Replaces in files: [`Response::Replaced`] for each, then [`Response::Done`].
    FsReplace {
        /// Which files.
        files: Vec<String>,
        /// A regular expression.
        pattern: String,
        /// What takes the place of a match; `$1` is its first group.
        replacement: String,
    },
    /// Tells what happens below a path: [`Response::Ready`], then [`Response::Event`] until the client leaves.
    FsWatch {
        /// Which path.
        path: String,
        /// The directories below it, too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recursive: Option<bool>,
    },
    /// Clones a repository.
    GitClone {
        /// From where.
        url: String,
        /// To where.
        path: String,
    },
    /// Tells how a working tree stands: [`Response::GitStatusResult`].
    GitStatus {
        /// Which one.
        path: String,
    },
    /// Stages files.
    GitAdd {
        /// The working tree.
        path: String,
        /// Which files of it.
        files: Vec<String>,
    },
    /// Commits what is staged: [`Response::GitCommitResult`].
    GitCommit {
        /// The working tree.
        path: String,
        /// The commit's message.
        message: String,
        /// `Name <address>`.
        author: String,
    },
    /// Pushes.
    GitPush {
        /// The working tree.
        path: String,
    },
    /// Pulls.
    GitPull {
        /// The working tree.
        path: String,
    },
    /// Lists, makes, checks out or deletes a branch.
    GitBranch {
        /// The working tree.
        path: String,
        /// `list`, `create`, `checkout` or `delete`.
        action: String,
        /// Which branch; none for `list`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Starts a language server.
    LspStart {
        /// For which language.
        language: String,
    },
    /// Attaches to a language server.
    #[serde(rename = "lsp_request")]
    LspAttach {
        /// Which one.
        server_id: String,
    },
    /// Ends a language server.
    LspStop {
        /// Which one.
        server_id: String,
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
    pub const OPERATIONS: [&'static str; 39] = [
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
        "session_create",
        "session_list",
        "session_rm",
        "fs_find",
        "fs_replace",
        "fs_watch",
        "git_clone",
        "git_status",
        "git_add",
        "git_commit",
        "git_push",
        "git_pull",
        "git_branch",
        "lsp_start",
        "lsp_request",
        "lsp_stop",
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
    /// The answer to [`Request::SessionCreate`].
    SessionCreated {
        /// What the shell is called.
        id: String,
    },
    /// The answer to [`Request::SessionList`].
    Sessions {
        /// What each shell is called.
        sessions: Vec<String>,
    },
    /// A line that [`Request::FsFind`] looked for.
    Match {
        /// The file.
        file: String,
        /// The line's number, from 1.
        line: u64,
        /// The line.
        content: String,
    },
    /// What [`Request::FsReplace`] did to a file.
    Replaced {
        /// The file.
        file: String,
        /// How many matches were replaced.
        replacements: u64,
    },
    /// Something happened below a watched path.
    Event {
        /// What.
        kind: EventKind,
        /// To which path.
        path: String,
    },
    /// The answer to [`Request::GitStatus`].
    GitStatusResult {
        /// The branch; empty when none is checked out.
        branch: String,
        /// Commits that the upstream lacks.
        ahead: u64,
        /// Commits that only the upstream has.
        behind: u64,
        /// What differs.
        files: Vec<GitFile>,
        /// Whether there is more than `files` holds.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        truncated: bool,
    },
    /// The answer to [`Request::GitCommit`].
    GitCommitResult {
        /// The commit's hash.
        hash: String,
    },
    /// The answer to a [`Request::GitBranch`] that lists.
    GitBranches {
        /// The branch that is checked out; empty when none is.
        current: String,
        /// All branches.
        branches: Vec<String>,
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

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// It is there now.
    Create,
    /// Its content or its rights changed.
    Modify,
    /// It is there no more.
    Remove,
}

/// A file that differs from what is committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "a line of the public protocol")]
pub struct GitFile {
    /// Its path in the working tree.
    pub path: String,
    /// What is staged, as one letter.
    pub staged: String,
    /// What is not, as one letter.
    pub unstaged: String,
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
