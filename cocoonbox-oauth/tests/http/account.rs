//! People: passwords, sessions, devices, and what administrators do.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use cocoonbox_oauth::AccessToken;
use cocoonbox_oauth::testkit::AT;
use serde_json::{Value, json};

use crate::stand::{Browser, ISSUER, NO_CONTENT, PASSWORD, Stand, browser, member, nobody, query, verifier};

/// Signs the command line in as it does by itself, and returns its token.
async fn command_line(stand: &Stand, who: &Browser, device: &str) -> String {
    let verifier = verifier();
    let more = format!("&scope=account&device_name={device}");
    let query = query("cocoonbox-cli", &verifier, &more).replace("/cb&", "/callback&");
    let asked = stand.page(who, "POST", "oauth/check", json!({ "query": query })).await.ok();
    assert_eq!(asked["account"], true);
    assert_eq!(
        (asked["client_name"].as_str(), asked["loopback"].as_bool()),
        (Some("cocoonbox CLI"), Some(true))
    );
    let allowed = stand.page(who, "POST", "oauth/approve", json!({ "query": query })).await.ok();
    let redirect = allowed["redirect"].as_str().expect("an address");
    assert_eq!((member(redirect, "iss").as_str(), member(redirect, "state").as_str()), (ISSUER, "s&t"));
    let code = member(redirect, "code");
    let members = [
        ("grant_type", "authorization_code"),
        ("client_id", "cocoonbox-cli"),
        ("code", code.as_str()),
        ("redirect_uri", "http://127.0.0.1:4242/callback"),
        ("code_verifier", verifier.as_str()),
    ];
    let answer = stand.form("token", &members).await.ok();
    let keys: Vec<&String> = answer.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["access_token", "scope", "token_type"], "no expiry and no refresh token");
    assert_eq!(answer["scope"], "account");
    answer["access_token"].as_str().expect("a token").to_owned()
}

fn works(stand: &Stand, token: &str) -> bool {
    stand.tokens.check(&AccessToken::parse(token).expect("a token"), AT).is_ok()
}

#[tokio::test]
async fn a_person_signs_in_by_a_link_and_then_by_the_password_it_set() {
    let stand = Stand::new().await;
    let link = stand.first.link.reveal().to_owned();
    let weak =
        stand.page(&nobody(), "POST", "login/link", json!({ "link": link, "password": "short" })).await;
    assert_eq!(weak.refused(), (400, "weak_password"));
    let answer =
        stand.page(&nobody(), "POST", "login/link", json!({ "link": link, "password": PASSWORD })).await;
    let cookie = answer.headers[header::SET_COOKIE].to_str().expect("text").to_owned();
    assert!(cookie.starts_with("cb_session=cbs_"), "{cookie}");
    for part in ["; Path=/cb/", "; HttpOnly", "; SameSite=Strict"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "the issuer is http on a loopback address");
    let me = browser(&answer);
    let shown = stand.page(&me, "GET", "me", Value::Null).await;
    assert_eq!(shown.headers["cache-control"], "no-store");
    let shown = shown.ok();
    assert_eq!(
        (&shown["name"], &shown["admin"], &shown["has_password"]),
        (&json!("admin"), &json!(true), &json!(true))
    );
    let again =
        stand.page(&nobody(), "POST", "login/link", json!({ "link": link, "password": PASSWORD })).await;
    assert_eq!(again.refused(), (401, "link_refused"));

    browser(&stand.sign_in("admin", PASSWORD).await);
    let wrong = stand.sign_in("admin", "correct horse").await;
    let unknown = stand.sign_in("nobody", PASSWORD).await;
    assert_eq!(wrong.refused(), (401, "wrong_password"));
    assert_eq!(
        (unknown.status, &unknown.body),
        (wrong.status, &wrong.body),
        "nothing tells whether a user exists"
    );

    let out = stand.page(&me, "POST", "logout", json!({})).await;
    assert_eq!(out.status, NO_CONTENT);
    assert!(out.headers[header::SET_COOKIE].to_str().expect("text").contains("Max-Age=0"));
    assert_eq!(stand.page(&me, "GET", "me", Value::Null).await.refused(), (401, "signed_out"));
}

#[tokio::test]
async fn guessing_runs_out_for_an_address_and_for_a_user() {
    let stand = Stand::new().await;
    stand.admin().await;
    for _ in 0..20 {
        assert_eq!(stand.sign_in("admin", "a wrong guess").await.status, 401);
    }
    let refused = stand.sign_in("admin", PASSWORD).await;
    assert_eq!(refused.refused(), (429, "too_many"));
    assert_eq!(refused.headers["retry-after"], "900");
    stand.clock.advance(Duration::from_mins(15));
    browser(&stand.sign_in("admin", PASSWORD).await);
}

#[tokio::test]
async fn a_session_is_over_in_time() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    stand.clock.advance(cocoonbox_oauth::SESSION_LIFE.saturating_sub(Duration::from_secs(1)));
    stand.page(&me, "GET", "me", Value::Null).await.ok();
    stand.clock.advance(Duration::from_secs(1));
    assert_eq!(stand.page(&me, "GET", "me", Value::Null).await.refused(), (401, "signed_out"));
}

#[tokio::test]
async fn a_new_password_ends_other_sessions_and_leaves_tokens() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let other = browser(&stand.sign_in("admin", PASSWORD).await);
    let token = command_line(&stand, &me, "laptop").await;
    let body = json!({ "old": "not it, no", "new": "another password" });
    assert_eq!(stand.page(&me, "POST", "me/password", body).await.refused(), (401, "wrong_password"));
    let body = json!({ "old": PASSWORD, "new": "another password" });
    assert_eq!(stand.page(&me, "POST", "me/password", body).await.status, NO_CONTENT);
    stand.page(&me, "GET", "me", Value::Null).await.ok();
    assert_eq!(stand.page(&other, "GET", "me", Value::Null).await.refused(), (401, "signed_out"));
    assert!(works(&stand, &token) && works(&stand, stand.first.token.reveal()));
    assert_eq!(stand.sign_in("admin", PASSWORD).await.status, 401);
    browser(&stand.sign_in("admin", "another password").await);
}

#[tokio::test]
async fn a_device_signs_in_through_the_browser_and_is_revoked() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (one, two) =
        (command_line(&stand, &me, "Jo%27s%20laptop").await, command_line(&stand, &me, "box").await);
    let listed = stand.page(&me, "GET", "devices", Value::Null).await.ok();
    let devices = listed["devices"].as_array().expect("a list");
    let mut labels: Vec<_> = devices.iter().map(|device| device["label"].as_str().expect("text")).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["Jo's laptop", "box"]);
    assert!(
        devices.iter().all(|device| device["client"] == "cocoonbox-cli" && device["created_at"].is_i64())
    );
    let find = |label: &str| {
        let device = devices.iter().find(|device| device["label"] == label).expect("listed");
        device["id"].as_str().expect("an id").to_owned()
    };
    let (user, _) = stand.user(&me, "eve").await;
    let path = format!("devices/{}", find("Jo's laptop"));
    assert_eq!(
        stand.page(&user, "DELETE", &path, Value::Null).await.refused(),
        (404, "not_found"),
        "another's"
    );
    assert!(works(&stand, &one));
    let open = stand.tokens.check(&AccessToken::parse(&one).expect("a token"), AT).expect("let in");
    assert_eq!(stand.page(&me, "DELETE", &path, Value::Null).await.status, NO_CONTENT);
    assert!(open.ended().is_cancelled() && !works(&stand, &one) && works(&stand, &two));
    assert_eq!(stand.page(&me, "DELETE", &path, Value::Null).await.refused(), (404, "not_found"));
    for id in ["dev_aaaaaaaaaaaaaaaa", "x", "..%2Fme"] {
        let path = format!("devices/{id}");
        assert_eq!(stand.page(&me, "DELETE", &path, Value::Null).await.status, 404, "{id}");
    }
    // a device signs itself out; a personal token is left alone
    for _ in 0..2 {
        assert_eq!(stand.form("revoke", &[("token", two.as_str())]).await.status, 200);
    }
    assert!(!works(&stand, &two));
    assert_eq!(stand.form("revoke", &[("token", stand.first.token.reveal())]).await.status, 200);
    assert!(works(&stand, stand.first.token.reveal()));
}

#[tokio::test]
async fn the_personal_token_is_made_anew_and_revoked() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let shown = stand.page(&me, "GET", "me/token", Value::Null).await.ok();
    assert_eq!(shown["exists"], true);
    let made = stand.page(&me, "POST", "me/token", json!({})).await.ok();
    let token = made["token"].as_str().expect("a token");
    assert!(works(&stand, token) && !works(&stand, stand.first.token.reveal()));
    for _ in 0..2 {
        assert_eq!(stand.page(&me, "DELETE", "me/token", Value::Null).await.status, NO_CONTENT);
    }
    assert!(!works(&stand, token));
    let shown = stand.page(&me, "GET", "me/token", Value::Null).await.ok();
    assert_eq!((&shown["exists"], &shown["created_at"]), (&json!(false), &Value::Null));
}

#[tokio::test]
async fn signing_out_everywhere_ends_every_way_in() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let other = browser(&stand.sign_in("admin", PASSWORD).await);
    let device = command_line(&stand, &me, "laptop").await;
    let (client, access, refresh) = stand.agent(&me).await;
    let (eve, _) = stand.user(&me, "eve").await;
    let hers = command_line(&stand, &eve, "hers").await;
    let out = stand.page(&me, "POST", "me/sign-out-everywhere", json!({})).await;
    assert_eq!(out.status, NO_CONTENT);
    assert!(out.headers[header::SET_COOKIE].to_str().expect("text").contains("Max-Age=0"));
    for browser in [&me, &other] {
        assert_eq!(stand.page(browser, "GET", "me", Value::Null).await.refused(), (401, "signed_out"));
    }
    assert!(!works(&stand, &device) && !works(&stand, stand.first.token.reveal()));
    assert!(!stand.is_let_in(&access));
    assert_eq!(stand.refresh(&client, &refresh).await.refused(), (400, "invalid_grant"));
    assert!(works(&stand, &hers), "others are not touched");
    stand.page(&eve, "GET", "me", Value::Null).await.ok();
}

#[tokio::test]
async fn administrators_make_change_and_remove_users() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (eve, id) = stand.user(&me, "eve").await;
    let path = format!("users/{id}");
    for (method, path) in [("GET", "users"), ("POST", "users"), ("PATCH", &path), ("DELETE", &path)] {
        let body = if method == "POST" { json!({ "name": "x" }) } else { json!({}) };
        assert_eq!(stand.page(&eve, method, path, body).await.refused(), (403, "not_admin"), "{method}");
    }
    let taken = stand.page(&me, "POST", "users", json!({ "name": "eve", "password": PASSWORD })).await;
    assert_eq!(taken.refused(), (409, "name_taken"));
    for (body, refused) in [
        (json!({ "name": "../x", "password": PASSWORD }), (400, "invalid")),
        (json!({ "name": "ok", "password": "short" }), (400, "weak_password")),
        (json!({ "name": "ok", "surprise": 1 }), (400, "invalid")),
    ] {
        assert_eq!(stand.page(&me, "POST", "users", body.clone()).await.refused(), refused, "{body}");
    }
    // without a password the user chooses one, by a link that is told once
    let made = stand.page(&me, "POST", "users", json!({ "name": "bob" })).await.ok();
    assert_eq!(made["has_password"], false);
    let body = json!({ "link": made["link"], "password": "bob's own choice" });
    browser(&stand.page(&nobody(), "POST", "login/link", body).await);

    let device = command_line(&stand, &eve, "hers").await;
    let (client, access, refresh) = stand.agent(&eve).await;
    let changed =
        stand.page(&me, "PATCH", &path, json!({ "disabled": true, "max_agent_boxes": 3 })).await.ok();
    assert_eq!((&changed["disabled"], &changed["max_agent_boxes"]), (&json!(true), &json!(3)));
    assert_eq!(stand.page(&eve, "GET", "me", Value::Null).await.refused(), (401, "signed_out"));
    assert_eq!(stand.sign_in("eve", PASSWORD).await.refused(), (401, "wrong_password"));
    assert!(!works(&stand, &device) && !stand.is_let_in(&access));
    assert_eq!(stand.refresh(&client, &refresh).await.refused(), (400, "invalid_grant"));
    let changed =
        stand.page(&me, "PATCH", &path, json!({ "disabled": false, "max_agent_boxes": 0 })).await.ok();
    assert_eq!(changed["max_agent_boxes"], Value::Null, "0 is no cap");
    assert!(works(&stand, &device) && stand.is_let_in(&access), "tokens were asleep, not gone");
    stand.page(&me, "PATCH", &path, json!({ "password": "chosen by admin" })).await.ok();
    assert_eq!(stand.page(&eve, "GET", "me", Value::Null).await.refused(), (401, "signed_out"));

    let admin = format!("users/{}", stand.first.user.id);
    for body in [json!({ "disabled": true }), json!({ "admin": false })] {
        assert_eq!(stand.page(&me, "PATCH", &admin, body).await.refused(), (409, "last_admin"));
    }
    assert_eq!(stand.page(&me, "DELETE", &admin, Value::Null).await.refused(), (409, "last_admin"));
    assert_eq!(stand.page(&me, "DELETE", &path, Value::Null).await.status, NO_CONTENT);
    assert!(!works(&stand, &device) && !stand.is_let_in(&access));
    assert_eq!(stand.page(&me, "DELETE", &path, Value::Null).await.refused(), (404, "not_found"));
    let listed = stand.page(&me, "GET", "users", Value::Null).await.ok();
    let names: Vec<_> =
        listed["users"].as_array().expect("a list").iter().map(|user| user["name"].clone()).collect();
    assert_eq!(names, ["admin", "bob"]);
}

#[tokio::test]
async fn what_is_not_json_or_too_large_is_refused() {
    let stand = Stand::new().await;
    let send = |kind: &str, body: String| {
        let request = Request::post("/cb/api/login")
            .header(header::HOST, "127.0.0.1:7420")
            .header(header::ORIGIN, ISSUER)
            .header(header::CONTENT_TYPE, kind)
            .body(Body::from(body))
            .expect("a request");
        stand.send(request)
    };
    let good = json!({ "name": "x", "password": "canary" }).to_string();
    assert_eq!(send("application/x-www-form-urlencoded", good.clone()).await.status, 415);
    assert_eq!(send("text/plain", good.clone()).await.status, 415);
    assert_eq!(send("application/json; charset=utf-8", good).await.status, 401);
    assert_eq!(send("application/json", "x".repeat(70_000)).await.status, 413);
    for body in ["", "{}", r#"{"name":"canary"}"#, r#"{"name":1,"password":"canary"}"#, r#"["canary"]"#] {
        let answer = send("application/json", body.to_owned()).await;
        assert_eq!(answer.refused(), (400, "invalid"), "{body}");
        assert!(!answer.body.to_string().contains("canary"), "{answer:?}");
    }
}

/// Returns door, whether it opened and what came, the newest first.
fn told(answer: &Value) -> Vec<(&str, bool, &str)> {
    let all = answer["sign_ins"].as_array().expect("a list").iter();
    all.map(|one| {
        let text = |name: &str| one[name].as_str().expect("text");
        (text("door"), one["let_in"] == true, text("what"))
    })
    .collect()
}

#[tokio::test]
async fn sign_ins_are_remembered_and_told_to_whom_they_concern() {
    let stand = Stand::new().await;
    let step = || stand.clock.advance(Duration::from_secs(1));
    let admin = stand.admin().await;
    step();
    stand.sign_in("admin", "correct horse").await;
    step();
    stand.sign_in("hunter2-hunter2", "typed in the wrong field").await;
    step();
    command_line(&stand, &admin, "jo%27s%20laptop").await;
    let own = stand.page(&admin, "GET", "me/sign-ins", Value::Null).await.ok();
    assert_eq!(
        told(&own),
        [("device", true, "jo's laptop"), ("password", false, ""), ("link", true, "")],
        "{own}"
    );
    assert_eq!((&own["sign_ins"][0]["from"], &own["next"]), (&json!("192.0.2.1"), &json!("")));
    assert!(own["sign_ins"][0].get("user_name").is_none());
    let all = stand.page(&admin, "GET", "sign-ins", Value::Null).await.ok();
    assert_eq!(told(&all)[1], ("password", false, ""));
    assert_eq!(
        (&all["sign_ins"][1]["user_name"], &all["sign_ins"][0]["user_name"]),
        (&json!(""), &json!("admin"))
    );
    assert!(!all.to_string().contains("hunter2"), "what was typed as a name may be a password");

    let made = stand.page(&admin, "POST", "users", json!({ "name": "jo", "password": PASSWORD })).await.ok();
    assert_eq!(made["name"], "jo");
    let jo = browser(&stand.sign_in("jo", PASSWORD).await);
    assert_eq!(stand.page(&jo, "GET", "sign-ins", Value::Null).await.refused(), (403, "not_admin"));
    assert_eq!(told(&stand.page(&jo, "GET", "me/sign-ins", Value::Null).await.ok()).len(), 1);
    for before in ["x", "1.x", ".", "1.si_aaaaaaaaaaaaaaaa.x"] {
        let path = format!("me/sign-ins?before={before}");
        assert_eq!(stand.page(&jo, "GET", &path, Value::Null).await.status, 400, "{before}");
    }
}

#[tokio::test]
async fn sign_ins_are_told_page_by_page() {
    let stand = Stand::new().await;
    let admin = stand.admin().await;
    for _ in 0..60 {
        stand.clock.advance(Duration::from_secs(1));
        browser(&stand.sign_in("admin", PASSWORD).await);
    }
    let first = stand.page(&admin, "GET", "me/sign-ins", Value::Null).await;
    // of the sessions that began meanwhile the oldest ended
    let admin = browser(&stand.sign_in("admin", PASSWORD).await);
    assert_eq!(first.status, 401);
    let first = stand.page(&admin, "GET", "me/sign-ins", Value::Null).await.ok();
    assert_eq!(told(&first).len(), 50);
    let path = format!("me/sign-ins?before={}", first["next"].as_str().expect("text"));
    let second = stand.page(&admin, "GET", &path, Value::Null).await.ok();
    assert_eq!((told(&second).len(), &second["next"]), (12, &json!("")));
    assert_eq!(told(&second).last(), Some(&("link", true, "")));
}
