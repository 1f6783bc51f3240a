//! Faults of the protocol, and what is no fault.

use cocoonbox_boxes::store::{StoreCall, StoreFault};
use cocoonbox_core::backend::{Fault, Method as Call};
use http::{Method, StatusCode};
use http_body_util::Full;
use serde_json::json;

use crate::setup::{World, initialize};

const INVALID: i64 = -32602;
const UNKNOWN: i64 = -32601;
const INTERNAL: i64 = -32603;

#[tokio::test]
async fn the_tools_are_listed_as_the_fixture_has_them() {
    let world = World::new().await;
    world.user("ana");
    let ana = world.open("ana").await;
    let listed = ana.ask("tools/list", json!({})).await;
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../../fixtures/mcp-control-v1.json")).unwrap();
    assert_eq!(listed["result"]["tools"], golden);
    assert_eq!(ana.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn what_is_no_call_of_a_tool_is_an_error_of_the_protocol() {
    let world = World::new().await;
    world.user("ana");
    let ana = world.open("ana").await;
    for (tool, arguments) in [
        ("box_lis", json!({})),
        ("box_list", json!({ "box": "main" })),
        ("box_status", json!({ "box": 7 })),
        ("box_status", json!({ "box": null })),
        ("box_ensure", json!({ "wait": "yes" })),
        ("box_ensure", json!({ "force": true })),
        ("box_create", json!({})),
        ("box_delete", json!({ "confirm": true })),
        ("box_delete", json!({ "box": "main" })),
        ("box_upgrade", json!({})),
        ("usage", json!({ "month": 1 })),
    ] {
        let params = json!({ "name": tool, "arguments": arguments });
        assert_eq!(ana.error("tools/call", params.clone()).await, INVALID, "{params}");
    }
    for params in [json!({}), json!({ "name": 7 }), json!({ "name": "box_list", "arguments": [] })] {
        assert_eq!(ana.error("tools/call", params.clone()).await, INVALID, "{params}");
    }
    assert_eq!(ana.error("tools/list", json!({ "cursor": "more" })).await, INVALID);
    for method in ["boxes/list", "resources/list", "prompts/list", "logging/setLevel", "completion/complete"]
    {
        assert_eq!(ana.error(method, json!({})).await, UNKNOWN, "{method}");
    }
    // and nothing of it happened
    assert_eq!(ana.done("box_list", json!({})).await, json!({ "boxes": [] }));
}

#[tokio::test]
async fn a_server_that_fails_says_so_and_no_more() {
    let world = World::new().await;
    world.user("ana");
    let ana = world.open("ana").await;
    world.store.fail(StoreCall::Read, 1, StoreFault::Before);
    let answer = ana.call("box_list", json!({})).await;
    assert_eq!(answer["error"]["code"], INTERNAL, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("try again later") && !message.contains("told to fail"), "{message}");
    ana.done("box_list", json!({})).await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_is_waited_for_by_nobody_and_its_operation_goes_on() {
    let world = World::new().await;
    let caller = world.user("ana");
    let ana = world.open("ana").await;
    world.backend.fail_next(Call::Claim, Fault::Hang);
    let mut call = ana.begin("box_ensure", json!({})).await;
    assert_eq!(call.next().await.unwrap()["method"], "notifications/progress");
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7, "reason": "enough" },
    });
    assert_eq!(ana.post(&cancel).await.status(), StatusCode::ACCEPTED);
    while let Some(message) = call.next().await {
        assert!(message.get("result").is_none(), "{message}");
    }
    let record = world.engine.get(&caller.user, "").await.unwrap().unwrap();
    assert!(record.pending.is_some());
}

#[tokio::test]
async fn a_message_that_is_too_large_or_is_none_is_refused() {
    let world = World::new().await;
    world.user("ana");
    let ana = world.open("ana").await;
    for (body, expected) in [
        ("x".repeat((1 << 20) + 1), StatusCode::PAYLOAD_TOO_LARGE),
        (
            json!({ "jsonrpc": "2.0", "id": 1, "method": "m", "params": "x".repeat(1 << 20) }).to_string(),
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
    ] {
        let request = ana.request(Method::POST).body(Full::new(body.into())).unwrap();
        assert_eq!(world.send(request).await.status(), expected);
    }
    for body in ["", "{", "[]", "{\"jsonrpc\": \"1.0\"}"] {
        let request = ana.request(Method::POST).body(Full::new(body.into())).unwrap();
        let status = world.send(request).await.status();
        assert!(status.is_client_error(), "{body}: {status}");
    }
    let request = ana.request(Method::PUT).body(Full::default()).unwrap();
    assert_eq!(world.send(request).await.status(), StatusCode::METHOD_NOT_ALLOWED);
    let request = world.request(Method::POST, "ana").header("mcp-protocol-version", "1999-01-01");
    assert_eq!(world.send(request.body(initialize()).unwrap()).await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_call_that_declares_its_version_needs_no_session() {
    let world = World::new().await;
    world.user("ana");
    let version = "2026-07-28";
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": { "name": "story", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "name": "box_list", "arguments": {}, "_meta": meta });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = world
        .request(Method::POST, "ana")
        .header("mcp-protocol-version", version)
        .header("mcp-method", "tools/call")
        .header("mcp-name", "box_list");
    let response = world.send(request.body(Full::new(message.to_string().into())).unwrap()).await;
    assert!(!response.headers().contains_key("mcp-session-id"));
    let answer = crate::setup::Stream::new(response).answer().await;
    assert_eq!(answer["result"]["structuredContent"], json!({ "boxes": [] }), "{answer}");
}
