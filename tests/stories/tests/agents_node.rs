//! Clients in JavaScript that other people wrote, as agents of a person at a real server.

use cocoonbox_stories::{CONTROL_TOOLS, PASSWORD, Server, node_client, output, require, server_of_a_person};
use serde_json::{Value, json};

/// Runs a client to its end and returns what it saw.
fn seen(server: &Server, client: &str) -> Value {
    let mut command = node_client(client);
    command.arg(server.endpoint()).env("HOME", server.scratch()).env("PERSON_PASSWORD", PASSWORD);
    serde_json::from_str(&output(&mut command, b"").ok()).expect("JSON of what was seen")
}

#[test]
fn the_typescript_sdk_is_let_in_refreshes_and_is_shut_out() {
    let server = server_of_a_person();
    let seen = seen(&server, "sdk.mjs");
    let expected = json!({
        "discovery": [
            "POST /cocoonbox.mcp/control 401",
            "GET /.well-known/oauth-protected-resource/cocoonbox.mcp/control 200",
            "GET /.well-known/oauth-authorization-server 200",
            "POST /cocoonbox.oauth/register 201",
        ],
        "challenge": "/.well-known/oauth-protected-resource/cocoonbox.mcp/control",
        "asked": { "scope": "boxes", "resource": format!("{}/cocoonbox.mcp", server.endpoint()) },
        "exchange": ["POST /cocoonbox.oauth/token 200"],
        "server": "cocoonbox",
        "tools": CONTROL_TOOLS,
        "before": [],
        "made": "running",
        "last": "done: by-sdk is running",
        "after": ["by-sdk"],
        "second": [
            true,
            "1 of the 1 boxes that this agent may run at once are running: hibernate one, or ask the user to allow more",
        ],
        "unknown": -32602,
        "refreshed": ["by-sdk"],
        "refresh": [
            "POST /cocoonbox.mcp/control 401",
            "POST /cocoonbox.oauth/token 200",
            "POST /cocoonbox.mcp/control 200",
        ],
        "deleted": true,
        "end": ["DELETE /cocoonbox.mcp/control 204"],
        "ended": 404,
        "goes_on": [],
        "revocation": 200,
        "shut_out": [true, ["POST /cocoonbox.mcp/control 401", "POST /cocoonbox.oauth/token 400"], null],
    });
    assert_eq!(seen, expected);
}

#[test]
fn the_inspector_signs_in_at_a_terminal_and_gives_back_what_it_got() {
    require("script");
    let expected = json!({
        "nobody": [3, "auth_required"],
        "asked": true,
        "tools": CONTROL_TOOLS,
        "made": "running",
        "listed": ["by-inspector"],
        "refreshed": ["by-inspector"],
        "deleted": false,
        "again": true,
        "given_back": 401,
    });
    assert_eq!(seen(&server_of_a_person(), "inspector.mjs"), expected);
}

#[test]
fn a_strict_client_finds_no_fault_and_is_refused_by_the_right_names() {
    let no_token = json!([401, "bearer", "invalid_token"]);
    let expected = json!({
        "replayed_refresh": "invalid_grant",
        "newest_after_replay": "invalid_grant",
        "access_after_replay": no_token,
        "replayed_code": "invalid_grant",
        "refresh_after_code": "invalid_grant",
        "wrong_verifier": "invalid_grant",
        "foreign_resource": "invalid_target",
        "foreign_resource_of_token": "invalid_target",
        "account": "invalid_scope",
        "no": "access_denied",
        "revoked_refresh": "invalid_grant",
        "revoked_access": no_token,
    });
    assert_eq!(seen(&server_of_a_person(), "strict.mjs"), expected);
}

#[test]
fn a_client_of_openid_connect_does_without_an_id_token() {
    let expected = json!({
        "revoked_access": 401,
        "revoked_refresh": "invalid_grant",
        "no": "access_denied",
        "account": "invalid_scope",
        "another_verifier": "invalid_grant",
    });
    assert_eq!(seen(&server_of_a_person(), "openid.mjs"), expected);
}
