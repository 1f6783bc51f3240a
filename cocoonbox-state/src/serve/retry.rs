use std::time::Duration;

use cocoonbox_core::{Entropy, Retry};

use crate::object::ObjectError;

const ATTEMPTS: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Calls until it succeeds, fails for good, or failed five times; waits longer each time, by chance up to twice as long.
pub(crate) async fn retried<T, F: Future<Output = Result<T, ObjectError>>>(
    entropy: &dyn Entropy,
    mut call: impl FnMut(u32) -> F,
) -> Result<T, ObjectError> {
    let mut attempt = 0;
    loop {
        match call(attempt).await {
            Err(error) if error.retry() != Retry::Never && attempt + 1 < ATTEMPTS => {
                let mut byte = [0];
                let _ = entropy.fill(&mut byte);
                let wait = FIRST_WAIT * 2_u32.pow(attempt);
                tokio::time::sleep(wait + wait * u32::from(byte[0]) / 256).await;
                attempt += 1;
            }
            done => return done,
        }
    }
}

/// Lets time go by, for a store that is told to be slow.
#[cfg(any(test, feature = "testkit"))]
pub(crate) async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}
