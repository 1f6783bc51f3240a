//! The part that spawns, waits and looks at the time.

use std::time::Duration;

use cocoonbox_core::backend::BackendError;
use tokio::time::{Instant, sleep};

use super::call::{BACKEND, CallError};

/// How long a node has to say that it is there.
pub(super) const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// How long a node may keep silent before it counts as away.
pub(super) const GRACE: Duration = Duration::from_secs(4);
/// The pause before a node is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// The least time that a node is given.
const LEAST: Duration = Duration::from_millis(500);

/// Runs a call to its end, whether or not its caller waits for it.
pub(super) async fn to_the_end<T: Send + 'static>(
    call: impl Future<Output = Result<T, CallError>> + Send + 'static,
) -> Result<T, CallError> {
    match tokio::spawn(call).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // the runtime is ending
        Err(error) => Err(CallError::Lost(error.into())),
    }
}

/// Waits for a future at most `limit`; none when it took longer.
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Runs a call of several nodes to its end, whether or not its caller waits for it.
pub(super) async fn run_on<T: Send + 'static>(
    call: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Result<T, BackendError> {
    match tokio::spawn(call).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => {
            let reason = "the server is ending".to_owned();
            Err(BackendError::Unavailable { backend: BACKEND, reason, source: Some(error.into()) })
        }
    }
}

/// Asks again while a node does not take connections, as one does that is being started anew.
pub(super) async fn patiently<T, F>(ask: impl Fn(Duration) -> F) -> Result<T, CallError>
where
    F: Future<Output = Result<T, CallError>>,
{
    let end = Instant::now() + GRACE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match ask(left.max(LEAST)).await {
            Err(CallError::Apart(_) | CallError::Lost(_)) if Instant::now() + PAUSE < end => {
                sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}
