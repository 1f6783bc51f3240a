//! Reading and changing files on the guest channel.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use cocoonbox_wire::silkd::{Request, Response};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::Guest;
use super::channel::{Failure, Output, Refusal};
use crate::limit::check_path;
use crate::{file, tree};

/// Returns the path that a request names, relative to home.
pub(super) fn path(text: &str, guest: &Guest) -> Result<PathBuf, Refusal> {
    if text.is_empty() {
        return Err(Refusal::bad("the path is empty"));
    }
    check_path(OsStr::new(text)).map_err(Refusal::bad)?;
    Ok(guest.base.home.join(text))
}

/// Runs what blocks on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Refusal> {
    match spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Refusal::internal("the work was given up")),
    }
}

pub(super) async fn read(text: String, guest: &Guest, output: &mut Output) -> Result<(), Failure> {
    let path = path(&text, guest)?;
    let mut open = blocking(move || file::open(&path)).await?;
    loop {
        let (back, chunk) = blocking(move || {
            let chunk = file::read_chunk(&mut open)?;
            Ok((open, chunk))
        })
        .await?;
        open = back;
        let last = chunk.len() < file::CHUNK;
        if !chunk.is_empty() {
            output.send(&Response::Data { data: chunk.into() }).await?;
        }
        if last {
            return output.send(&Response::Done {}).await;
        }
    }
}

pub(super) async fn list(text: String, guest: &Guest, output: &mut Output) -> Result<(), Failure> {
    let path = path(&text, guest)?;
    let mut reader = blocking(move || fs::read_dir(path)).await?;
    loop {
        let (back, entries) = blocking(move || {
            let entries = file::list_batch(&mut reader)?;
            Ok((reader, entries))
        })
        .await?;
        reader = back;
        let last = entries.len() < file::BATCH;
        if !entries.is_empty() {
            output.send(&Response::Entries { entries }).await?;
        }
        if last {
            return output.send(&Response::Done {}).await;
        }
    }
}

/// Answers the requests that are one step.
pub(super) async fn change(request: Request, guest: &Guest) -> Result<Response, Refusal> {
    match request {
        Request::FsStat { path: text } => {
            let path = path(&text, guest)?;
            let info = blocking(move || file::stat(&path)).await?;
            return Ok(Response::Stat { info });
        }
        Request::FsMkdir { path: text, parents } => {
            let path = path(&text, guest)?;
            blocking(move || file::make_directory(&path, parents == Some(true))).await?;
        }
        Request::FsRm { path: text, recursive } => {
            let path = path(&text, guest)?;
            blocking(move || file::remove(&path, recursive == Some(true))).await?;
        }
        Request::FsRename { from, to } => {
            let (from, to) = (path(&from, guest)?, path(&to, guest)?);
            blocking(move || fs::rename(from, to)).await?;
        }
        _ => return Err(Refusal::internal("not a change")),
    }
    Ok(Response::Done {})
}

pub(super) async fn pull(text: String, guest: &Guest, output: &mut Output) -> Result<(), Failure> {
    let path = path(&text, guest)?;
    let (sender, mut receiver) = mpsc::channel::<Bytes>(2);
    let packer = spawn_blocking(move || {
        tree::pack(&path, |chunk| sender.blocking_send(chunk).map_err(|_| io::ErrorKind::BrokenPipe.into()))
    });
    while let Some(data) = receiver.recv().await {
        output.send(&Response::Data { data }).await?;
    }
    packer.await.map_err(|_| Refusal::internal("the work was given up"))??;
    output.send(&Response::Done {}).await
}
