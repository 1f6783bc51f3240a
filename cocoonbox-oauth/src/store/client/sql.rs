use async_trait::async_trait;
use cocoonbox_core::Timestamp;
use cocoonbox_db::{on, on_tx};

use super::{CLIENTS_MAX, ClientStore, UNUSED_FOR};
use crate::store::sql::{failed, read};
use crate::{Client, ClientId, ClientKind, RedirectUri, SqlUserStore, UserStoreError};

const DROP_UNUSED: &str = "DELETE FROM oauth_clients WHERE used_at IS NULL AND created_at <= $1";
const COUNT: &str = "SELECT COUNT(*) FROM oauth_clients";
const DROP_OLDEST: &str = "DELETE FROM oauth_clients WHERE id = \
     (SELECT id FROM oauth_clients WHERE used_at IS NULL ORDER BY created_at, id LIMIT 1)";
const REGISTER: &str =
    "INSERT INTO oauth_clients (id, name, redirect_uris, created_at) VALUES ($1, $2, $3, $4)";
const CLIENT: &str = "SELECT name, redirect_uris FROM oauth_clients WHERE id = $1";
const ALLOW: &str = "UPDATE oauth_clients SET used_at = $1 WHERE id = $2";

#[cfg(test)]
pub(in crate::store) const STATEMENTS: &[&str] = &[DROP_UNUSED, COUNT, DROP_OLDEST, REGISTER, CLIENT, ALLOW];

#[async_trait]
impl ClientStore for SqlUserStore {
    async fn register_client(&self, client: &Client, now: Timestamp) -> Result<(), UserStoreError> {
        let broken = |_| UserStoreError::Broken { reason: "redirect URIs cannot be written", source: None };
        let uris: Vec<&str> = client.redirect_uris.iter().map(RedirectUri::as_str).collect();
        let uris = serde_json::to_string(&uris).map_err(broken)?;
        let unused_since =
            now.micros().saturating_sub(i64::try_from(UNUSED_FOR.as_micros()).unwrap_or(i64::MAX));
        let mut tx = self.db.begin().await?;
        let count: i64 = on_tx!(tx, c => {
            match sqlx::query(DROP_UNUSED).bind(unused_since).execute(&mut *c).await {
                Ok(_) => sqlx::query_scalar(COUNT).fetch_one(c).await,
                Err(error) => Err(error),
            }
        })
        .map_err(failed)?;
        if count >= CLIENTS_MAX as i64 {
            let gone = on_tx!(tx, c => {
                sqlx::query(DROP_OLDEST).execute(c).await.map(|done| done.rows_affected())
            })
            .map_err(failed)?;
            if gone == 0 {
                return Err(UserStoreError::TooMany { what: "registered clients", limit: CLIENTS_MAX });
            }
        }
        on_tx!(tx, c => {
            sqlx::query(REGISTER)
                .bind(client.id.as_str())
                .bind(&client.name)
                .bind(&uris)
                .bind(now.micros())
                .execute(c)
                .await
                .map(drop)
        })
        .map_err(failed)?;
        Ok(tx.commit().await?)
    }

    async fn client(&self, id: &ClientId) -> Result<Option<Client>, UserStoreError> {
        const REASON: &str = "oauth_clients.redirect_uris are none";
        let broken = |_| UserStoreError::Broken { reason: REASON, source: None };
        let row: Option<(String, String)> =
            on!(self.db, pool => sqlx::query_as(CLIENT).bind(id.as_str()).fetch_optional(pool).await)
                .map_err(failed)?;
        let Some((name, uris)) = row else { return Ok(None) };
        let uris: Vec<String> = serde_json::from_str(&uris).map_err(broken)?;
        let redirect_uris = uris.iter().map(|uri| read(uri, REASON)).collect::<Result<_, _>>()?;
        Ok(Some(Client { id: id.clone(), name, kind: ClientKind::Registered, redirect_uris }))
    }

    async fn allow_client(&self, id: &ClientId, now: Timestamp) -> Result<(), UserStoreError> {
        on!(self.db, pool => sqlx::query(ALLOW).bind(now.micros()).bind(id.as_str()).execute(pool).await.map(drop))
            .map_err(failed)
    }
}
