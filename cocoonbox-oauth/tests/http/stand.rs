//! A server in memory, and a browser and programs that call it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cocoonbox_core::{Entropy, ManualClock, SystemEntropy};
use cocoonbox_oauth::http::{AuthorityOptions, router};
use cocoonbox_oauth::testkit::AT;
use cocoonbox_oauth::{
    AgentIndex, AgentToken, FirstStart, MemoryUserStore, OauthKey, RefreshToken, TokenIndex, UserKey,
    ensure_admin, sign_in_link,
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tower::ServiceExt as _;

pub(crate) const ISSUER: &str = "http://127.0.0.1:7420";
pub(crate) const CALLBACK: &str = "http://127.0.0.1:4242/cb";
pub(crate) const PASSWORD: &str = "correct horse battery";

pub(crate) struct Stand {
    pub(crate) store: Arc<MemoryUserStore>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) tokens: Arc<TokenIndex>,
    pub(crate) agents: Arc<AgentIndex>,
    pub(crate) first: FirstStart,
    router: Router,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.body
    }
    /// Returns status and code of a refusal, of the console's or of OAuth's form.
    pub(crate) fn refused(&self) -> (u16, &str) {
        let error = &self.body["error"];
        (self.status, error["code"].as_str().or(error.as_str()).unwrap_or_default())
    }
}

/// Somebody at a browser.
#[derive(Clone)]
pub(crate) struct Browser {
    pub(crate) cookie: String,
    pub(crate) origin: String,
}

impl Stand {
    pub(crate) async fn new() -> Self {
        let (store, clock) = (Arc::new(MemoryUserStore::default()), Arc::new(ManualClock::new(AT)));
        let first = ensure_admin(&*store, AT, &SystemEntropy).await.expect("a start").expect("the first");
        let tokens = Arc::new(TokenIndex::load(&*store).await.expect("tokens"));
        let agents = Arc::new(AgentIndex::load(&*store, AT).await.expect("grants"));
        let key = Arc::new(OauthKey::new("a key of tests".to_owned()));
        let options = AuthorityOptions::new(
            ISSUER.parse().expect("an issuer"),
            store.clone(),
            tokens.clone(),
            agents.clone(),
            key,
            clock.clone(),
            Arc::new(SystemEntropy),
        )
        .with_origins(["http://localhost:7420".to_owned()])
        .with_version("7.7");
        Self { store, clock, tokens, agents, first, router: router(options, Router::new()) }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let mut request = request;
        let peer: SocketAddr = "192.0.2.1:5".parse().expect("an address");
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = self.router.clone().oneshot(request).await.expect("it always answers");
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Calls the console's JSON as a page of this server does.
    pub(crate) async fn page(&self, browser: &Browser, method: &str, path: &str, body: Value) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/cb/api/{path}"))
            .header(header::HOST, "127.0.0.1:7420")
            .header(header::COOKIE, &browser.cookie);
        if method != "GET" {
            request = request.header(header::ORIGIN, &browser.origin).header("sec-fetch-site", "same-origin");
        }
        let body = if body.is_null() {
            Body::empty()
        } else {
            request = request.header(header::CONTENT_TYPE, "application/json");
            Body::from(body.to_string())
        };
        self.send(request.body(body).expect("a request")).await
    }

    /// Calls a door of the authorization server as a program does.
    pub(crate) async fn form(&self, door: &str, members: &[(&str, &str)]) -> Answer {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(members).finish();
        let request = Request::post(format!("/cocoonbox.oauth/{door}"))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(body));
        self.send(request.expect("a request")).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a request")).await
    }

    pub(crate) async fn register(&self, metadata: Value) -> Answer {
        let request = Request::post("/cocoonbox.oauth/register")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(metadata.to_string()));
        self.send(request.expect("a request")).await
    }

    pub(crate) async fn client(&self) -> String {
        let metadata = json!({ "client_name": "An agent", "redirect_uris": ["http://127.0.0.1/cb"] });
        let client = self.register(metadata).await.ok();
        client["client_id"].as_str().expect("an id").to_owned()
    }

    pub(crate) async fn sign_in(&self, name: &str, password: &str) -> Answer {
        self.page(&nobody(), "POST", "login", json!({ "name": name, "password": password })).await
    }

    /// Signs the administrator in, for the first time by the link.
    pub(crate) async fn admin(&self) -> Browser {
        let user = self.store.as_ref() as &dyn cocoonbox_oauth::UserStore;
        let user = user.user(UserKey::Id(&self.first.user.id)).await.expect("asked").expect("there");
        let link = sign_in_link(&*self.store, &user.id, AT, &SystemEntropy).await.expect("a link");
        let body = json!({ "link": link.reveal(), "password": PASSWORD });
        browser(&self.page(&nobody(), "POST", "login/link", body).await)
    }

    /// Makes a user and signs it in.
    pub(crate) async fn user(&self, admin: &Browser, name: &str) -> (Browser, String) {
        let body = json!({ "name": name, "password": PASSWORD });
        let made = self.page(admin, "POST", "users", body).await.ok();
        let id = made["id"].as_str().expect("an id").to_owned();
        (browser(&self.sign_in(name, PASSWORD).await), id)
    }

    /// Has a person allow `client`, and returns the code that its browser brings back.
    pub(crate) async fn allow(&self, browser: &Browser, client: &str, verifier: &str) -> String {
        let body = json!({ "query": query(client, verifier, "") });
        let redirect = self.page(browser, "POST", "oauth/approve", body).await.ok();
        let redirect = redirect["redirect"].as_str().expect("an address");
        assert!(redirect.starts_with(CALLBACK), "{redirect}");
        member(redirect, "code")
    }

    pub(crate) async fn exchange(&self, client: &str, code: &str, verifier: &str) -> Answer {
        let members = [
            ("grant_type", "authorization_code"),
            ("client_id", client),
            ("code", code),
            ("redirect_uri", CALLBACK),
            ("code_verifier", verifier),
        ];
        self.form("token", &members).await
    }

    pub(crate) async fn refresh(&self, client: &str, token: &str) -> Answer {
        let members = [("grant_type", "refresh_token"), ("client_id", client), ("refresh_token", token)];
        self.form("token", &members).await
    }

    /// Lets an agent in and returns its client and its two tokens.
    pub(crate) async fn agent(&self, browser: &Browser) -> (String, String, String) {
        let (client, verifier) = (self.client().await, verifier());
        let code = self.allow(browser, &client, &verifier).await;
        let answer = self.exchange(&client, &code, &verifier).await;
        assert_eq!(answer.headers["cache-control"], "no-store");
        let (access, refresh) = pair(&answer.ok());
        (client, access, refresh)
    }

    pub(crate) fn is_let_in(&self, access: &str) -> bool {
        use cocoonbox_core::Clock as _;
        let token = AgentToken::parse(access).expect("a token");
        self.agents.check(&token, self.clock.now()).is_ok()
    }
}

/// A browser without a session.
pub(crate) fn nobody() -> Browser {
    Browser { cookie: String::new(), origin: ISSUER.to_owned() }
}

/// Takes the cookie of a sign-in.
pub(crate) fn browser(answer: &Answer) -> Browser {
    assert_eq!(answer.status, 200, "{answer:?}");
    let cookie = answer.headers[header::SET_COOKIE].to_str().expect("text");
    let cookie = cookie.split(';').next().expect("a pair").to_owned();
    Browser { cookie, origin: ISSUER.to_owned() }
}

pub(crate) fn verifier() -> String {
    let mut bytes = [0_u8; 32];
    SystemEntropy.fill(&mut bytes).expect("randomness");
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn query(client: &str, verifier: &str, more: &str) -> String {
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
    format!(
        "response_type=code&client_id={client}&redirect_uri={CALLBACK}&state=s%26t&code_challenge={challenge}\
         &code_challenge_method=S256{more}"
    )
}

/// Returns one member of an address's query.
pub(crate) fn member(address: &str, name: &str) -> String {
    let query = address.split_once('?').expect("a query").1;
    let found = form_urlencoded::parse(query.as_bytes()).find(|(held, _)| held == name);
    found.unwrap_or_else(|| panic!("{name} in {address}")).1.into_owned()
}

pub(crate) fn pair(answer: &Value) -> (String, String) {
    let text = |name: &str| answer[name].as_str().unwrap_or_else(|| panic!("{name} in {answer}")).to_owned();
    assert_eq!((answer["token_type"].as_str(), answer["scope"].as_str()), (Some("Bearer"), Some("boxes")));
    let (access, refresh) = (text("access_token"), text("refresh_token"));
    assert!(AgentToken::parse(&access).is_ok() && RefreshToken::parse(&refresh).is_ok());
    (access, refresh)
}

pub(crate) const NO_CONTENT: u16 = StatusCode::NO_CONTENT.as_u16();
