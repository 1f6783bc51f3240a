//! Who calls: the port that the edge asks, and the layer that asks it.

use std::fmt;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http_body_util::BodyExt as _;
use std::sync::Arc;
use tonic::Status;

use super::share::{MAX_USER_CONNECTIONS, Seat};
use super::until::{TOKEN_ENDED, Until};
use crate::Caller;

/// Tells who shows a bearer token.
///
/// # Behavior
/// - One look-up in memory: it neither waits nor fails.
/// - An unknown, malformed or ended token is `None`; nothing tells the three apart.
/// - The caller's `ended` fires when the token is revoked or replaced later.
pub trait Authenticate: fmt::Debug + Send + Sync + 'static {
    /// Returns the caller that `bearer` belongs to.
    fn authenticate(&self, bearer: &str) -> Option<Caller>;
}

/// Returns the bearer token that a request shows.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(AUTHORIZATION)?.to_str().ok()?;
    shown.strip_prefix("Bearer ").or_else(|| shown.strip_prefix("bearer "))
}

/// Refuses a request without a good token; lets the others through with their [`Caller`] among the extensions, and
/// ends their answer when the token ends.
pub(super) async fn require_caller(
    State(authenticate): State<Arc<dyn Authenticate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = bearer(request.headers())
        .and_then(|bearer| authenticate.authenticate(bearer))
        // what an agent may reach has doors of its own: here its token is one that nobody knows
        .filter(|caller| caller.agent.is_none());
    let Some(caller) = caller else {
        return Status::unauthenticated("this call needs a valid token: sign in with `cocoonbox login`")
            .into_http();
    };
    if let Some(seat) = request.extensions_mut().remove::<Arc<Seat>>()
        && !seat.admit(&caller.user)
    {
        let message = format!(
            "your calls come over {MAX_USER_CONNECTIONS} connections already: end some, or let calls share one"
        );
        return Status::resource_exhausted(message).into_http();
    }
    let ended = caller.ended.clone();
    request.extensions_mut().insert(caller);
    let answer = tokio::select! {
        biased;
        // a call that was not answered yet would go on taking its caller's words in
        () = ended.cancelled() => return Status::from(TOKEN_ENDED).into_http(),
        answer = next.run(request) => answer,
    };
    answer.map(|body| axum::body::Body::new(Until::new(body, ended, TOKEN_ENDED).boxed_unsync()))
}
