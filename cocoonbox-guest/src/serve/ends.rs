//! This side of a program's input and output, for the runtime.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::unix::pipe;

use crate::sys::{self, Ends, Size};

/// The master of a terminal.
#[derive(Clone, Debug)]
pub(crate) struct Master(Arc<AsyncFd<OwnedFd>>);

impl Master {
    pub(crate) fn resize(&self, size: Size) -> io::Result<()> {
        sys::resize(self.fd(), size)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// Where a program's output comes from.
#[derive(Debug)]
pub(crate) enum Source {
    Pipe(pipe::Receiver),
    Terminal(Master),
}

impl Source {
    /// Reads some bytes; 0 at the end. May be dropped while it waits.
    pub(crate) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.read(buffer).await,
            Self::Terminal(master) => loop {
                let mut ready = master.0.readable().await?;
                match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut *buffer)?)) {
                    // a terminal that nobody holds open any more
                    Ok(Err(error)) if error.raw_os_error() == Some(5) => return Ok(0),
                    Ok(result) => return result,
                    Err(_) => {}
                }
            },
        }
    }
}

/// Where a program's input goes.
#[derive(Debug)]
pub(crate) enum Sink {
    Pipe(pipe::Sender),
    Terminal(Master),
}

impl Sink {
    /// Writes some bytes. May be dropped while it waits.
    pub(crate) async fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.write(data).await,
            Self::Terminal(master) => loop {
                let mut ready = master.0.writable().await?;
                if let Ok(result) = ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), data)?)) {
                    return result;
                }
            },
        }
    }

    pub(crate) async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let written = self.write(data).await?;
            data = &data[written..];
        }
        Ok(())
    }

    /// Ends the input: a pipe is closed, a terminal is typed its end-of-file character.
    pub(crate) async fn close(mut self) {
        if let Self::Terminal(master) = &self {
            let end = rustix::termios::tcgetattr(master.fd())
                .map_or(4, |modes| modes.special_codes[rustix::termios::SpecialCodeIndex::VEOF]);
            let _ = self.write_all(&[end]).await;
        }
    }
}

/// The size of the pipe that a program's output comes through.
pub(crate) const PIPE: usize = 256 * 1024;

/// Puts this side's ends into the runtime: input, output, and standard error or the terminal's master.
pub(crate) fn open(ends: Ends) -> io::Result<(Sink, Source, Option<Source>, Option<Master>)> {
    match ends {
        Ends::Pipes { stdin, stdout, stderr } => {
            // who has many pipes already gets smaller ones
            let _ = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE);
            Ok((
                Sink::Pipe(pipe::Sender::from_owned_fd(stdin)?),
                Source::Pipe(pipe::Receiver::from_owned_fd(stdout)?),
                Some(Source::Pipe(pipe::Receiver::from_owned_fd(stderr)?)),
                None,
            ))
        }
        Ends::Terminal(master) => {
            rustix::io::ioctl_fionbio(&master, true)?;
            let master = Master(Arc::new(sys::watch(master, Interest::READABLE | Interest::WRITABLE)?));
            Ok((Sink::Terminal(master.clone()), Source::Terminal(master.clone()), None, Some(master)))
        }
    }
}
