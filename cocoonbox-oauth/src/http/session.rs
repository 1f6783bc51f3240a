//! The console's session: how one begins, how it is shown, how it ends.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cocoonbox_core::{ConsoleSessionId, UserId, UserName};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::answer::{Json, Refusal};
use super::me;
use super::{Authority, ConsoleCaller};
use crate::limit::network;
use crate::visit::{Visit, origin};
use crate::{
    Door, LinkToken, Password, SESSION_LIFE, SessionRecord, SessionToken, TokenHash, User, UserKey,
    UserStoreError,
};

const COOKIE: &str = "cb_session";

/// Who is signed in; only [`require`] puts it into a request.
#[derive(Clone, Debug)]
pub(super) struct SignedIn {
    pub(super) user: User,
    pub(super) session: ConsoleSessionId,
}

impl SignedIn {
    /// Refuses whoever is no administrator.
    pub(super) fn must_administer(&self) -> Result<(), Refusal> {
        if self.user.admin {
            Ok(())
        } else {
            Err(Refusal::new(StatusCode::FORBIDDEN, "not_admin", "only an administrator may do this"))
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for SignedIn {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        parts.extensions.get::<Self>().cloned().ok_or_else(Refusal::signed_out)
    }
}

/// Where a request comes from, as far as it is known.
#[derive(Clone, Copy)]
pub(super) struct From(pub(super) Option<IpAddr>);

impl From {
    /// Returns what attempts are counted by.
    pub(super) fn network(self) -> Option<IpAddr> {
        self.0.map(network)
    }
}

impl FromRequestParts<Arc<Authority>> for From {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        authority: &Arc<Authority>,
    ) -> Result<Self, Self::Rejection> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let peer = peer.map(|ConnectInfo(address)| address.ip());
        let forwarded: Vec<&str> =
            parts.headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()).collect();
        Ok(Self(origin(peer, forwarded.into_iter(), &authority.options.trusted_proxies)))
    }
}

/// Reads the session's cookie; of two none counts, as one of them may have been planted.
fn shown(headers: &HeaderMap) -> Option<TokenHash> {
    let pairs = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut values = pairs
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter_map(|(name, value)| (name == COOKIE).then_some(value));
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    SessionToken::parse(value).ok().map(|token| token.hash())
}

/// Refuses what another site's page sends, and names of this server that are not its own (a rebound DNS name).
pub(super) async fn same_origin(
    State(authority): State<Arc<Authority>>,
    request: Request,
    next: Next,
) -> Response {
    let refuse = || {
        Refusal::new(StatusCode::FORBIDDEN, "cross_site", "this call must come from this server's own pages")
            .into_response()
    };
    let headers = request.headers();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let options = &authority.options;
    let own =
        |origin: &str| origin == options.issuer.as_str() || options.origins.iter().any(|own| own == origin);
    let host = request.uri().authority().map(ToString::to_string).or_else(|| text("host").map(str::to_owned));
    let named = host.is_some_and(|host| own(&format!("http://{host}")) || own(&format!("https://{host}")));
    let safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let same = match (text("origin"), text("sec-fetch-site")) {
        // a browser tells where a request comes from
        (Some(origin), _) => own(origin),
        (None, Some(site)) => site == "same-origin" || safe && site == "none",
        // something that is no browser, which no other site can make call
        (None, None) => true,
    };
    if named && same { next.run(request).await } else { refuse() }
}

/// Lets requests with a good session through.
pub(super) async fn require(
    State(authority): State<Arc<Authority>>,
    mut request: Request,
    next: Next,
) -> Response {
    let found = match shown(request.headers()) {
        Some(hash) => authority.store().session(&hash, authority.options.clock.now()).await,
        None => Ok(None),
    };
    match found {
        Ok(Some((user, session))) => {
            let ended = authority.sessions.of(&session.id, &user.id);
            request.extensions_mut().insert(ConsoleCaller { user: user.clone(), ended });
            request.extensions_mut().insert(SignedIn { user, session: session.id });
            next.run(request).await
        }
        Ok(None) => Refusal::signed_out().into_response(),
        Err(error) => Refusal::from(error).into_response(),
    }
}

/// Sessions that are remembered so; with one more all begin anew.
const OPEN_MAX: usize = 4096;

/// What is open on the sessions of this process, to be ended with them.
#[derive(Debug, Default)]
pub(super) struct Open(Mutex<HashMap<ConsoleSessionId, (UserId, CancellationToken)>>);

impl Open {
    fn of(&self, session: &ConsoleSessionId, user: &UserId) -> CancellationToken {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OPEN_MAX && !open.contains_key(session) {
            // what is open connects again
            open.drain().for_each(|(_, (_, ended))| ended.cancel());
        }
        open.entry(session.clone()).or_insert_with(|| (user.clone(), CancellationToken::new())).1.clone()
    }

    /// Ends what is open on one session.
    fn end(&self, session: &ConsoleSessionId) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ended)) = open.remove(session) {
            ended.cancel();
        }
    }

    /// Ends what is open on a user's sessions but `keep`.
    pub(super) fn end_all(&self, user: &UserId, keep: Option<&ConsoleSessionId>) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|session, (whose, ended)| {
            let stays = whose != user || Some(session) == keep;
            if !stays {
                ended.cancel();
            }
            stays
        });
    }
}

fn cookie(authority: &Authority, value: &str, seconds: u64) -> Option<HeaderValue> {
    let secure = if authority.options.issuer.is_https() { "; Secure" } else { "" };
    let text = format!("{COOKIE}={value}; Path=/cb/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Takes the cookie away.
pub(super) fn cleared(authority: &Authority) -> Response {
    let mut answer = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = cookie(authority, "", 0) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}

fn draw(authority: &Authority, user: &User) -> Result<(SessionToken, SessionRecord), Refusal> {
    let entropy = &*authority.options.entropy;
    let (token, now) = (SessionToken::random(entropy)?, authority.options.clock.now());
    let record = SessionRecord {
        id: ConsoleSessionId::random(entropy)?,
        user: user.id.clone(),
        hash: token.hash(),
        created_at: now,
        expires_at: now.plus(SESSION_LIFE),
    };
    Ok((token, record))
}

async fn begun(
    authority: &Authority,
    token: &SessionToken,
    user: User,
    session: ConsoleSessionId,
) -> Result<Response, Refusal> {
    let me = me::describe(authority, &SignedIn { user, session }).await?;
    let mut answer = axum::Json(me).into_response();
    if let Some(cookie) = cookie(authority, token.reveal(), SESSION_LIFE.as_secs()) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(answer)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    name: String,
    password: String,
}

/// Signs a person in by name and password.
pub(super) async fn login(
    State(authority): State<Arc<Authority>>,
    from: From,
    Json(Login { name, password }): Json<Login>,
) -> Result<Response, Refusal> {
    let password = Password::new(password);
    let wrong =
        || Refusal::new(StatusCode::UNAUTHORIZED, "wrong_password", "the name or the password is wrong");
    let now = authority.options.clock.now();
    let by_address = authority.addresses.take(from.network(), now).map_err(Refusal::too_many)?;
    // a name that cannot be one shares a count: a stranger must not fill the table
    let name: Option<UserName> = name.trim().parse().ok();
    let by_name =
        authority.names.take(name.as_ref().map(ToString::to_string), now).map_err(Refusal::too_many)?;
    let store = authority.store();
    let user = match &name {
        Some(name) => store.user(UserKey::Name(name)).await?.filter(|user| !user.disabled),
        None => None,
    };
    let hash = match &user {
        Some(user) => store.password(&user.id).await?,
        None => None,
    };
    // as long for nobody as for somebody
    let good = authority.desk.verify(password, hash).await?;
    let visit = Visit {
        user: user.as_ref().map(|user| &user.id),
        door: Door::Password,
        let_in: good && user.is_some(),
        from: from.0,
        what: "",
    };
    visit.remember(store, &*authority.options.entropy, now).await;
    let (Some(user), true) = (user, good) else {
        return Err(wrong());
    };
    by_address.give_back();
    by_name.give_back();
    let (token, session) = draw(&authority, &user)?;
    store.begin_session(&session).await?;
    begun(&authority, &token, user, session.id).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginByLink {
    link: String,
    password: String,
}

/// Signs a person in by a one-time link, and sets the password.
pub(super) async fn login_by_link(
    State(authority): State<Arc<Authority>>,
    from: From,
    Json(LoginByLink { link, password }): Json<LoginByLink>,
) -> Result<Response, Refusal> {
    let (link, password) = (LinkToken::new(link), Password::chosen(password)?);
    let now = authority.options.clock.now();
    let attempt = authority.addresses.take(from.network(), now).map_err(Refusal::too_many)?;
    let link = LinkToken::parse(link.reveal()).map_err(|_| UserStoreError::LinkRefused)?;
    let hash = authority.desk.hash(password).await?;
    let entropy = &*authority.options.entropy;
    let token = SessionToken::random(entropy)?;
    // the link says whose it is
    let nobody = UserId::random(entropy)?;
    let session = SessionRecord {
        id: ConsoleSessionId::random(entropy)?,
        user: nobody,
        hash: token.hash(),
        created_at: now,
        expires_at: now.plus(SESSION_LIFE),
    };
    let visit = |user, let_in| Visit { user, door: Door::Link, let_in, from: from.0, what: "" };
    let user = match authority.store().redeem_link_with_password(&link.hash(), &hash, &session).await {
        Err(UserStoreError::LinkRefused) => {
            visit(None, false).remember(authority.store(), entropy, now).await;
            return Err(UserStoreError::LinkRefused.into());
        }
        done => {
            attempt.give_back();
            done?
        }
    };
    visit(Some(&user.id), true).remember(authority.store(), entropy, now).await;
    begun(&authority, &token, user, session.id).await
}

/// Ends the session that is shown, if any.
pub(super) async fn logout(
    State(authority): State<Arc<Authority>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if let Some(hash) = shown(&headers) {
        let (store, now) = (authority.store(), authority.options.clock.now());
        if let Some((_, session)) = store.session(&hash, now).await? {
            authority.sessions.end(&session.id);
        }
        store.end_session(&hash).await?;
    }
    Ok(cleared(&authority))
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::SystemEntropy;

    use super::*;

    #[test]
    fn what_is_remembered_of_sessions_is_bounded_and_nothing_stays_open_unwatched() {
        let (open, user) = (Open::default(), UserId::random(&SystemEntropy).expect("entropy"));
        let session = || ConsoleSessionId::random(&SystemEntropy).expect("entropy");
        let first = session();
        let ended = open.of(&first, &user);
        for _ in 1..OPEN_MAX {
            open.of(&session(), &user);
        }
        assert!(!open.of(&first, &user).is_cancelled(), "it is among those that there may be");
        open.of(&session(), &user);
        assert!(ended.is_cancelled());
        assert!(!open.of(&first, &user).is_cancelled(), "it begins anew");
    }
}
