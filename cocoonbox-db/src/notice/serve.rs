//! The listening end, which waits and reconnects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time;

use super::{Hub, Notice, check};
use crate::error::chain;
use crate::{Db, DbError, Pools};

/// A quiet connection is asked this often whether it still lives.
const PROBE: Duration = Duration::from_mins(1);
const PROBE_LIMIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Hears the notices of one channel, for as long as it is asked.
///
/// # Behavior
/// - Hears every notice published after [`Db::listen`] returned, or [`Notice::Rescan`] in place of those it missed: a
///   connection that broke (it reconnects by itself) or more than 256 unread.
/// - PostgreSQL: notices of all processes, over a connection of its own outside the pool.
/// - SQLite: notices of this process alone. Other processes that write the same file are not heard; who needs that
///   uses PostgreSQL, or reads again on a timer.
pub struct Listener {
    channel: String,
    inner: Inner,
}

enum Inner {
    Sqlite { receiver: broadcast::Receiver<Notice>, _hub: Arc<Hub> },
    Postgres { pool: PgPool, connection: Option<Box<PgListener>> },
}

impl Db {
    /// Starts to hear a channel.
    ///
    /// # Errors
    /// [`DbError::InvalidNotice`] for the channel's name, and what the database says.
    pub async fn listen(&self, channel: &str) -> Result<Listener, DbError> {
        check(channel, "")?;
        let inner = match self.pools() {
            Pools::Sqlite(_) => {
                let hub = self.hub().cloned().unwrap_or_default();
                Inner::Sqlite { receiver: hub.subscribe(channel), _hub: hub }
            }
            Pools::Postgres(main) => {
                // outside the main pool: listening must not use up its connections
                let pool = PgPoolOptions::new()
                    .max_connections(1)
                    .acquire_timeout(PROBE_LIMIT)
                    .idle_timeout(None)
                    .max_lifetime(None)
                    .connect_lazy_with((*main.connect_options()).clone());
                let connection = Some(Box::new(connect(&pool, channel).await?));
                Inner::Postgres { pool, connection }
            }
        };
        Ok(Listener { channel: channel.to_owned(), inner })
    }
}

async fn connect(pool: &PgPool, channel: &str) -> Result<PgListener, DbError> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.ignore_pool_close_event(true);
    listener.listen(channel).await?;
    Ok(listener)
}

impl Listener {
    /// Waits for the next notice. Safe to cancel: a notice is not lost.
    ///
    /// On PostgreSQL it reconnects, with pauses up to 5 s, until it succeeds, and then answers [`Notice::Rescan`].
    pub async fn next(&mut self) -> Notice {
        match &mut self.inner {
            Inner::Sqlite { receiver, .. } => match receiver.recv().await {
                Ok(notice) => notice,
                Err(RecvError::Lagged(_)) => Notice::Rescan,
                // the hub is held beside the receiver, so its sender cannot be gone
                Err(RecvError::Closed) => std::future::pending().await,
            },
            Inner::Postgres { pool, connection } => {
                if let Some(listener) = connection {
                    if let Some(notice) = wait(listener).await {
                        return notice;
                    }
                    *connection = None;
                }
                let mut pause = FIRST_PAUSE;
                loop {
                    match connect(pool, &self.channel).await {
                        Ok(listener) => {
                            *connection = Some(Box::new(listener));
                            return Notice::Rescan;
                        }
                        Err(error) => {
                            tracing::warn!(channel = self.channel, error = chain(&error), "not listening");
                        }
                    }
                    time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }
}

/// Returns the next notice, or none when the connection is lost.
async fn wait(listener: &mut PgListener) -> Option<Notice> {
    loop {
        match time::timeout(PROBE, listener.try_recv()).await {
            Ok(Ok(Some(notification))) => {
                return Some(Notice::Changed { payload: notification.payload().to_owned() });
            }
            // the listener has reconnected by itself, or cannot: what was sent meanwhile is lost
            Ok(Ok(None)) => return None,
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&DbError::from(error)), "lost the connection for notices");
                return None;
            }
            Err(_quiet) => {
                // a peer that vanished without a word would otherwise never be missed
                let probe = sqlx::query("SELECT 1").execute(&mut *listener);
                if !matches!(time::timeout(PROBE_LIMIT, probe).await, Ok(Ok(_))) {
                    return None;
                }
            }
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("channel", &self.channel).finish_non_exhaustive()
    }
}
