//! What runs in a sandbox of the memory backend.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, SimplexStream};

use super::MemorySandbox;
use crate::backend::{BoxedDuplex, Target};

/// What a connection into a sandbox of the memory backend leads to.
pub trait MemoryGuest: fmt::Debug + Send + Sync + 'static {
    /// Answers a connection with the caller's end of it; `None`: nobody listens there.
    fn accept(&self, sandbox: &MemorySandbox, target: Target) -> Option<BoxedDuplex>;
}

/// Makes a guest of a function.
pub fn guest_fn<F>(accept: F) -> Arc<dyn MemoryGuest>
where
    F: Fn(&MemorySandbox, Target) -> Option<BoxedDuplex> + Send + Sync + 'static,
{
    Arc::new(FnGuest(accept))
}

struct FnGuest<F>(F);

impl<F> fmt::Debug for FnGuest<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FnGuest")
    }
}
impl<F> MemoryGuest for FnGuest<F>
where
    F: Fn(&MemorySandbox, Target) -> Option<BoxedDuplex> + Send + Sync + 'static,
{
    fn accept(&self, sandbox: &MemorySandbox, target: Target) -> Option<BoxedDuplex> {
        (self.0)(sandbox, target)
    }
}

/// A guest that sends back what it gets, on the channel and on port 7; nobody listens anywhere else.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct EchoGuest;

impl MemoryGuest for EchoGuest {
    fn accept(&self, _: &MemorySandbox, target: Target) -> Option<BoxedDuplex> {
        match target {
            Target::Port(port) if port.get() != 7 => None,
            Target::Port(_) | Target::Channel => Some(Box::new(SimplexStream::new_unsplit(64 * 1024))),
        }
    }
}

/// Whether the processes of one start of a sandbox run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulse {
    Running,
    Held,
    Ended,
}

/// One start of a sandbox: from a boot until its processes end.
#[derive(Debug)]
pub(super) struct Life(Mutex<(Pulse, Vec<Waker>)>);

impl Life {
    pub(super) fn begin() -> Arc<Self> {
        Arc::new(Self(Mutex::new((Pulse::Running, Vec::new()))))
    }

    pub(super) fn pulse(&self) -> Pulse {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Moves on; what ended stays ended.
    pub(super) fn set(&self, pulse: Pulse) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.0 != Pulse::Ended {
            inner.0 = pulse;
        }
        let wakers = std::mem::take(&mut inner.1);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the pulse and wakes the task at its next change.
    fn watch(&self, context: &Context<'_>) -> Pulse {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.0 != Pulse::Ended && !inner.1.iter().any(|waker| waker.will_wake(context.waker())) {
            inner.1.push(context.waker().clone());
        }
        inner.0
    }
}

/// A connection that stands still with its guest and breaks when the guest ends.
pub(super) struct GuestStream {
    pub(super) inner: BoxedDuplex,
    pub(super) life: Arc<Life>,
}

impl AsyncRead for GuestStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.life.watch(cx) {
            Pulse::Running => Pin::new(&mut self.inner).poll_read(cx, buf),
            Pulse::Held => Poll::Pending,
            Pulse::Ended => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.life.watch(cx) {
            Pulse::Running => Pin::new(&mut self.inner).poll_write(cx, buf),
            Pulse::Held => Poll::Pending,
            Pulse::Ended => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.life.watch(cx) {
            Pulse::Running => Pin::new(&mut self.inner).poll_flush(cx),
            Pulse::Held => Poll::Pending,
            Pulse::Ended => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.life.watch(cx) {
            Pulse::Running => Pin::new(&mut self.inner).poll_shutdown(cx),
            Pulse::Held => Poll::Pending,
            Pulse::Ended => Poll::Ready(Ok(())),
        }
    }
}
