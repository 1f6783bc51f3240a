//! Outside agents: discovery, registration, consent, tokens and their end.

use std::time::Duration;

use cocoonbox_oauth::ACCESS_LIFE;
use serde_json::{Value, json};

use crate::stand::{CALLBACK, ISSUER, NO_CONTENT, Stand, member, pair, query, verifier};

#[tokio::test]
async fn the_doors_are_found() {
    let stand = Stand::new().await;
    let answer = stand.get("/.well-known/oauth-authorization-server").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let server = answer.ok();
    for (member, value) in [
        ("issuer", json!(ISSUER)),
        ("authorization_endpoint", json!("http://127.0.0.1:7420/cb/oauth/authorize")),
        ("token_endpoint", json!("http://127.0.0.1:7420/cocoonbox.oauth/token")),
        ("registration_endpoint", json!("http://127.0.0.1:7420/cocoonbox.oauth/register")),
        ("revocation_endpoint", json!("http://127.0.0.1:7420/cocoonbox.oauth/revoke")),
        ("code_challenge_methods_supported", json!(["S256"])),
        ("token_endpoint_auth_methods_supported", json!(["none"])),
        ("response_types_supported", json!(["code"])),
        ("authorization_response_iss_parameter_supported", json!(true)),
    ] {
        assert_eq!(server[member], value, "{member}");
    }
    for path in ["", "/cocoonbox.mcp", "/cocoonbox.mcp/control", "/cocoonbox.mcp/box/main"] {
        let resource = stand.get(&format!("/.well-known/oauth-protected-resource{path}")).await.ok();
        assert_eq!(resource["resource"], "http://127.0.0.1:7420/cocoonbox.mcp", "{path}");
        assert_eq!(resource["authorization_servers"], json!([ISSUER]));
        assert_eq!(resource["scopes_supported"], json!(["boxes"]));
    }
    assert_eq!(stand.get("/.well-known/oauth-protected-resource/other").await.status, 404);
}

#[tokio::test]
async fn a_client_registers_itself() {
    let stand = Stand::new().await;
    let metadata = json!({
        "client_name": "An agent", "redirect_uris": ["http://localhost/cb", "https://agent.example/cb"],
        "software_id": "x", "token_endpoint_auth_method": "none",
    });
    let answer = stand.register(metadata).await;
    assert_eq!(
        (answer.status, &answer.headers["cache-control"]),
        (201, &"no-store".parse().expect("a value"))
    );
    let client = answer.body;
    assert!(client["client_id"].as_str().is_some_and(|id| id.starts_with("cbo_") && id.len() == 36));
    assert_eq!(
        (&client["token_endpoint_auth_method"], &client["client_secret"]),
        (&json!("none"), &Value::Null)
    );
    for (metadata, code) in [
        (json!({ "redirect_uris": ["http://evil.example/"] }), "invalid_redirect_uri"),
        (json!({ "redirect_uris": [] }), "invalid_redirect_uri"),
        (
            json!({ "redirect_uris": ["https://a.example/"], "token_endpoint_auth_method": "client_secret_post" }),
            "invalid_client_metadata",
        ),
        (json!([]), "invalid_client_metadata"),
    ] {
        assert_eq!(stand.register(metadata.clone()).await.refused(), (400, code), "{metadata}");
    }
}

#[tokio::test]
async fn the_page_is_told_what_to_ask() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let client = stand.client().await;
    let query = query(&client, &verifier(), "&scope=boxes");
    let asked = stand.page(&me, "POST", "oauth/check", json!({ "query": query })).await.ok();
    let expected = json!({
        "account": false, "client_id": client, "client_name": "An agent", "client_host": "", "redirect_host": "127.0.0.1", "loopback": true,
        "max_boxes": 2, "max_running": 1, "days": 30, "has_grant": false,
    });
    assert_eq!(asked, expected);
    let back = stand
        .page(&me, "POST", "oauth/check", json!({ "query": query.replace("boxes", "account") }))
        .await
        .ok();
    let back = back["redirect"].as_str().expect("an address").to_owned();
    assert_eq!((member(&back, "error").as_str(), member(&back, "iss").as_str()), ("invalid_scope", ISSUER));
    let no = stand.page(&me, "POST", "oauth/deny", json!({ "query": query })).await.ok();
    let no = no["redirect"].as_str().expect("an address");
    assert_eq!((member(no, "error").as_str(), member(no, "state").as_str()), ("access_denied", "s&t"));
    for body in [
        json!({ "query": query, "max_boxes": 0 }),
        json!({ "query": query, "max_boxes": 17 }),
        json!({ "query": query, "max_boxes": 1, "max_running": 2 }),
        json!({ "query": query, "days": 365 }),
    ] {
        assert_eq!(
            stand.page(&me, "POST", "oauth/approve", body.clone()).await.refused(),
            (400, "invalid"),
            "{body}"
        );
    }
    let unknown = query.replace(&client, "cbo_00000000000000000000000000000000");
    for call in ["check", "approve", "deny"] {
        let answer = stand.page(&me, "POST", &format!("oauth/{call}"), json!({ "query": unknown })).await;
        assert_eq!(answer.refused(), (400, "untrusted"), "{call}");
    }
}

#[tokio::test]
async fn an_agent_is_let_in_listed_and_shut_out() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (client, verifier) = (stand.client().await, verifier());
    let asked =
        json!({ "query": query(&client, &verifier, ""), "max_boxes": 5, "max_running": 3, "days": 7 });
    let redirect = stand.page(&me, "POST", "oauth/approve", asked).await.ok();
    let code = member(redirect["redirect"].as_str().expect("an address"), "code");
    let answer = stand.exchange(&client, &code, &verifier).await.ok();
    assert_eq!(answer["expires_in"], 3600);
    let (access, _) = pair(&answer);
    let let_in = stand
        .agents
        .check(&cocoonbox_oauth::AgentToken::parse(&access).expect("a token"), cocoonbox_oauth::testkit::AT);
    let let_in = let_in.expect("let in");
    assert_eq!((let_in.grant().max_boxes, let_in.grant().max_running), (5, 3));

    let shown = stand.page(&me, "GET", "me", Value::Null).await.ok();
    assert_eq!(shown["unseen_agents"], 1);
    let listed = stand.page(&me, "GET", "agents", Value::Null).await.ok();
    let agent = &listed["agents"][0];
    assert_eq!(
        (&agent["client_name"], &agent["client_host"], &agent["seen"]),
        (&json!("An agent"), &json!(""), &json!(false))
    );
    let day = Duration::from_hours(24).as_millis() as i64;
    let span =
        agent["expires_at"].as_i64().zip(agent["approved_at"].as_i64()).map(|(end, begin)| end - begin);
    assert_eq!(span, Some(7 * day));
    assert_eq!(stand.page(&me, "POST", "agents/seen", json!({})).await.status, NO_CONTENT);
    let shown = stand.page(&me, "GET", "me", Value::Null).await.ok();
    assert_eq!(shown["unseen_agents"], 0);
    let asked = json!({ "query": query(&client, &verifier, "") });
    let asked = stand.page(&me, "POST", "oauth/check", asked).await.ok();
    assert_eq!(asked["has_grant"], true);

    let path = format!("agents/{}", agent["id"].as_str().expect("an id"));
    let (eve, _) = stand.user(&me, "eve").await;
    assert_eq!(
        stand.page(&eve, "DELETE", &path, Value::Null).await.refused(),
        (404, "not_found"),
        "another's"
    );
    assert_eq!(stand.page(&me, "DELETE", &path, Value::Null).await.status, NO_CONTENT);
    assert!(let_in.ended().is_cancelled() && !stand.is_let_in(&access));
    assert_eq!(stand.page(&me, "DELETE", &path, Value::Null).await.refused(), (404, "not_found"));
}

#[tokio::test]
async fn a_refresh_rotates_and_the_answer_may_be_asked_for_again() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (client, access, first) = stand.agent(&me).await;
    stand.clock.advance(ACCESS_LIFE);
    assert!(!stand.is_let_in(&access), "an access token lasts an hour");
    let (second_access, second) = pair(&stand.refresh(&client, &first).await.ok());
    assert!(stand.is_let_in(&second_access) && second != first);
    // the answer got lost: the same successor
    assert_eq!(pair(&stand.refresh(&client, &first).await.ok()), (second_access.clone(), second.clone()));
    let (third_access, third) = pair(&stand.refresh(&client, &second).await.ok());
    assert!(stand.is_let_in(&third_access) && stand.is_let_in(&second_access));
    // somebody has an old one: two hold the grant, and it ends
    assert_eq!(stand.refresh(&client, &first).await.refused(), (400, "invalid_grant"));
    assert!(!stand.is_let_in(&third_access));
    for token in [&first, &second, &third] {
        assert_eq!(stand.refresh(&client, token).await.refused(), (400, "invalid_grant"));
    }
    let listed = stand.page(&me, "GET", "agents", Value::Null).await.ok();
    assert_eq!(listed["agents"], json!([]));
}

#[tokio::test]
async fn a_replay_ends_its_own_grant_alone() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (client, _, first) = stand.agent(&me).await;
    let (_, other_access, _) = stand.agent(&me).await;
    let (_, second) = pair(&stand.refresh(&client, &first).await.ok());
    let (_, third) = pair(&stand.refresh(&client, &second).await.ok());
    pair(&stand.refresh(&client, &third).await.ok());
    assert_eq!(stand.refresh(&client, &first).await.refused(), (400, "invalid_grant"));
    assert!(stand.is_let_in(&other_access));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_refreshes_at_once_have_one_successor() {
    let stand = std::sync::Arc::new(Stand::new().await);
    let me = stand.admin().await;
    let (client, _, first) = stand.agent(&me).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (stand, client, first) = (stand.clone(), client.clone(), first.clone());
        calls.spawn(async move { pair(&stand.refresh(&client, &first).await.ok()) });
    }
    let mut answers = calls.join_all().await;
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 1, "one successor, for all");
    let (access, second) = &answers[0];
    assert!(stand.is_let_in(access));
    pair(&stand.refresh(&client, second).await.ok());
}

#[tokio::test]
async fn a_grant_is_over_in_time() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (client, _, refresh) = stand.agent(&me).await;
    stand.clock.advance(Duration::from_hours(30 * 24) - Duration::from_mins(10));
    let answer = stand.refresh(&client, &refresh).await.ok();
    assert_eq!(answer["expires_in"], 600, "no longer than the grant");
    let (access, refresh) = pair(&answer);
    stand.clock.advance(Duration::from_mins(10));
    assert!(!stand.is_let_in(&access));
    assert_eq!(stand.refresh(&client, &refresh).await.refused(), (400, "invalid_grant"));
}

#[tokio::test]
async fn an_agent_signs_itself_out_by_either_token() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    for which in 0..2 {
        let (client, access, refresh) = stand.agent(&me).await;
        let shown = [&access, &refresh][which];
        for _ in 0..2 {
            assert_eq!(
                stand.form("revoke", &[("token", shown.as_str()), ("client_id", &client)]).await.status,
                200
            );
        }
        assert!(!stand.is_let_in(&access));
        assert_eq!(stand.refresh(&client, &refresh).await.refused(), (400, "invalid_grant"));
    }
    assert_eq!(stand.form("revoke", &[("token", "whatever")]).await.status, 200, "unknown is ended");
    assert_eq!(stand.form("revoke", &[]).await.refused(), (400, "invalid_request"));
}

#[tokio::test]
async fn a_resource_outside_is_refused_at_the_token_endpoint_too() {
    let stand = Stand::new().await;
    let me = stand.admin().await;
    let (client, _, refresh) = stand.agent(&me).await;
    let refresh_for = |resource: &'static str, scope: &'static str| {
        let members = vec![
            ("grant_type", "refresh_token"),
            ("client_id", client.as_str()),
            ("refresh_token", refresh.as_str()),
            ("resource", resource),
            ("scope", scope),
        ];
        let stand = &stand;
        async move { stand.form("token", &members).await }
    };
    for (resource, scope, code) in [
        ("https://evil.example/", "", "invalid_target"),
        ("http://127.0.0.1:7420/cb/", "", "invalid_target"),
        ("http://127.0.0.1:7420/cocoonbox.mcp", "account", "invalid_scope"),
        ("http://127.0.0.1:7420/cocoonbox.mcp", "boxes account", "invalid_scope"),
    ] {
        assert_eq!(refresh_for(resource, scope).await.refused(), (400, code), "{resource} {scope}");
    }
    pair(&refresh_for("http://127.0.0.1:7420/cocoonbox.mcp/control", "boxes").await.ok());
    assert_eq!(CALLBACK, "http://127.0.0.1:4242/cb");
}
