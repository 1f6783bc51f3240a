//! Who is let in: each call shows a token for this box in this wake and this kind of method.

use std::convert::Infallible;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use cocoonbox_core::Clock;
use cocoonbox_wire::agent::v1::{Woke, event::What};
use cocoonbox_wire::call_token::{self, CallTokenError, MethodClass};
use cocoonbox_wire::identity::{self, Identity};
use rustix::fs::inotify;
use tokio::io::Interest;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::server::NamedService;

use super::Happenings;
use crate::{identity_file, sys};

/// The box's identity as it was last read.
#[derive(Debug)]
pub(super) struct Identities {
    directory: PathBuf,
    clock: Arc<dyn Clock>,
    happenings: Arc<Happenings>,
    known: Mutex<Option<Identity>>,
}

impl Identities {
    pub(super) fn new(directory: PathBuf, clock: Arc<dyn Clock>, happenings: Arc<Happenings>) -> Self {
        Self { directory, clock, happenings, known: Mutex::new(None) }
    }

    /// Reads the identity again; a file that is not believed leaves none.
    pub(super) fn refresh(&self) {
        let read = identity_file::read(&self.directory, identity::FILE)
            .inspect_err(|error| tracing::warn!(%error, "the box has no identity that is believed"))
            .ok();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(new) = &read
            && known.as_ref().is_none_or(|old| old.wake_id != new.wake_id)
        {
            self.happenings.add(What::Woke(Woke { wake_id: new.wake_id.to_string() }));
        }
        *known = read;
    }

    /// Checks a call: what token it shows for which method.
    fn check(&self, method: &str, token: Option<&[u8]>) -> Result<(), Status> {
        let denied = |reason: &dyn ToString| Status::unauthenticated(reason.to_string());
        let class = MethodClass::of(method).ok_or_else(|| Status::unimplemented("no such method"))?;
        let token = token.ok_or_else(|| denied(&"the call token is missing"))?;
        let token = std::str::from_utf8(token).map_err(|_| denied(&CallTokenError::Malformed))?;
        match self.verify(token, class) {
            // the box may have woken under another identity since the file was read
            None
            | Some(Err(
                CallTokenError::OtherWake | CallTokenError::BadSignature | CallTokenError::OtherBox,
            )) => {
                self.refresh();
            }
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => return Err(denied(&error)),
        }
        match self.verify(token, class) {
            None => Err(denied(&"the box has no identity that is believed")),
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(denied(&error)),
        }
    }

    fn verify(&self, token: &str, class: MethodClass) -> Option<Result<(), CallTokenError>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = known.as_ref()?;
        Some(call_token::verify(token, identity, class, self.clock.now()).map(drop))
    }
}

/// Reads the identity again whenever its directory changes; for ever, or not at all where that cannot be watched.
pub(super) async fn watch(identities: Arc<Identities>) {
    let Ok(changes) = changes(&identities.directory) else { return };
    let Ok(changes) = sys::watch(changes, Interest::READABLE) else { return };
    loop {
        let Ok(mut ready) = changes.readable().await else { return };
        let mut buffer = [0_u8; 4096];
        // what changed does not matter, only that something did
        let read = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut buffer)?));
        match read {
            Ok(Ok(_)) => identities.refresh(),
            Ok(Err(_)) => return,
            Err(_) => {}
        }
    }
}

fn changes(directory: &Path) -> rustix::io::Result<OwnedFd> {
    use inotify::{CreateFlags, WatchFlags};
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, directory, WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE)?;
    Ok(changes)
}

/// Lets only calls with a good token through to a service.
#[derive(Clone, Debug)]
pub(super) struct Gate<S> {
    inner: S,
    identities: Arc<Identities>,
}

impl<S> Gate<S> {
    pub(super) fn new(inner: S, identities: Arc<Identities>) -> Self {
        Self { inner, identities }
    }
}

impl<S: NamedService> NamedService for Gate<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Gate<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let token = request.headers().get(call_token::METADATA).map(HeaderValue::as_bytes);
        match self.identities.check(request.uri().path(), token) {
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(status) => Box::pin(async move { Ok(status.into_http()) }),
        }
    }
}
