//! The guest protocol silkd: newline-delimited JSON on the guest channel.
//!
//! A request is one line, `{"v":1,"op":…}`; the answer is lines `{"type":…}` up to a terminal one ([`Response::Exit`],
//! [`Response::Done`], [`Response::Error`], or the single line that an operation promises). While a request is in
//! flight its input comes as lines of the same shape ([`Request::Stdin`], [`Request::Data`] and their ends); input that
//! arrives after the end is dropped. Unknown fields are ignored, unknown operations are [`ErrorKind::Unimplemented`].
//! A line, its newline included, has at most [`MAX_FRAME_BYTES`](crate::MAX_FRAME_BYTES); binary is base64 in `data`.

mod codec;
mod message;

pub use codec::{
    DecodeError, FrameError, LineCodec, decode_request, decode_response, line, request_line, response_line,
};
pub use message::{
    Door, DoorHello, ErrorKind, EventKind, FileEntry, FileInfo, FileKind, GitFile, ProcessEntry,
    ProcessState, Request, Response, VERSION,
};
