//! Moves tar streams between the blocking file system and a command in the box.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::runtime::Handle;

use super::super::super::error::CliError;
use super::super::super::progress::Progress;
use super::super::super::render::bytes;
use super::extract::{Destination, Extractor};
use super::{Copied, MAX_WORDS, pack, tar_failure};
use crate::exec::{Command, Exec, ExecError, RunOptions, Stdio};

/// What may wait between the file system and the connection.
const PIPE: usize = 512 * 1024;

/// The blocking end of a pipe whose other end a command has.
struct Blocking {
    pipe: DuplexStream,
    runtime: Handle,
    moved: Arc<AtomicU64>,
}

impl Read for Blocking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.runtime.block_on(self.pipe.read(buffer))?;
        self.moved.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Write for Blocking {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.runtime.block_on(self.pipe.write(data))?;
        self.moved.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the first bytes of what a command says and lets the rest pass.
#[derive(Default)]
struct Words(Vec<u8>);

impl AsyncWrite for Words {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let room = MAX_WORDS.saturating_sub(self.0.len()).min(data.len());
        self.0.extend_from_slice(&data[..room]);
        Poll::Ready(Ok(data.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Packs `source` under `name` into a command that unpacks it.
pub(super) async fn send(
    exec: &Exec,
    command: Command,
    source: PathBuf,
    name: PathBuf,
    progress: &mut Progress<'_>,
) -> Result<Copied, CliError> {
    let (near, far) = tokio::io::duplex(PIPE);
    let moved = Arc::new(AtomicU64::new(0));
    let pipe = Blocking { pipe: near, runtime: Handle::current(), moved: Arc::clone(&moved) };
    let packing = tokio::task::spawn_blocking(move || pack::pack(pipe, &source, &name));
    let (mut words, mut silence) = (Words::default(), Words::default());
    let stdio = Stdio { stdin: far, stdout: &mut silence, stderr: &mut words };
    let run = exec.run(command, stdio, RunOptions::default());
    let exit = showing(run, &moved, progress).await?;
    // the run dropped its end of the pipe: packing has ended or ends now
    let packed = packing.await.map_err(|_| CliError::failed("packing broke off", None))?;
    match packed {
        // a broken pipe is the command's doing: what it said tells more
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::io("a file cannot be sent", error))
        }
        _ if !exit.success() => Err(tar_failure(exit, &words.0)),
        Ok(copied) => Ok(copied),
        Err(error) => Err(CliError::io("the box took only a part", error)),
    }
}

/// Unpacks what a command packs.
pub(super) async fn fetch(
    exec: &Exec,
    command: Command,
    into: Destination,
    base: Option<OsString>,
    progress: &mut Progress<'_>,
) -> Result<Copied, CliError> {
    let (near, far) = tokio::io::duplex(PIPE);
    let moved = Arc::new(AtomicU64::new(0));
    let pipe = Blocking { pipe: near, runtime: Handle::current(), moved: Arc::clone(&moved) };
    let unpacking = tokio::task::spawn_blocking(move || Extractor::new(into, base).extract(pipe));
    let mut words = Words::default();
    let ran = {
        let stdio = Stdio { stdin: tokio::io::empty(), stdout: far, stderr: &mut words };
        showing(exec.run(command, stdio, RunOptions::default()), &moved, progress).await
    };
    let unpacked = unpacking.await.map_err(|_| CliError::failed("unpacking broke off", None))?;
    match (ran, unpacked) {
        // the reader gave up first: why is its error
        (Err(ExecError::Output(_)), Err(error)) => {
            Err(CliError::io("what the box sent was not written", error))
        }
        (Err(error), _) => Err(error.into()),
        (Ok(exit), _) if !exit.success() => Err(tar_failure(exit, &words.0)),
        (Ok(_), Err(error)) => Err(CliError::io("what the box sent was not written", error)),
        (Ok(_), Ok(copied)) => Ok(copied),
    }
}

/// Shows how much has moved while `work` goes on.
async fn showing<T>(work: impl Future<Output = T>, moved: &AtomicU64, progress: &mut Progress<'_>) -> T {
    tokio::pin!(work);
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = tick.tick() => progress.show(format!("copying, {}", bytes(moved.load(Ordering::Relaxed)))),
        }
    }
}
