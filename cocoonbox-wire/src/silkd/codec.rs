//! How it is said: lines, their limit, and the short way for bulk data.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use cocoonbox_core::Retry;
use serde::{Deserialize, Serialize};
use tokio_util::codec::Decoder;

use super::message::{ErrorKind, Request, Response, VERSION};
use crate::MAX_FRAME_BYTES;

/// A connection whose lines cannot be told apart any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A line is over the limit.
    #[error("a line is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The connection ended inside a line.
    #[error("the connection ended inside a line")]
    Truncated,
    /// The connection failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

impl FrameError {
    /// Tells what a caller may do.
    pub fn retry(&self) -> Retry {
        match self {
            Self::TooLong { .. } => Retry::Never,
            Self::Truncated | Self::Io(_) => Retry::LookFirst,
        }
    }
}

/// A line that is no message; the next line may be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It is no JSON object of the shape its name promises.
    #[error("malformed message (line {line}, column {column})")]
    Malformed {
        /// Where parsing stopped.
        line: usize,
        /// Where parsing stopped.
        column: usize,
    },
    /// It speaks another version.
    #[error("protocol version {version} is not spoken here, {VERSION} is")]
    Version {
        /// The version it speaks.
        version: u64,
    },
    /// It names an operation or a type that is not known here.
    #[error("unknown operation or type {name:?}")]
    Unknown {
        /// The name, cut to 64 bytes.
        name: String,
    },
}

impl DecodeError {
    /// Returns the kind under which a guest reports it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Malformed { .. } | Self::Version { .. } => ErrorKind::BadRequest,
            Self::Unknown { .. } => ErrorKind::Unimplemented,
        }
    }

    /// Tells what a caller may do.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Malformed { .. } | Self::Version { .. } | Self::Unknown { .. } => Retry::Never,
        }
    }
}

impl From<serde_json::Error> for DecodeError {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed { line: error.line(), column: error.column() }
    }
}

/// Cuts a stream of bytes into lines, none longer than a limit.
#[derive(Debug)]
pub struct LineCodec {
    limit: usize,
    scanned: usize,
}

impl Default for LineCodec {
    fn default() -> Self {
        Self::with_limit(MAX_FRAME_BYTES)
    }
}

impl LineCodec {
    /// Makes a codec whose lines, newline included, have at most `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self { limit, scanned: 0 }
    }
}

impl Decoder for LineCodec {
    type Item = Bytes;
    type Error = FrameError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        // what was looked through before may have been taken out of the buffer
        self.scanned = self.scanned.min(buffer.len());
        let Some(found) = buffer[self.scanned..].iter().position(|byte| *byte == b'\n') else {
            self.scanned = buffer.len();
            return if buffer.len() >= self.limit {
                Err(FrameError::TooLong { limit: self.limit })
            } else {
                Ok(None)
            };
        };
        let length = self.scanned + found + 1;
        self.scanned = 0;
        if length > self.limit {
            return Err(FrameError::TooLong { limit: self.limit });
        }
        let mut line = buffer.split_to(length).freeze();
        line.truncate(length - 1);
        Ok(Some(line))
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        match self.decode(buffer)? {
            None if !buffer.is_empty() => Err(FrameError::Truncated),
            line => Ok(line),
        }
    }
}

/// Reads one request line.
///
/// # Errors
/// Any of [`DecodeError`].
pub fn decode_request(line: &[u8]) -> Result<Request, DecodeError> {
    #[derive(Deserialize)]
    struct Head<'a> {
        v: u64,
        #[serde(borrow)]
        op: std::borrow::Cow<'a, str>,
    }
    for (prefix, make) in [
        (&br#"{"v":1,"op":"stdin","data":""#[..], (|data| Request::Stdin { data }) as fn(Bytes) -> Request),
        (br#"{"v":1,"op":"data","data":""#, |data| Request::Data { data }),
    ] {
        if let Some(data) = bare_data(line, prefix) {
            return Ok(make(data));
        }
    }
    let head: Head<'_> = serde_json::from_slice(line)?;
    if head.v != u64::from(VERSION) {
        return Err(DecodeError::Version { version: head.v });
    }
    if !Request::OPERATIONS.contains(&head.op.as_ref()) {
        return Err(unknown(&head.op));
    }
    Ok(serde_json::from_slice(line)?)
}

/// Reads one response line.
///
/// # Errors
/// Any of [`DecodeError`].
pub fn decode_response(line: &[u8]) -> Result<Response, DecodeError> {
    const TYPES: [&str; 20] = [
        "info",
        "ready",
        "started",
        "stdout",
        "stderr",
        "exit",
        "data",
        "done",
        "procs",
        "entries",
        "stat",
        "session_created",
        "sessions",
        "match",
        "replaced",
        "event",
        "git_status_result",
        "git_commit_result",
        "git_branches",
        "error",
    ];
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        r#type: std::borrow::Cow<'a, str>,
    }
    for (prefix, make) in [
        (&br#"{"type":"stdout","data":""#[..], (|data| Response::Stdout { data }) as fn(Bytes) -> Response),
        (br#"{"type":"stderr","data":""#, |data| Response::Stderr { data }),
        (br#"{"type":"data","data":""#, |data| Response::Data { data }),
    ] {
        if let Some(data) = bare_data(line, prefix) {
            return Ok(make(data));
        }
    }
    let head: Head<'_> = serde_json::from_slice(line)?;
    if !TYPES.contains(&head.r#type.as_ref()) {
        return Err(unknown(&head.r#type));
    }
    Ok(serde_json::from_slice(line)?)
}

/// Returns one request line, `"v":1` first.
pub fn request_line(request: &Request) -> Vec<u8> {
    #[derive(Serialize)]
    struct Versioned<'a> {
        v: u32,
        #[serde(flatten)]
        request: &'a Request,
    }
    match request {
        Request::Stdin { data } => data_line(r#"{"v":1,"op":"stdin","data":""#, data),
        Request::Data { data } => data_line(r#"{"v":1,"op":"data","data":""#, data),
        request => line(&Versioned { v: VERSION, request }),
    }
}

/// Returns one response line.
pub fn response_line(response: &Response) -> Vec<u8> {
    match response {
        Response::Stdout { data } => data_line(r#"{"type":"stdout","data":""#, data),
        Response::Stderr { data } => data_line(r#"{"type":"stderr","data":""#, data),
        Response::Data { data } => data_line(r#"{"type":"data","data":""#, data),
        response => line(response),
    }
}

/// Returns `value` as JSON and a newline.
pub fn line(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("protocol types are always JSON");
    bytes.push(b'\n');
    bytes
}

/// Base64 needs no JSON escape, so bulk lines are put together by hand.
fn data_line(prefix: &str, data: &[u8]) -> Vec<u8> {
    let mut text = String::with_capacity(prefix.len() + data.len().div_ceil(3) * 4 + 3);
    text.push_str(prefix);
    STANDARD.encode_string(data, &mut text);
    text.push_str("\"}\n");
    text.into_bytes()
}

/// Reads a line of exactly the shape [`data_line`] writes; anything else goes through the JSON reader.
fn bare_data(line: &[u8], prefix: &[u8]) -> Option<Bytes> {
    let text = line.strip_prefix(prefix)?.strip_suffix(b"\"}")?;
    STANDARD.decode(text).ok().map(Bytes::from)
}

fn unknown(name: &str) -> DecodeError {
    DecodeError::Unknown { name: name[..name.floor_char_boundary(64)].to_owned() }
}

pub(super) mod base64_bytes {
    use std::fmt;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(data: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(data))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Base64;
        impl Visitor<'_> for Base64 {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64 text")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
                STANDARD.decode(text).map(Bytes::from).map_err(|_| E::custom("not base64"))
            }
        }
        deserializer.deserialize_str(Base64)
    }
}

#[cfg(test)]
mod tests;
