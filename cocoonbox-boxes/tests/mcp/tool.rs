//! What each tool does and answers.

use std::time::Duration;

use cocoonbox_boxes::usage::{ModelCall, UsageStore as _};
use cocoonbox_core::Clock as _;
use cocoonbox_core::backend::{Fault, Method};
use cocoonbox_core::machine::Phase;
use serde_json::{Value, json};

use crate::setup::{Client, NEW, OLD, World};

/// Holds that `value` is what `schema` says, as far as our schemas say anything.
fn matches(schema: &Value, value: &Value, at: &str) {
    match schema["type"].as_str().unwrap() {
        "string" => assert!(value.is_string(), "{at}: {value}"),
        "integer" => assert!(value.is_i64() || value.is_u64(), "{at}: {value}"),
        "boolean" => assert!(value.is_boolean(), "{at}: {value}"),
        "array" => {
            for item in value.as_array().unwrap_or_else(|| panic!("{at}: {value}")) {
                matches(&schema["items"], item, at);
            }
        }
        "object" => {
            let members = value.as_object().unwrap_or_else(|| panic!("{at}: {value}"));
            let properties = schema["properties"].as_object().unwrap();
            assert!(members.keys().eq(properties.keys()), "{at}: {value}");
            for (name, member) in members {
                matches(&properties[name], member, &format!("{at}.{name}"));
            }
        }
        other => panic!("{at}: {other}"),
    }
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(value), "{at}: {value}");
    }
}

/// Calls a tool that does what it is asked, and holds the answer against what the tool says of its answers.
async fn done(client: &Client<'_>, tool: &str, arguments: Value) -> Value {
    let listed = client.ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let known = tools.iter().find(|known| known["name"] == tool).unwrap();
    let answer = client.done(tool, arguments).await;
    matches(&known["outputSchema"], &answer, tool);
    answer
}

fn is_operation(value: &Value) -> bool {
    value.as_str().is_some_and(|id| id.starts_with("op_"))
}

#[tokio::test]
async fn a_box_goes_through_its_life_by_tools_alone() {
    let world = World::new().await;
    world.user("ana");
    let ana = world.open("ana").await;
    assert_eq!(done(&ana, "box_list", json!({})).await, json!({ "boxes": [] }));
    let absent = json!({
        "box_id": "", "name": "", "state": "absent", "image": "", "latest_image": "",
        "upgrade_available": false, "last_saved_at_ms": 0,
    });
    assert_eq!(done(&ana, "box_status", json!({})).await, absent);

    let made = done(&ana, "box_ensure", json!({})).await;
    assert_eq!(made["state"], "running");
    assert!(is_operation(&made["operation_id"]));
    let again = done(&ana, "box_ensure", json!({ "box": "main" })).await;
    assert_eq!((&again["box_id"], &again["operation_id"]), (&made["box_id"], &json!("")));
    world.clock.advance(Duration::from_secs(1));

    let second = done(&ana, "box_create", json!({ "name": "two", "image": OLD })).await;
    assert_eq!((&second["name"], &second["state"]), (&json!("two"), &json!("running")));
    let status = done(&ana, "box_status", json!({ "box": "two" })).await;
    let expected = json!({
        "box_id": second["box_id"], "name": "two", "state": "running", "image": OLD, "latest_image": NEW,
        "upgrade_available": true, "last_saved_at_ms": 0,
    });
    assert_eq!(status, expected);

    let saved = done(&ana, "box_save", json!({ "box": "two" })).await;
    assert_eq!(saved["last_saved_at_ms"], world.clock.now().millis());
    assert!(is_operation(&saved["operation_id"]));
    let upgraded = done(&ana, "box_upgrade", json!({ "box": second["box_id"], "confirm": true })).await;
    assert_eq!((&upgraded["image"], &upgraded["state"]), (&json!(NEW), &json!("running")));
    let slept = done(&ana, "box_hibernate", json!({ "box": "two" })).await;
    assert_eq!(slept["state"], "hibernated");

    let listed = done(&ana, "box_list", json!({})).await;
    let names: Vec<_> = listed["boxes"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["main", "two"], "the oldest is the first");
    let gone = done(&ana, "box_delete", json!({ "box": "two", "confirm": true })).await;
    assert_eq!(gone["box_id"], second["box_id"]);
    assert!(is_operation(&gone["operation_id"]));
    assert!(ana.refused("box_status", json!({ "box": "two" })).await.contains("no box two"));
}

#[tokio::test]
async fn what_cannot_be_done_is_a_result_that_says_why() {
    let world = World::new().await;
    world.user("ana");
    let ana = world.open("ana").await;
    assert!(ana.refused("box_hibernate", json!({})).await.contains("ensure one"));
    ana.done("box_ensure", json!({})).await;
    world.clock.advance(Duration::from_secs(1));
    for (tool, arguments, expected) in [
        ("box_status", json!({ "box": "other" }), "no box other"),
        ("box_status", json!({ "box": "Not A Name" }), "box: "),
        ("box_create", json!({ "name": "main" }), "already have a box called main"),
        ("box_create", json!({ "name": "Not A Name" }), "name: "),
        ("box_create", json!({ "name": "two", "image": "no image" }), "image: "),
        ("box_create", json!({ "name": "two", "image": "unknown:1" }), "unknown:1"),
        ("box_delete", json!({ "box": "main", "confirm": false }), "confirm"),
        ("box_delete", json!({ "box": "", "confirm": true }), "name the box"),
        ("box_upgrade", json!({ "confirm": false }), "confirm"),
        ("box_upgrade", json!({ "confirm": true }), "already"),
    ] {
        let reason = ana.refused(tool, arguments.clone()).await;
        assert!(reason.contains(expected), "{tool} {arguments}: {reason}");
    }
    // the one that did not start stays, and counts
    let reason = ana.refused("box_create", json!({ "name": "three" })).await;
    assert!(reason.contains("2 of 2 boxes"), "{reason}");
    world.backend.fail_next(Method::Hibernate, Fault::Before);
    assert!(!ana.refused("box_hibernate", json!({ "box": "main" })).await.is_empty());
    assert_eq!(ana.done("box_status", json!({})).await["state"], "running");
}

#[tokio::test]
async fn without_wait_a_tool_answers_at_once() {
    let world = World::new().await;
    let caller = world.user("ana");
    world.backend.fail_next(Method::Claim, Fault::Hang);
    let ana = world.open("ana").await;
    let begun = ana.done("box_ensure", json!({ "wait": false })).await;
    assert_eq!(begun["state"], "starting");
    assert!(is_operation(&begun["operation_id"]));
    world.backend.fail_next(Method::Claim, Fault::Hang);
    let begun = ana.done("box_create", json!({ "name": "two", "wait": false })).await;
    assert_eq!((&begun["name"], &begun["state"]), (&json!("two"), &json!("starting")));
    let page = world.engine.list(&caller.user, None, 10).await.unwrap();
    assert_eq!(page.boxes.len(), 2);
}

#[tokio::test]
async fn who_gives_a_token_is_told_of_each_event_and_who_gives_none_waits_in_silence() {
    let world = World::new().await;
    let caller = world.user("ana");
    let ana = world.open("ana").await;
    let mut stream = ana.begin("box_ensure", json!({})).await;
    let (mut told, mut answer) = (Vec::new(), None);
    while let Some(message) = stream.next().await {
        match message["method"].as_str() {
            Some("notifications/progress") => {
                assert_eq!(message["params"]["progressToken"], "p");
                let progress = message["params"]["progress"].as_f64().unwrap();
                told.push((progress, message["params"]["message"].as_str().unwrap().to_owned()));
            }
            None => answer = Some(message),
            Some(other) => panic!("{other}"),
        }
    }
    let operation = answer.unwrap()["result"]["structuredContent"]["operation_id"].clone();
    let operation = operation.as_str().unwrap().parse().unwrap();
    let mut events = world.engine.watch(&caller.user, &operation, 0).await.unwrap();
    let mut expected = Vec::new();
    while let Some(event) = futures::StreamExt::next(&mut events).await {
        let event = event.unwrap();
        expected.push((event.sequence as f64, format!("{}: {}", event.phase.as_str(), event.message)));
    }
    assert_eq!(told, expected);
    assert!(told.len() > 1 && told.is_sorted_by(|one, next| one.0 < next.0), "{told:?}");
    assert!(told[told.len() - 1].1.starts_with(Phase::Done.as_str()));

    let message = json!({
        "jsonrpc": "2.0", "id": 8, "method": "tools/call",
        "params": { "name": "box_hibernate", "arguments": {} },
    });
    let mut stream = crate::setup::Stream::new(ana.post(&message).await);
    assert_eq!(stream.next().await.unwrap()["id"], 8, "nothing comes before the answer");
}

#[tokio::test]
async fn an_agent_has_the_boxes_of_its_grant_alone() {
    let world = World::new().await;
    let ana = world.user("ana");
    world.agent("one", &ana.user, 2, 1);
    world.agent("two", &ana.user, 2, 2);
    let (user, one, two) = (world.open("ana").await, world.open("one").await, world.open("two").await);
    let own = user.done("box_ensure", json!({})).await;
    let made = one.done("box_ensure", json!({})).await;
    assert_ne!(own["box_id"], made["box_id"]);
    assert_eq!(one.done("box_status", json!({})).await["box_id"], made["box_id"]);
    for hint in [&own["box_id"], &json!("main")] {
        for (tool, arguments) in [
            ("box_status", json!({ "box": hint })),
            ("box_ensure", json!({ "box": hint })),
            ("box_hibernate", json!({ "box": hint })),
            ("box_save", json!({ "box": hint })),
            ("box_upgrade", json!({ "box": hint, "confirm": true })),
            ("box_delete", json!({ "box": hint, "confirm": true })),
        ] {
            let reason = one.refused(tool, arguments).await;
            assert!(reason.starts_with("you have no box"), "{tool}: {reason}");
        }
    }
    assert!(
        two.refused("box_delete", json!({ "box": made["box_id"], "confirm": true })).await.contains("no box")
    );
    assert_eq!(two.done("box_status", json!({})).await["state"], "absent");
    let reason = one.refused("box_create", json!({ "name": "more" })).await;
    assert!(reason.contains("1 of the 1 boxes that this agent may run"), "{reason}");
    let reason = one.refused("box_create", json!({ "name": "main" })).await;
    assert!(reason.contains("called main"), "{reason}");
    let all = user.done("box_list", json!({})).await;
    assert_eq!(all["boxes"].as_array().unwrap().len(), 2, "its user sees what it made");
    one.done("box_delete", json!({ "box": made["box_id"], "confirm": true })).await;
    assert_eq!(one.done("box_list", json!({})).await, json!({ "boxes": [] }));
}

#[tokio::test]
async fn usage_is_the_users_whole_account() {
    let world = World::new().await;
    let ana = world.user("ana");
    world.agent("agent", &ana.user, 1, 1);
    let agent = world.open("agent").await;
    let nothing = json!({ "calls": 0, "input_tokens": 0, "output_tokens": 0, "cost_micros": 0 });
    let none = json!({
        "today": nothing, "month": nothing, "daily_cap_micros": 1_000_000, "default_cap": true,
        "remaining_today_micros": 1_000_000,
    });
    assert_eq!(done(&agent, "usage", json!({})).await, none);
    let call = ModelCall {
        user: ana.user.clone(),
        model: "large".to_owned(),
        input_tokens: 1200,
        output_tokens: 34,
        cost_micros: 70_000,
        at: world.clock.now(),
    };
    world.ledger.record(&call).await.unwrap();
    world.ledger.put_cap(&ana.user, Some(100_000)).await.unwrap();
    let spent = json!({ "calls": 1, "input_tokens": 1200, "output_tokens": 34, "cost_micros": 70_000 });
    let expected = json!({
        "today": spent, "month": spent, "daily_cap_micros": 100_000, "default_cap": false,
        "remaining_today_micros": 30_000,
    });
    assert_eq!(done(&agent, "usage", json!({})).await, expected);
}
