//! The token endpoint and revocation: RFC 6749, 7636, 7009, 8707.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use cocoonbox_core::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Authority;
use super::session::From as Peer;
use crate::visit::Visit;
use crate::{
    AccessRecord, AccessToken, AgentToken, AuthorizationCode, ClientId, CodeRecord, Credential, Door,
    GrantRecord, Label, Presented, Promise, RefreshToken, SCOPE_ACCOUNT, SCOPE_BOXES, Spent, TokenClass,
    TokenRecord, UserKey, UserStoreError, Worth,
};
use cocoonbox_core::{TokenId, UserId};

/// How often a refresh is looked at anew when others move the grant meanwhile.
const TURNS: usize = 4;

/// A fault in the words of RFC 6749, section 5.2.
#[derive(Debug)]
pub(super) struct Fault {
    status: StatusCode,
    error: &'static str,
    description: String,
}

impl Fault {
    fn new(error: &'static str, description: impl Into<String>) -> Self {
        let status =
            if error == "invalid_client" { StatusCode::UNAUTHORIZED } else { StatusCode::BAD_REQUEST };
        Self { status, error, description: description.into() }
    }
    fn request(description: impl Into<String>) -> Self {
        Self::new("invalid_request", description)
    }
    /// One text for all that is wrong with a code or token: which it was helps only whoever tries.
    fn grant() -> Self {
        Self::new("invalid_grant", "it is not valid any more, or never was: authorize again")
    }
}

impl From<UserStoreError> for Fault {
    fn from(error: UserStoreError) -> Self {
        if let UserStoreError::TooMany { .. } = error {
            return Self::new("invalid_grant", error.to_string());
        }
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        tracing::error!(%error, cause, "a token request failed");
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self { status, error: "temporarily_unavailable", description: "try again later".to_owned() }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.error, "error_description": self.description });
        let mut answer = (self.status, axum::Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
        }
        answer
    }
}

/// A form, each member at most once.
pub(super) struct Form(HashMap<String, String>);

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = Fault;

    async fn from_request(request: Request, state: &S) -> Result<Self, Fault> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            return Err(Fault::request("send application/x-www-form-urlencoded"));
        }
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|_| Fault::request("the body cannot be read, or is too large"))?;
        read_form(&bytes).map(Self)
    }
}

/// Reads a form of the token endpoint.
fn read_form(bytes: &[u8]) -> Result<HashMap<String, String>, Fault> {
    let mut members = HashMap::new();
    for (name, value) in form_urlencoded::parse(bytes) {
        // a member without a value is as one left out (RFC 6749, section 3.2)
        if !value.is_empty() && members.insert(name.into_owned(), value.into_owned()).is_some() {
            return Err(Fault::request("a member is there twice"));
        }
    }
    Ok(members)
}

impl Form {
    fn optional(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
    fn required(&self, name: &str) -> Result<&str, Fault> {
        self.optional(name).ok_or_else(|| Fault::request(format!("{name} is missing")))
    }

    /// Returns which client calls: `client_id` in the form, or the user name of Basic credentials without a password.
    fn client(&self, headers: &HeaderMap) -> Result<ClientId, Fault> {
        let refuse = || Fault::new("invalid_client", "name the client once, by client_id; it has no secret");
        let basic = match headers.get(header::AUTHORIZATION) {
            None => None,
            Some(value) => {
                let text = value.to_str().ok().and_then(|value| value.split_once(' ')).ok_or_else(refuse)?;
                let words = text.0.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(text.1.trim()).ok());
                let words =
                    words.flatten().and_then(|words| String::from_utf8(words).ok()).ok_or_else(refuse)?;
                let (name, secret) = words.split_once(':').ok_or_else(refuse)?;
                if !secret.is_empty() {
                    return Err(refuse());
                }
                // both parts are form-encoded there (RFC 6749, section 2.3.1)
                let name = format!("x={name}");
                let name = form_urlencoded::parse(name.as_bytes()).next();
                name.map(|(_, name)| name.into_owned())
            }
        };
        let id = match (basic, self.optional("client_id")) {
            (Some(basic), Some(form)) if basic != form => return Err(refuse()),
            (Some(basic), _) => basic,
            (None, Some(form)) => form.to_owned(),
            (None, None) => return Err(Fault::request("client_id is missing")),
        };
        if self.optional("client_secret").is_some() {
            return Err(refuse());
        }
        id.parse().map_err(|_| refuse())
    }
}

/// Exchanges a code or a refresh token.
pub(super) async fn exchange(
    State(authority): State<Arc<Authority>>,
    from: Peer,
    headers: HeaderMap,
    form: Form,
) -> Result<axum::Json<Value>, Fault> {
    let client = form.client(&headers)?;
    if form.optional("resource").is_some_and(|resource| !authority.options.issuer.covers(resource)) {
        return Err(Fault::new("invalid_target", "the resource is not this server's"));
    }
    match form.required("grant_type")? {
        "authorization_code" => authority.redeem(&client, &form, from).await,
        "refresh_token" => authority.refresh(&client, &form).await,
        _ => Err(Fault::new("unsupported_grant_type", "use authorization_code or refresh_token")),
    }
    .map(axum::Json)
}

impl Authority {
    async fn redeem(&self, client: &ClientId, form: &Form, from: Peer) -> Result<Value, Fault> {
        let code = AuthorizationCode::new(form.required("code")?.to_owned());
        let (redirect_uri, verifier) = (form.required("redirect_uri")?, form.required("code_verifier")?);
        let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if !(43..=128).contains(&verifier.len()) || !verifier.bytes().all(unreserved) {
            return Err(Fault::request("code_verifier is 43 to 128 unreserved letters"));
        }
        let code = AuthorizationCode::parse(code.reveal()).map_err(|_| Fault::grant())?;
        let now = self.options.clock.now();
        let record = match self.store().spend_code(&code.hash(), now).await? {
            Spent::First(record) => record,
            Spent::Again(record) => {
                self.undo(&record, now).await?;
                return Err(Fault::grant());
            }
            Spent::Unknown => return Err(Fault::grant()),
        };
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        if record.client != *client || record.redirect_uri != redirect_uri || record.challenge != challenge {
            tracing::warn!(user = %record.user, client = %record.client, "a code was shown by somebody else");
            return Err(Fault::grant());
        }
        let (door, what, told) = match record.promise {
            Promise::Device { token, label } => {
                let what = label.as_str().to_owned();
                (Door::Device, what, self.begin_device(&record.user, client, token, label, now).await)
            }
            Promise::Grant(grant) => (Door::Agent, grant.client_name.clone(), self.begin(&grant, now).await),
        };
        let visit = Visit { user: Some(&record.user), door, let_in: told.is_ok(), from: from.0, what: &what };
        visit.remember(self.store(), &*self.options.entropy, now).await;
        told
    }

    /// Ends what the first use of a code made: two have it.
    async fn undo(&self, record: &CodeRecord, now: Timestamp) -> Result<(), Fault> {
        tracing::warn!(user = %record.user, client = %record.client, "a code was shown twice: what it made ends");
        match &record.promise {
            Promise::Device { token, .. } => match self.store().revoke_token(&record.user, token).await {
                Ok(()) => self.options.tokens.reload(&*self.options.store).await?,
                Err(UserStoreError::NoToken { .. }) => {}
                Err(error) => return Err(error.into()),
            },
            Promise::Grant(grant) => {
                self.store().end_grant(&grant.id, None, now).await?;
                self.options.agents.end(&grant.id, now);
            }
        }
        Ok(())
    }

    async fn begin_device(
        &self,
        user: &UserId,
        client: &ClientId,
        id: TokenId,
        label: Label,
        now: Timestamp,
    ) -> Result<Value, Fault> {
        if self.store().user(UserKey::Id(user)).await?.is_none_or(|user| user.disabled) {
            return Err(Fault::grant());
        }
        let unavailable = |_| UserStoreError::Unavailable { source: "no random bytes".into() };
        let token = AccessToken::random(&*self.options.entropy).map_err(unavailable)?;
        let record = TokenRecord {
            id,
            user: user.clone(),
            class: TokenClass::Device,
            label,
            client: Some(client.clone()),
            hash: token.hash(),
            created_at: now,
            used_at: None,
        };
        match self.store().issue(&Credential::Token(record)).await {
            Err(UserStoreError::NoUser { .. }) => return Err(Fault::grant()),
            done => done?,
        }
        // so that the token works at once; when it cannot be read now, the next notice or round does it
        if let Err(error) = self.options.tokens.reload(&*self.options.store).await {
            tracing::warn!(%error, "a new token is not in the index yet");
        }
        Ok(json!({ "access_token": token.reveal(), "token_type": "Bearer", "scope": SCOPE_ACCOUNT }))
    }

    async fn begin(&self, grant: &GrantRecord, now: Timestamp) -> Result<Value, Fault> {
        let access = self.access(grant, grant.generation, now);
        match self.store().begin_grant(grant, &access, now).await {
            Err(UserStoreError::NoUser { .. }) => return Err(Fault::grant()),
            done => done?,
        }
        Ok(self.told(grant, &access, now).await)
    }

    fn access(&self, grant: &GrantRecord, generation: i64, now: Timestamp) -> AccessRecord {
        AccessRecord {
            grant: grant.id.clone(),
            generation,
            hash: self.options.key.access(&grant.id, generation).hash(),
            expires_at: grant.access_until(now),
        }
    }

    /// Returns a generation's tokens, which the store has.
    async fn told(&self, grant: &GrantRecord, access: &AccessRecord, now: Timestamp) -> Value {
        let (agents, generation) = (&self.options.agents, access.generation);
        if !agents.advance(access)
            && let Err(error) = agents.reload_one(&*self.options.store, &grant.id, now).await
        {
            tracing::warn!(%error, "a new token is not in the index yet");
        }
        let key = &self.options.key;
        json!({
            "access_token": key.access(&grant.id, generation).reveal(),
            "token_type": "Bearer",
            "expires_in": grant.access_until(now).since(now).as_secs(),
            "refresh_token": key.refresh(&grant.id, generation).reveal(),
            "scope": SCOPE_BOXES,
        })
    }

    /// Returns a grant and whether it stands for this client. What is in memory is asked first, and the store whenever that
    /// says anything but yes: it alone knows what other processes did.
    async fn standing(
        &self,
        shown: &Presented,
        client: &ClientId,
        now: Timestamp,
        in_memory: bool,
    ) -> Result<(UserId, GrantRecord), Fault> {
        if in_memory
            && let Some(agent) = self.options.agents.standing(&shown.grant)
            && agent.grant().client == *client
            && agent.grant().lives(now)
            && shown.worth(agent.grant().generation) == Worth::Newest
        {
            return Ok((agent.user().id.clone(), agent.grant().clone()));
        }
        let (user, grant) = self.store().grant(&shown.grant).await?.ok_or_else(Fault::grant)?;
        if grant.client != *client || !grant.lives(now) || user.disabled {
            return Err(Fault::grant());
        }
        Ok((user.id, grant))
    }

    async fn refresh(&self, client: &ClientId, form: &Form) -> Result<Value, Fault> {
        let token = RefreshToken::new(form.required("refresh_token")?.to_owned());
        if form.optional("scope").is_some_and(|scope| scope.split(' ').any(|one| one != SCOPE_BOXES)) {
            return Err(Fault::new("invalid_scope", "the grant is for boxes alone"));
        }
        // a forged one costs no look into the store
        let shown = self.options.key.open(&token).ok_or_else(Fault::grant)?;
        for turn in 0..TURNS {
            let now = self.options.clock.now();
            let (user, grant) = self.standing(&shown, client, now, turn == 0).await?;
            let generation = match shown.worth(grant.generation) {
                Worth::Newest => grant.generation + 1,
                Worth::Again => grant.generation,
                Worth::Replay => {
                    tracing::warn!(%user, grant = %grant.id, "an old refresh token was shown: the grant ends");
                    self.store().end_grant(&grant.id, None, now).await?;
                    self.options.agents.end(&grant.id, now);
                    return Err(Fault::grant());
                }
                Worth::Unknown => return Err(Fault::grant()),
            };
            let access = self.access(&grant, generation, now);
            let own = self.options.agents.own_move(&access);
            if self.store().put_access(&access, now).await? {
                let told = self.told(&grant, &access, now).await;
                own.taken_in();
                return Ok(told);
            }
            // somebody moved the grant between the look and the write
        }
        Err(UserStoreError::Unavailable { source: "the grant moves too fast".into() }.into())
    }
}

/// Ends what a token belongs to: a device, or an agent's grant. What is unknown has ended already, and a personal token
/// is left alone.
pub(super) async fn revoke(State(authority): State<Arc<Authority>>, form: Form) -> Result<StatusCode, Fault> {
    let text = form.required("token")?;
    let options = &authority.options;
    let now = options.clock.now();
    if let Ok(token) = AccessToken::parse(text) {
        if let Ok(caller) = options.tokens.check(&token, now)
            && caller.class() == TokenClass::Device
        {
            match authority.store().revoke_token(caller.user(), caller.token()).await {
                Ok(()) | Err(UserStoreError::NoToken { .. }) => {
                    options.tokens.reload(&*options.store).await?;
                }
                Err(error) => return Err(error.into()),
            }
            tracing::info!(user = %caller.user(), token = %caller.token(), "a device signed itself out");
        }
        return Ok(StatusCode::OK);
    }
    let grant = match AgentToken::parse(text) {
        Ok(token) => options.agents.check(&token, now).ok().map(|agent| agent.grant().id.clone()),
        Err(_) => options.key.open(&RefreshToken::new(text.to_owned())).map(|shown| shown.grant),
    };
    if let Some(grant) = grant {
        authority.store().end_grant(&grant, None, now).await?;
        options.agents.end(&grant, now);
        tracing::info!(%grant, "an agent signed itself out");
    }
    Ok(StatusCode::OK)
}

/// Reads a form as the token endpoint does, for who tries any bytes on it.
#[cfg(fuzzing)]
pub fn fuzz_form(bytes: &[u8]) {
    let _ = read_form(bytes).map(|members| Form(members).client(&HeaderMap::new()).is_ok());
}
