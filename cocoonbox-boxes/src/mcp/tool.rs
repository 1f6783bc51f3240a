//! The tools, as they are told to agents.

use std::sync::{Arc, LazyLock};

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

const BOX: &str = "The box's name or id; without it, your first box.";

/// How a tool acts on what is there.
#[derive(Clone, Copy)]
enum Acts {
    /// It only looks.
    Looks,
    /// It changes something, and nothing is lost.
    Changes,
    /// It ends programs or files.
    Destroys,
}

static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let which = json!({ "type": "string", "description": BOX });
    let wait = json!({
        "type": "boolean",
        "default": true,
        "description": "Whether to answer when it is done; false answers at once.",
    });
    let text = json!({ "type": "string" });
    let number = json!({ "type": "integer" });
    let flag = json!({ "type": "boolean" });
    let saved = json!({ "type": "integer", "description": "Milliseconds since 1970, UTC; 0 is never." });
    let state = json!({
        "type": "string",
        "enum": ["absent", "starting", "running", "hibernating", "hibernated", "failed"],
    });
    let operation = json!({ "type": "string", "description": "Empty when there was nothing to do." });
    let calls = closed(json!({
        "calls": number, "input_tokens": number, "output_tokens": number, "cost_micros": number,
    }));
    vec![
        tool(
            "box_list",
            "Lists your boxes, oldest first.",
            Acts::Looks,
            input(json!({}), &[]),
            closed(json!({ "boxes": { "type": "array", "items": closed(json!({
                "box_id": text, "name": text, "state": state, "image": text, "last_saved_at_ms": saved,
            })) } })),
        ),
        tool(
            "box_status",
            "Says how a box is: whether it runs, which image it has and whether there is a newer one, and when it was last \
             saved. Without any box the state is absent.",
            Acts::Looks,
            input(json!({ "box": which }), &[]),
            closed(json!({
                "box_id": text, "name": text, "state": state, "image": text, "latest_image": text,
                "upgrade_available": flag, "last_saved_at_ms": saved,
            })),
        ),
        tool(
            "box_ensure",
            "Brings a box to running: wakes it, starts it, or makes your first one.",
            Acts::Changes,
            input(json!({ "box": which, "wait": wait }), &[]),
            closed(json!({ "box_id": text, "state": state, "operation_id": operation })),
        ),
        tool(
            "box_create",
            "Makes a new box and starts it.",
            Acts::Changes,
            input(
                json!({
                    "name": { "type": "string", "description": "What to call it; no other box may have the name." },
                    "image": { "type": "string", "description": "What it runs; without it, the server's default." },
                    "wait": wait,
                }),
                &["name"],
            ),
            closed(json!({ "box_id": text, "name": text, "state": state, "operation_id": operation })),
        ),
        tool(
            "box_hibernate",
            "Puts a running box to sleep. Its files stay; its programs go on at the next box_ensure where the server can keep \
             them, and otherwise start anew.",
            Acts::Changes,
            input(json!({ "box": which }), &[]),
            closed(json!({ "box_id": text, "state": state, "operation_id": operation })),
        ),
        tool(
            "box_save",
            "Saves the files of a running box, so that they outlive its machine.",
            Acts::Changes,
            input(json!({ "box": which }), &[]),
            closed(json!({
                "box_id": text, "last_saved_at_ms": saved, "operation_id": operation,
                "bytes": { "type": "integer", "description": "How much there was to save; 0 when nothing moved." },
            })),
        ),
        tool(
            "box_upgrade",
            "Moves a box to its latest image. Its files stay and its programs end, so ask the user before you confirm.",
            Acts::Destroys,
            input(
                json!({
                    "box": which,
                    "confirm": { "type": "boolean", "description": "Must be true: the programs in the box end." },
                }),
                &["confirm"],
            ),
            closed(json!({ "box_id": text, "state": state, "image": text, "operation_id": operation })),
        ),
        tool(
            "box_delete",
            "Deletes a box with all its files and saves; nothing brings them back. Ask the user before you confirm.",
            Acts::Destroys,
            input(
                json!({
                    "box": { "type": "string", "description": "The box's name or id." },
                    "confirm": { "type": "boolean", "description": "Must be true: everything in the box is lost." },
                }),
                &["box", "confirm"],
            ),
            closed(json!({ "box_id": text, "operation_id": operation })),
        ),
        tool(
            "usage",
            "Says what the user's model calls cost today and this month (UTC), in millionths of a dollar, and what a day's \
             may cost. It is the user's whole account, not your part of it.",
            Acts::Looks,
            input(json!({}), &[]),
            closed(json!({
                "today": calls, "month": calls,
                "daily_cap_micros": { "type": "integer", "description": "0 is no cap." },
                "default_cap": { "type": "boolean", "description": "Whether it is the server's cap rather than the user's own." },
                "remaining_today_micros": { "type": "integer", "description": "0 where there is no cap, too." },
            })),
        ),
    ]
});

/// Returns the tools in the order in which agents are told of them.
pub(super) fn all() -> &'static [Tool] {
    &TOOLS
}

/// Returns a tool by its name.
pub(super) fn named(name: &str) -> Option<&'static Tool> {
    all().iter().find(|tool| tool.name == name)
}

fn tool(name: &'static str, description: &'static str, acts: Acts, input: Value, output: Value) -> Tool {
    // what is in a box is no open world: nothing but the user's boxes is reached
    let hints = ToolAnnotations::new().open_world(false);
    let hints = match acts {
        Acts::Looks => hints.read_only(true),
        Acts::Changes => hints.read_only(false).destructive(false),
        Acts::Destroys => hints.read_only(false).destructive(true),
    };
    Tool::new(name, description, object(input)).with_raw_output_schema(object(output)).with_annotations(hints)
}

fn object(schema: Value) -> Arc<JsonObject> {
    match schema {
        Value::Object(schema) => Arc::new(schema),
        other => unreachable!("{other} is no schema of an object"),
    }
}

fn input(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// An object that has all of its members, and no other.
fn closed(properties: Value) -> Value {
    let required: Vec<_> = properties.as_object().into_iter().flatten().map(|(name, _)| name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::{env, fs};

    use super::*;

    /// What agents are told is a contract: it changes on purpose, together with its fixture.
    #[test]
    fn the_tools_are_what_they_were() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/mcp-control-v1.json");
        let told = serde_json::to_string_pretty(all()).unwrap() + "\n";
        if env::var_os("COCOONBOX_REGENERATE").is_some() {
            fs::write(&path, &told).unwrap();
        }
        assert_eq!(told, fs::read_to_string(&path).unwrap(), "{}", path.display());
    }

    #[test]
    fn a_tool_is_found_by_its_name() {
        assert_eq!(named("box_list").map(|tool| tool.name.as_ref()), Some("box_list"));
        assert!(named("box_lis").is_none());
        assert_eq!(all().len(), 9);
    }
}
