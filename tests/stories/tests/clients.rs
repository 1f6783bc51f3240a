//! Clients that other people wrote, with the server's reflection alone.

use cocoonbox_stories::{Server, buf, output, python};
use serde_json::Value;

#[test]
fn a_python_client_written_from_reflection_lists_and_ensures_boxes() {
    let server = Server::start();
    let address = format!("127.0.0.1:{}", server.port());
    let printed = output(python("boxes.py").arg(address), server.token().as_bytes()).ok();
    let mut told = serde_json::Map::new();
    for line in printed.lines() {
        let Ok(Value::Object(finding)) = serde_json::from_str(line) else { panic!("not a finding: {line}") };
        told.extend(finding);
    }
    let services: Vec<_> =
        told["services"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for service in ["cocoonbox.control.v1.Boxes", "cocoonbox.control.v1.SignIn", "grpc.health.v1.Health"] {
        assert!(services.contains(&service), "{service} is not among {services:?}");
    }
    assert_eq!(told["before"], Value::Array(Vec::new()));
    let phases: Vec<_> = told["events"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert_eq!((phases.first(), phases.last()), (Some(&"PHASE_CREATING"), Some(&"PHASE_DONE")), "{phases:?}");
    let sequences: Vec<_> =
        told["sequences"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    assert!(sequences.iter().copied().eq(1..=sequences.len() as u64), "{sequences:?}");
    assert_eq!(told["same_operation"], true);
    assert_eq!(told["operation_when_running"], "");
    assert_eq!(told["names"], serde_json::json!(["main"]));
    assert_eq!(told["states"], serde_json::json!(["BOX_STATE_RUNNING"]));
    assert_eq!(told["wrong_token"], "UNAUTHENTICATED");
    assert_eq!(told["malformed_token"], "UNAUTHENTICATED");
    assert_eq!(told["unknown_box"], "NOT_FOUND");
    assert_eq!(told["bad_name"], "INVALID_ARGUMENT");
    assert!(
        ["FAILED_PRECONDITION", "INVALID_ARGUMENT"]
            .contains(&told["unconfirmed"].as_str().unwrap_or_default())
    );
    assert_eq!(told["save"], "OK");
}

#[test]
fn buf_curl_lists_and_ensures_boxes() {
    let server = Server::start();
    let header = format!("authorization: Bearer {}", server.token());
    let call = |method: &str, body: &str| {
        let url = format!("{}/cocoonbox.control.v1.Boxes/{method}", server.endpoint());
        output(buf().args(["-H", &header, "-d", body, &url]), b"")
    };

    let methods = output(buf().args(["--list-methods", &server.endpoint()]), b"").ok();
    assert!(methods.contains("cocoonbox.control.v1.Boxes/Ensure"), "{methods}");

    let reply: Value =
        serde_json::from_str(&call("Ensure", r#"{"wait":true}"#).ok()).expect("buf prints JSON");
    assert_eq!(reply["box"]["name"], "main");
    assert_eq!(reply["event"]["phase"], "PHASE_DONE");
    let listed: Value = serde_json::from_str(&call("List", "{}").ok()).expect("buf prints JSON");
    assert_eq!(listed["boxes"][0]["state"], "BOX_STATE_RUNNING");

    let without = output(
        buf().args(["-d", "{}", &format!("{}/cocoonbox.control.v1.Boxes/List", server.endpoint())]),
        b"",
    );
    assert!(without.code != Some(0) && without.stderr.contains("unauthenticated"), "{without:?}");
}
