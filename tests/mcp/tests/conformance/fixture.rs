//! The tools, prompts and resources that the suite calls by name.
#![expect(deprecated, reason = "the revision that is tested has what later ones have not")]

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientResult, CompleteRequestParams,
    CompleteResult, CreateMessageRequest, ElicitRequest, GetPromptRequestParams, GetPromptResponse,
    GetPromptResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    LoggingMessageNotification, LoggingMessageNotificationParam, PaginatedRequestParams,
    ProgressNotificationParam, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
    ServerConfig, ServerNotification, ServerRequest, SetLevelRequestParams, SubscribeRequestParams,
    UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, ServiceError};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A red dot.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg==";
/// Silence.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";
const PAUSE: Duration = Duration::from_millis(50);

/// The server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixture;

type Context = RequestContext<RoleServer>;

/// Reads one of the protocol's messages, as it is on the wire.
fn message<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn failed(error: ServiceError) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn tool(name: &str, properties: Value) -> Value {
    json!({
        "name": name,
        "description": "A fixture of the conformance suite.",
        "inputSchema": { "type": "object", "properties": properties },
    })
}

fn schema_2020_12() -> Value {
    json!({
        "name": "json_schema_2020_12_tool",
        "description": "A fixture whose schema uses much of JSON Schema 2020-12.",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": { "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
            } },
            "properties": {
                "name": { "type": "string" },
                "address": { "$ref": "#/$defs/address" },
                "contactMethod": { "type": "string", "enum": ["phone", "email"] },
                "phone": { "type": "string" },
                "email": { "type": "string" },
            },
            "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
            "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
            "then": { "required": ["phone"] },
            "else": { "required": ["email"] },
            "additionalProperties": false,
        },
    })
}

/// What a person is asked for by default.
fn with_defaults() -> Value {
    json!({ "type": "object", "required": [], "properties": {
        "name": { "type": "string", "default": "John Doe" },
        "age": { "type": "integer", "default": 30 },
        "score": { "type": "number", "default": 95.5 },
        "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
        "verified": { "type": "boolean", "default": true },
    } })
}

/// Each way in which a choice can be spelled.
fn choices() -> Value {
    let plain = json!(["option1", "option2", "option3"]);
    let titled = json!([
        { "const": "value1", "title": "First" },
        { "const": "value2", "title": "Second" },
        { "const": "value3", "title": "Third" },
    ]);
    json!({ "type": "object", "required": [], "properties": {
        "untitledSingle": { "type": "string", "enum": plain },
        "titledSingle": { "type": "string", "oneOf": titled },
        "legacyEnum": {
            "type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"],
        },
        "untitledMulti": { "type": "array", "items": { "type": "string", "enum": plain } },
        "titledMulti": { "type": "array", "items": { "anyOf": titled } },
    } })
}

async fn log(context: &Context, line: &str) -> Result<(), ErrorData> {
    let param: LoggingMessageNotificationParam =
        message(json!({ "level": "info", "logger": "fixture", "data": line }))?;
    let notification = ServerNotification::LoggingMessageNotification(LoggingMessageNotification::new(param));
    context.peer.send_notification(notification).await.map_err(failed)
}

async fn progress(context: &Context, done: f64) -> Result<(), ErrorData> {
    let Some(token) = context.meta.get_progress_token() else { return Ok(()) };
    let param = ProgressNotificationParam::new(token, done).with_total(100.0);
    context.peer.notify_progress(param).await.map_err(failed)
}

/// Asks the client for what only its person can say.
async fn elicit(context: &Context, question: &str, schema: Value) -> Result<Value, ErrorData> {
    let params = message(json!({ "mode": "form", "message": question, "requestedSchema": schema }))?;
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
    match context.peer.send_request(request).await.map_err(failed)? {
        ClientResult::ElicitResult(result) => {
            let result = serde_json::to_value(result).unwrap_or_default();
            let (action, content) = (result["action"].as_str().unwrap_or_default(), &result["content"]);
            Ok(text(&format!("Elicitation completed: action={action}, content={content}")))
        }
        _ => Err(ErrorData::internal_error("that is no answer to the question", None)),
    }
}

async fn sample(context: &Context, prompt: &str) -> Result<Value, ErrorData> {
    let params = message(json!({
        "messages": [{ "role": "user", "content": { "type": "text", "text": prompt } }],
        "maxTokens": 100,
    }))?;
    let request = ServerRequest::CreateMessageRequest(CreateMessageRequest::new(params));
    match context.peer.send_request(request).await.map_err(failed)? {
        ClientResult::CreateMessageResult(result) => {
            let result = serde_json::to_value(result).unwrap_or_default();
            let said = result["content"]["text"].as_str().or(result["content"][0]["text"].as_str());
            Ok(text(&format!("LLM response: {}", said.unwrap_or_default())))
        }
        _ => Err(ErrorData::internal_error("that is no message of a model", None)),
    }
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        message(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {
                "tools": {}, "prompts": {}, "resources": { "subscribe": true }, "logging": {}, "completions": {},
            },
            "serverInfo": { "name": "cocoonbox-fixture", "version": env!("CARGO_PKG_VERSION") },
        }))
        .expect("it is what a server says of itself")
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        let prompt = json!({ "prompt": { "type": "string" } });
        let question = json!({ "message": { "type": "string" } });
        let plain = [
            "test_simple_text",
            "test_image_content",
            "test_audio_content",
            "test_embedded_resource",
            "test_multiple_content_types",
            "test_tool_with_logging",
            "test_error_handling",
            "test_tool_with_progress",
            "test_elicitation_sep1034_defaults",
            "test_elicitation_sep1330_enums",
            "test_reconnection",
        ];
        let mut tools: Vec<_> = plain.iter().map(|name| tool(name, json!({}))).collect();
        tools.extend([tool("test_sampling", prompt), tool("test_elicitation", question), schema_2020_12()]);
        message(json!({ "tools": tools }))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let image = json!({ "type": "image", "data": PNG, "mimeType": "image/png" });
        let result = match request.name.as_ref() {
            "test_simple_text" => text("This is a simple text response for testing."),
            "test_image_content" => json!({ "content": [image] }),
            "test_audio_content" => {
                json!({ "content": [{ "type": "audio", "data": WAV, "mimeType": "audio/wav" }] })
            }
            "test_embedded_resource" => json!({ "content": [{ "type": "resource", "resource": {
                "uri": "test://embedded-resource", "mimeType": "text/plain",
                "text": "This is an embedded resource content.",
            } }] }),
            "test_multiple_content_types" => json!({ "content": [
                { "type": "text", "text": "Multiple content types test:" },
                image,
                { "type": "resource", "resource": {
                    "uri": "test://mixed-content-resource", "mimeType": "application/json",
                    "text": "{\"test\":\"data\",\"value\":123}",
                } },
            ] }),
            "test_tool_with_logging" => {
                for line in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                    log(&context, line).await?;
                    tokio::time::sleep(PAUSE).await;
                }
                text("The tool has logged.")
            }
            "test_tool_with_progress" => {
                for done in [0.0, 50.0, 100.0] {
                    progress(&context, done).await?;
                    tokio::time::sleep(PAUSE).await;
                }
                text("The tool is done.")
            }
            "test_error_handling" => json!({
                "content": [{ "type": "text", "text": "This tool intentionally returns an error for testing" }],
                "isError": true,
            }),
            "test_sampling" => sample(&context, arguments["prompt"].as_str().unwrap_or("hello")).await?,
            "test_elicitation" => {
                let schema = json!({ "type": "object", "required": ["username", "email"], "properties": {
                    "username": { "type": "string", "description": "User's response" },
                    "email": { "type": "string", "description": "User's email address" },
                } });
                elicit(&context, arguments["message"].as_str().unwrap_or("who are you?"), schema).await?
            }
            "test_elicitation_sep1034_defaults" => elicit(&context, "all of it?", with_defaults()).await?,
            "test_elicitation_sep1330_enums" => elicit(&context, "which?", choices()).await?,
            "test_reconnection" => {
                tokio::time::sleep(PAUSE).await;
                text("The stream held.")
            }
            "json_schema_2020_12_tool" => text(&format!("Called with {arguments}")),
            _ => return Err(ErrorData::invalid_params("there is no such tool", None)),
        };
        Ok(CallToolResponse::Complete(message::<CallToolResult>(result)?))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        let one = |name: &str, kind: &str| {
            let uri = format!("test://{name}");
            json!({ "uri": uri, "name": name, "description": "A fixture.", "mimeType": kind })
        };
        message(json!({ "resources": [
            one("static-text", "text/plain"),
            one("static-binary", "image/png"),
            one("watched-resource", "text/plain"),
        ] }))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        message(json!({ "resourceTemplates": [{
            "uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json",
        }] }))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.as_str();
        let plain = |text: &str| json!({ "uri": uri, "mimeType": "text/plain", "text": text });
        let template = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let content = match (uri, template) {
            ("test://static-text", _) => plain("This is the content of the static text resource."),
            ("test://static-binary", _) => json!({ "uri": uri, "mimeType": "image/png", "blob": PNG }),
            ("test://watched-resource", _) => plain("Watched resource content"),
            (_, Some(id)) => {
                let data = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
                json!({ "uri": uri, "mimeType": "application/json", "text": data.to_string() })
            }
            _ => {
                return Err(ErrorData::resource_not_found(
                    "there is no such resource",
                    Some(json!({ "uri": uri })),
                ));
            }
        };
        let result: ReadResourceResult = message(json!({ "contents": [content] }))?;
        Ok(ReadResourceResponse::Complete(result))
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        let argument = |name: &str| json!({ "name": name, "description": "An argument.", "required": true });
        let one = |name: &str, arguments: &[&str]| {
            let arguments: Vec<_> = arguments.iter().map(|name| argument(name)).collect();
            json!({ "name": name, "description": "A fixture.", "arguments": arguments })
        };
        message(json!({ "prompts": [
            one("test_simple_prompt", &[]),
            one("test_prompt_with_arguments", &["arg1", "arg2"]),
            one("test_prompt_with_embedded_resource", &["resourceUri"]),
            one("test_prompt_with_image", &[]),
        ] }))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let given = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
        let text = |text: String| json!({ "type": "text", "text": text });
        let contents = match request.name.as_str() {
            "test_simple_prompt" => vec![text("This is a simple prompt for testing.".to_owned())],
            "test_prompt_with_arguments" => {
                let (one, two) = (given("arg1"), given("arg2"));
                vec![text(format!("Prompt with arguments: arg1='{one}', arg2='{two}'"))]
            }
            "test_prompt_with_embedded_resource" => vec![
                json!({ "type": "resource", "resource": {
                    "uri": given("resourceUri"), "mimeType": "text/plain",
                    "text": "Embedded resource content for testing.",
                } }),
                text("Please process the embedded resource above.".to_owned()),
            ],
            "test_prompt_with_image" => vec![
                json!({ "type": "image", "data": PNG, "mimeType": "image/png" }),
                text("Please analyze the image above.".to_owned()),
            ],
            _ => return Err(ErrorData::invalid_params("there is no such prompt", None)),
        };
        let messages: Vec<_> =
            contents.into_iter().map(|content| json!({ "role": "user", "content": content })).collect();
        let result: GetPromptResult = message(json!({ "messages": messages }))?;
        Ok(GetPromptResponse::Complete(result))
    }

    async fn complete(&self, _: CompleteRequestParams, _: Context) -> Result<CompleteResult, ErrorData> {
        message(json!({ "completion": { "values": [], "total": 0, "hasMore": false } }))
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }
}
