//! Uploads on the guest channel: a file, or a tree as a tar stream.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use cocoonbox_wire::silkd::Response;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::Guest;
use super::channel::{Failure, Input, Output, Refusal};
use super::files::{blocking, path};
use crate::file::Replacement;
use crate::tree;

pub(super) async fn write(
    text: String,
    mode: Option<u32>,
    guest: &Guest,
    input: &mut Input,
    output: &mut Output,
) -> Result<(), Failure> {
    if mode.is_some_and(|mode| mode > 0o7777) {
        return Err(Refusal::bad("mode: permission bits only").into());
    }
    let path = path(&text, guest)?;
    let mut replacement = blocking(move || Replacement::begin(&path, mode)).await?;
    while let Some(data) = input.next_data().await? {
        replacement = blocking(move || replacement.write(&data).map(|()| replacement)).await?;
    }
    blocking(move || replacement.commit()).await?;
    output.send(&Response::Done {}).await
}

/// What a pushed tree is read from: pieces as they come. A sender that goes without saying so is an error.
struct Pieces {
    receiver: mpsc::Receiver<Option<Bytes>>,
    piece: Bytes,
    ended: bool,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.ended {
            match self.receiver.blocking_recv() {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.ended = true,
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        let count = self.piece.len().min(buffer.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

pub(super) async fn push(
    dest: String,
    guest: &Guest,
    input: &mut Input,
    output: &mut Output,
) -> Result<(), Failure> {
    let path = path(&dest, guest)?;
    let (sender, receiver) = mpsc::channel(4);
    let mut unpacker =
        spawn_blocking(move || tree::unpack(Pieces { receiver, piece: Bytes::new(), ended: false }, &path));
    let outcome = loop {
        let data = input.next_data().await;
        let (piece, last) = match data {
            Ok(data) => {
                let last = data.is_none();
                (data, last)
            }
            Err(failure) => {
                // without its end, the unpacker cleans up and leaves the destination as it was
                drop(sender);
                let _ = unpacker.await;
                return Err(failure);
            }
        };
        // the unpacker gave up: its reason is the answer, what still comes is dropped
        if sender.send(piece).await.is_err() || last {
            break (&mut unpacker).await;
        }
    };
    outcome
        .map_err(|_| Refusal::internal("the work was given up"))?
        .map_err(|error| Refusal::new(error.kind(), error))?;
    output.send(&Response::Done {}).await
}
