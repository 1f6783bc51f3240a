//! What must not work.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::stand::{CALLBACK, ISSUER, Stand, nobody, pair, query, verifier};

/// Every call that changes something, with a body that it takes.
fn calls() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("POST", "login", json!({ "name": "admin", "password": "correct horse battery" })),
        ("POST", "login/link", json!({ "link": "cbl_x", "password": "correct horse battery" })),
        ("POST", "logout", json!({})),
        ("POST", "me/password", json!({ "old": "correct horse battery", "new": "another password" })),
        ("POST", "me/token", json!({})),
        ("DELETE", "me/token", Value::Null),
        ("POST", "me/sign-out-everywhere", json!({})),
        ("DELETE", "devices/dev_aaaaaaaaaaaaaaaa", Value::Null),
        ("POST", "agents/seen", json!({})),
        ("DELETE", "agents/ag_aaaaaaaaaaaaaaaa", Value::Null),
        ("POST", "oauth/check", json!({ "query": "" })),
        ("POST", "oauth/approve", json!({ "query": "" })),
        ("POST", "oauth/deny", json!({ "query": "" })),
        ("POST", "users", json!({ "name": "mallory" })),
        ("PATCH", "users/us_aaaaaaaaaaaaaaaa", json!({})),
        ("DELETE", "users/us_aaaaaaaaaaaaaaaa", Value::Null),
    ]
}

#[tokio::test]
async fn no_call_is_taken_from_another_site() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    for (method, path, body) in calls() {
        for (host, origin, site) in [
            ("127.0.0.1:7420", Some("https://evil.example"), Some("cross-site")),
            ("127.0.0.1:7420", Some("http://127.0.0.1:7421"), Some("same-site")),
            ("127.0.0.1:7420", Some("https://127.0.0.1:7420"), None),
            ("127.0.0.1:7420", Some("null"), None),
            ("127.0.0.1:7420", None, Some("cross-site")),
            ("127.0.0.1:7420", None, Some("same-site")),
            ("127.0.0.1:7420", None, Some("none")),
            // a name that was rebound to this address
            ("evil.example:7420", Some("http://evil.example:7420"), Some("same-origin")),
            ("evil.example", None, None),
        ] {
            let mut request = Request::builder().method(method).uri(format!("/cb/api/{path}"));
            request = request.header(header::HOST, host).header(header::COOKIE, &me.cookie);
            request = request.header(header::CONTENT_TYPE, "application/json");
            for (name, value) in [("origin", origin), ("sec-fetch-site", site)] {
                if let Some(value) = value {
                    request = request.header(name, value);
                }
            }
            let answer = stand.send(request.body(Body::from(body.to_string())).expect("a request")).await;
            assert_eq!(answer.refused(), (403, "cross_site"), "{method} {path} {host} {origin:?} {site:?}");
        }
        // the control: the same call from a page of this server is looked at
        let control = stand.page(&nobody(), method, path, body).await;
        assert_ne!(control.refused().1, "cross_site", "{method} {path}");
    }
    stand.page(&me, "GET", "me", Value::Null).await.ok();
}

#[tokio::test]
async fn nothing_but_the_cookie_of_a_session_opens_the_console() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (_, access, _) = stand.agent(&me).await;
    let session = me.cookie.trim_start_matches("cb_session=").to_owned();
    let ask = |cookie: String, bearer: String| {
        let request = Request::get("/cb/api/me")
            .header(header::HOST, "127.0.0.1:7420")
            .header(header::COOKIE, cookie)
            .header(header::AUTHORIZATION, format!("Bearer {bearer}"))
            .body(Body::empty())
            .expect("a request");
        stand.send(request)
    };
    for (cookie, bearer) in [
        (String::new(), stand.first.token.reveal().to_owned()),
        (String::new(), access.clone()),
        (String::new(), session.clone()),
        (format!("cb_session={}", stand.first.token.reveal()), String::new()),
        (format!("cb_session={access}"), String::new()),
        (format!("cb_session={}", session.replace("cbs_", "cb_")), String::new()),
        (format!("cb_session={session}; cb_session=planted"), String::new()),
        (format!("other={session}"), String::new()),
    ] {
        assert_eq!(ask(cookie.clone(), bearer).await.refused(), (401, "signed_out"), "{cookie:.20}");
    }
    ask(format!("a=b; cb_session={session}"), String::new()).await.ok();
}

#[tokio::test]
async fn a_code_is_good_once_for_its_client_place_and_verifier() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (client, other) = (stand.client().await, stand.client().await);
    let right = verifier();
    // each of these burns the code
    for (who, redirect, verifier) in [
        (&other, CALLBACK, right.clone()),
        (&client, "http://127.0.0.1:4243/cb", right.clone()),
        (&client, "http://localhost:4242/cb", right.clone()),
        (&client, CALLBACK, verifier()),
    ] {
        let code = stand.allow(&me, &client, &right).await;
        let members = [
            ("grant_type", "authorization_code"),
            ("client_id", who),
            ("code", &code),
            ("redirect_uri", redirect),
            ("code_verifier", &verifier),
        ];
        assert_eq!(stand.form("token", &members).await.refused(), (400, "invalid_grant"));
        assert_eq!(stand.exchange(&client, &code, &right).await.refused(), (400, "invalid_grant"), "burnt");
    }
    let code = stand.allow(&me, &client, &right).await;
    stand.clock.advance(Duration::from_mins(1));
    assert_eq!(stand.exchange(&client, &code, &right).await.refused(), (400, "invalid_grant"), "too late");
    let code = stand.allow(&me, &client, &right).await;
    let (access, refresh) = pair(&stand.exchange(&client, &code, &right).await.ok());
    assert!(stand.is_let_in(&access));
    // somebody else has the code, too: what the first use made ends
    assert_eq!(stand.exchange(&client, &code, &right).await.refused(), (400, "invalid_grant"));
    assert!(!stand.is_let_in(&access));
    assert_eq!(stand.refresh(&client, &refresh).await.refused(), (400, "invalid_grant"));
}

#[tokio::test]
async fn a_replayed_code_of_a_device_ends_the_device() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let verifier = verifier();
    let query =
        query("cocoonbox-cli", &verifier, "&scope=account&device_name=x").replace("/cb&", "/callback&");
    let redirect = stand.page(&me, "POST", "oauth/approve", json!({ "query": query })).await.ok();
    let code = crate::stand::member(redirect["redirect"].as_str().expect("an address"), "code");
    let members = [
        ("grant_type", "authorization_code"),
        ("client_id", "cocoonbox-cli"),
        ("code", code.as_str()),
        ("redirect_uri", "http://127.0.0.1:4242/callback"),
        ("code_verifier", verifier.as_str()),
    ];
    stand.form("token", &members).await.ok();
    let devices = stand.page(&me, "GET", "devices", Value::Null).await.ok();
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(1));
    assert_eq!(stand.form("token", &members).await.refused(), (400, "invalid_grant"));
    let devices = stand.page(&me, "GET", "devices", Value::Null).await.ok();
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(0));
}

#[tokio::test]
async fn a_disabled_user_gets_nothing_for_a_code() {
    let stand = Stand::new().await;
    let admin = stand.admin().await;
    let (eve, id) = stand.user(&admin, "eve").await;
    let (client, verifier) = (stand.client().await, verifier());
    let code = stand.allow(&eve, &client, &verifier).await;
    stand.page(&admin, "PATCH", &format!("users/{id}"), json!({ "disabled": true })).await.ok();
    assert_eq!(stand.exchange(&client, &code, &verifier).await.refused(), (400, "invalid_grant"));
}

#[tokio::test]
async fn the_token_endpoint_takes_one_form() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (client, _, refresh) = stand.agent(&me).await;
    let send = |kind: &str, authorization: Option<String>, body: String| {
        let mut request = Request::post("/cocoonbox.oauth/token").header(header::CONTENT_TYPE, kind);
        if let Some(value) = authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        stand.send(request.body(Body::from(body)).expect("a request"))
    };
    let form = "application/x-www-form-urlencoded";
    let good = format!("grant_type=refresh_token&refresh_token={refresh}");
    let basic = |words: &str| Some(format!("Basic {}", STANDARD.encode(words)));
    for (kind, authorization, body, refused) in [
        (
            "application/json",
            None,
            json!({ "grant_type": "refresh_token" }).to_string(),
            (400, "invalid_request"),
        ),
        (form, None, good.clone(), (400, "invalid_request")),
        (form, None, format!("{good}&client_id={client}&client_id={client}"), (400, "invalid_request")),
        (form, None, format!("{good}&client_id={client}&client_secret=x"), (401, "invalid_client")),
        (form, basic(&format!("{client}:secret")), good.clone(), (401, "invalid_client")),
        (form, basic(&client), good.clone(), (401, "invalid_client")),
        (form, basic("other:"), format!("{good}&client_id={client}"), (401, "invalid_client")),
        (form, Some("Bearer x".to_owned()), format!("{good}&client_id={client}"), (401, "invalid_client")),
        (form, None, format!("{good}&client_id=other"), (400, "invalid_grant")),
        (form, None, format!("client_id={client}"), (400, "invalid_request")),
        (
            form,
            None,
            format!("client_id={client}&grant_type=password&username=a&password=b"),
            (400, "unsupported_grant_type"),
        ),
        (
            form,
            None,
            format!("client_id={client}&grant_type=client_credentials"),
            (400, "unsupported_grant_type"),
        ),
        (form, None, format!("client_id={client}&grant_type=refresh_token"), (400, "invalid_request")),
        (
            form,
            None,
            format!("client_id={client}&grant_type=refresh_token&refresh_token=cbr_00"),
            (400, "invalid_grant"),
        ),
    ] {
        let answer = send(kind, authorization, body.clone()).await;
        assert_eq!(answer.refused(), refused, "{body}");
        assert_eq!(answer.headers["cache-control"], "no-store");
    }
    pair(&send(form, basic(&format!("{client}:")), good).await.ok());
}

#[tokio::test]
async fn a_flood_of_registrations_runs_dry() {
    let stand = Stand::new().await;
    for _ in 0..60 {
        stand.client().await;
    }
    let metadata = json!({ "redirect_uris": ["http://127.0.0.1/cb"] });
    assert_eq!(stand.register(metadata.clone()).await.refused(), (429, "too_many"));
    stand.clock.advance(Duration::from_hours(1));
    assert_eq!(stand.register(metadata).await.status, 201);
}

#[tokio::test]
async fn consent_cannot_be_had_without_a_person() {
    let stand = Stand::new().await;
    stand.admin().await;
    let client = stand.client().await;
    let query = query(&client, &verifier(), "");
    for call in ["check", "approve", "deny"] {
        let answer = stand.page(&nobody(), "POST", &format!("oauth/{call}"), json!({ "query": query })).await;
        assert_eq!(answer.refused(), (401, "signed_out"), "{call}");
    }
    assert!(ISSUER.starts_with("http://127.0.0.1"));
}
