//! Hashing beside the runtime's own threads: this module starts work on others.

use std::sync::{Arc, LazyLock};

use cocoonbox_core::Entropy;
use tokio::sync::Semaphore;

use super::{Password, PasswordError, PasswordHash};

/// A hash that is nobody's: an unknown user costs as long as a wrong password.
static NOBODY: LazyLock<Option<PasswordHash>> = LazyLock::new(|| {
    PasswordHash::parse(concat!(
        "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    ))
});

/// Hashes and compares passwords, a few at a time: each takes 19 MiB, and the processors have other work.
#[derive(Clone, Debug)]
pub struct PasswordDesk {
    turns: Arc<Semaphore>,
    entropy: Arc<dyn Entropy>,
}

impl PasswordDesk {
    /// Makes one that hashes two at a time.
    pub fn new(entropy: Arc<dyn Entropy>) -> Self {
        Self { turns: Arc::new(Semaphore::new(2)), entropy }
    }

    /// Hashes a new password.
    ///
    /// # Errors
    /// [`PasswordError`].
    pub async fn hash(&self, password: Password) -> Result<PasswordHash, PasswordError> {
        let entropy = Arc::clone(&self.entropy);
        self.work(move || password.hash(&*entropy)).await?
    }

    /// Returns whether the hash is the password's; without a hash it takes as long and says no.
    ///
    /// # Errors
    /// [`PasswordError::Unavailable`].
    pub async fn verify(
        &self,
        password: Password,
        hash: Option<PasswordHash>,
    ) -> Result<bool, PasswordError> {
        self.work(move || {
            let held = hash.as_ref().or(NOBODY.as_ref());
            // compared in any case, before it counts whose hash it was
            held.is_some_and(|held| password.verify(held)) && hash.is_some()
        })
        .await
    }

    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PasswordError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| PasswordError::Unavailable)?;
        tokio::task::spawn_blocking(move || {
            let done = work();
            // held until the work is done, also when whoever asked is gone
            drop(turn);
            done
        })
        .await
        .map_err(|_| PasswordError::Unavailable)
    }
}
