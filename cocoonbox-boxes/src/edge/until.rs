//! A response body that can be ended from elsewhere.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Code, Status};

/// How a call ends that is ended from elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    code: Code,
    message: &'static str,
}

/// The token of the call was revoked or replaced.
pub(super) const TOKEN_ENDED: Ending =
    Ending { code: Code::Unauthenticated, message: "the token of this call has ended" };

/// The box sleeps or is gone: another try would wake it, so this is no loss of a connection.
pub(super) const BOX_SLEEPS: Ending =
    Ending { code: Code::FailedPrecondition, message: "the box was put to sleep or deleted" };

impl From<Ending> for Status {
    fn from(ending: Ending) -> Self {
        Self::new(ending.code, ending.message)
    }
}

/// Passes `inner` on until `ended` fires, then closes the gRPC call with `ending`, and what is no gRPC by its end alone.
pub(crate) struct Until<B> {
    inner: Option<Pin<Box<B>>>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    ending: Option<Ending>,
}

impl<B> Until<B> {
    pub(super) fn new(inner: B, ended: CancellationToken, ending: Ending) -> Self {
        Self { ending: Some(ending), ..Self::silent(inner, ended) }
    }

    pub(crate) fn silent(inner: B, ended: CancellationToken) -> Self {
        Self { inner: Some(Box::pin(inner)), ended: Box::pin(ended.cancelled_owned()), ending: None }
    }
}

impl<B: Body<Data = Bytes>> Body for Until<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        if this.ended.as_mut().poll(cx).is_ready() {
            // dropping the inner body resets whatever feeds it
            this.inner = None;
            let Some(ending) = this.ending else { return Poll::Ready(None) };
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from(i32::from(ending.code)));
            trailers.insert("grpc-message", HeaderValue::from_static(ending.message));
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        inner.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        // an ended call is shorter than its body promised
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn an_ended_token_closes_the_call_with_unauthenticated() {
        let endless = futures::stream::unfold((), |()| async {
            tokio::task::yield_now().await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))), ()))
        });
        let ended = CancellationToken::new();
        let mut body = Until::new(StreamBody::new(Box::pin(endless)), ended.clone(), TOKEN_ENDED);
        assert!(body.frame().await.is_some_and(|frame| frame.is_ok_and(|frame| frame.is_data())));
        ended.cancel();
        let trailers = body.frame().await.and_then(Result::ok).and_then(|frame| frame.into_trailers().ok());
        assert_eq!(
            trailers.and_then(|map| map.get("grpc-status").cloned()),
            Some(HeaderValue::from_static("16"))
        );
        assert!(body.frame().await.is_none());
    }
}
