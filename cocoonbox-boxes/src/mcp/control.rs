//! The control MCP's server: nine tools over the engine.

use futures::StreamExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CustomRequest, CustomResult, ErrorCode,
    Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ProgressToken, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

use cocoonbox_core::backend::HibernateTo;
use cocoonbox_core::machine::{BoxRecord, OperationEvent, Phase};
use cocoonbox_core::{BoxName, ImageName, NameError, Timestamp};

use super::argument::{self, Create, Delete, Ensure, Nothing, Upgrade, Which};
use super::error::Failure;
use super::tool;
use crate::engine::{Confirm, Started, check};
use crate::usage::Spent;
use crate::{Caller, Engine, EngineError};

/// The most boxes that are listed: more than a node holds.
const MAX_LISTED: usize = 10_000;

/// What is told of the server as a whole.
const INSTRUCTIONS: &str =
    "A box is the user's own Linux machine on this server. It keeps its files while it sleeps.";

/// The server; clones share one engine.
#[derive(Clone, Debug)]
pub(super) struct Control {
    engine: Engine,
}

impl Control {
    pub(super) fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

impl ServerHandler for Control {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("cocoonbox", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if request.is_some_and(|request| request.cursor.is_some()) {
            return Err(ErrorData::invalid_params("there is no page after the first", None));
        }
        Ok(ListToolsResult::with_all_items(tool::all().to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tool::named(name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let parts = context.extensions.get::<http::request::Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>()).cloned();
        // the door lets nobody else in
        let caller = caller.ok_or_else(|| ErrorData::internal_error("nobody calls", None))?;
        let ended = caller.ended.clone();
        let told = context.meta.get_progress_token().map(|token| (context.peer.clone(), token));
        let call = Call { engine: self.engine.acting_for(caller.agent.as_ref()), caller, told };
        let arguments = request.arguments.unwrap_or_default();
        let done = tokio::select! {
            biased;
            // what was begun goes on, and nobody is told of it here
            () = ended.cancelled() => return Err(ErrorData::internal_error("the token of this call has ended", None)),
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("the call was cancelled", None)),
            done = call.run(&request.name, arguments) => done,
        };
        done.or_else(Failure::into_result).map(CallToolResponse::from)
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // a method that there is comes here when its parameters are none of its own
        if ["initialize", "ping", "tools/list", "tools/call"].contains(&request.method.as_str()) {
            return Err(ErrorData::invalid_params("the parameters do not match the method", None));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "there is no such method", None))
    }
}

/// One call of a tool.
struct Call {
    /// The engine, as the caller's agent has it.
    engine: Engine,
    caller: Caller,
    /// Who is told how far it is, and under which token.
    told: Option<(Peer<RoleServer>, ProgressToken)>,
}

/// How an operation ended.
struct Ended {
    operation: String,
    /// How many bytes its save had.
    bytes: u64,
}

type Done = Result<CallToolResult, Failure>;

impl Call {
    async fn run(&self, name: &str, arguments: JsonObject) -> Done {
        let done = match name {
            "box_list" => self.list(argument::read(arguments)?).await?,
            "box_status" => self.status(argument::read(arguments)?).await?,
            "box_ensure" => self.ensure(argument::read(arguments)?).await?,
            "box_create" => self.create(argument::read(arguments)?).await?,
            "box_hibernate" => self.hibernate(argument::read(arguments)?).await?,
            "box_save" => self.save(argument::read(arguments)?).await?,
            "box_upgrade" => self.upgrade(argument::read(arguments)?).await?,
            "box_delete" => self.delete(argument::read(arguments)?).await?,
            "usage" => self.usage(argument::read(arguments)?).await?,
            _ => return Err(ErrorData::invalid_params("there is no such tool", None).into()),
        };
        Ok(CallToolResult::structured(done))
    }

    async fn list(&self, _: Nothing) -> Result<Value, Failure> {
        let page = self.engine.list(&self.caller.user, None, MAX_LISTED).await?;
        let one = |record: &BoxRecord| {
            json!({
                "box_id": record.id.as_str(),
                "name": record.name.as_str(),
                "state": record.state.as_str(),
                "image": record.image.as_str(),
                "last_saved_at_ms": millis(record.last_saved_at),
            })
        };
        Ok(json!({ "boxes": page.boxes.iter().map(one).collect::<Vec<_>>() }))
    }

    async fn status(&self, which: Which) -> Result<Value, Failure> {
        let Some(record) = self.engine.get(&self.caller.user, which.hint()).await? else {
            return Ok(json!({
                "box_id": "", "name": "", "state": "absent", "image": "", "latest_image": "",
                "upgrade_available": false, "last_saved_at_ms": 0,
            }));
        };
        let latest = self.engine.config().latest_of(&record.image);
        Ok(json!({
            "box_id": record.id.as_str(),
            "name": record.name.as_str(),
            "state": record.state.as_str(),
            "image": record.image.as_str(),
            "latest_image": latest.as_str(),
            "upgrade_available": *latest != record.image,
            "last_saved_at_ms": millis(record.last_saved_at),
        }))
    }

    async fn ensure(&self, asked: Ensure) -> Result<Value, Failure> {
        let hint = asked.r#box.as_deref().unwrap_or_default();
        let started = self.engine.ensure(&self.caller.user, self.caller.limits, hint, None).await?;
        let operation = self.ended_or_begun(&started, asked.wait).await?;
        let record = self.after(&started, asked.wait).await?;
        Ok(json!({ "box_id": record.id.as_str(), "state": record.state.as_str(), "operation_id": operation }))
    }

    async fn create(&self, asked: Create) -> Result<Value, Failure> {
        let name: BoxName = asked.name.parse().map_err(invalid("name"))?;
        let image = asked.image.filter(|image| !image.is_empty());
        let image: Option<ImageName> =
            image.map(|image| image.parse()).transpose().map_err(invalid("image"))?;
        let (user, limits) = (&self.caller.user, self.caller.limits);
        let started = self.engine.create(user, limits, Some(name), image, None).await?;
        let operation = self.ended_or_begun(&started, asked.wait).await?;
        let record = self.after(&started, asked.wait).await?;
        Ok(json!({
            "box_id": record.id.as_str(),
            "name": record.name.as_str(),
            "state": record.state.as_str(),
            "operation_id": operation,
        }))
    }

    async fn hibernate(&self, which: Which) -> Result<Value, Failure> {
        let (user, to) = (&self.caller.user, HibernateTo::Memory);
        let started = self.engine.hibernate(user, which.hint(), to, None).await?;
        let ended = self.end(&started).await?;
        let record = self.after(&started, true).await?;
        Ok(json!({
            "box_id": record.id.as_str(), "state": record.state.as_str(), "operation_id": ended.operation,
        }))
    }

    async fn save(&self, which: Which) -> Result<Value, Failure> {
        let started = self.engine.save(&self.caller.user, which.hint(), None).await?;
        let ended = self.end(&started).await?;
        let record = self.after(&started, true).await?;
        Ok(json!({
            "box_id": record.id.as_str(),
            "last_saved_at_ms": millis(record.last_saved_at),
            "operation_id": ended.operation,
            "bytes": ended.bytes,
        }))
    }

    async fn upgrade(&self, asked: Upgrade) -> Result<Value, Failure> {
        let hint = asked.r#box.as_deref().unwrap_or_default();
        let (user, limits) = (&self.caller.user, self.caller.limits);
        let none = || EngineError::NotFound { what: "box yet: ensure one to make it".to_owned() };
        let record = self.engine.get(user, hint).await?.ok_or_else(none)?;
        let latest = self.engine.config().latest_of(&record.image).clone();
        let id = record.id.as_str();
        let started =
            self.engine.rebase(user, limits, id, Some(latest), confirmed(asked.confirm), None).await?;
        let ended = self.end(&started).await?;
        let record = self.after(&started, true).await?;
        Ok(json!({
            "box_id": record.id.as_str(),
            "state": record.state.as_str(),
            "image": record.image.as_str(),
            "operation_id": ended.operation,
        }))
    }

    async fn delete(&self, asked: Delete) -> Result<Value, Failure> {
        let (user, confirm) = (&self.caller.user, confirmed(asked.confirm));
        let started = self.engine.delete(user, &asked.r#box, confirm, None).await?;
        let ended = self.end(&started).await?;
        Ok(json!({ "box_id": started.box_id.as_str(), "operation_id": ended.operation }))
    }

    async fn usage(&self, _: Nothing) -> Result<Value, Failure> {
        let models = self.engine.usage(&self.caller.user, self.caller.limits).await?.models;
        Ok(json!({
            "today": spent(models.today),
            "month": spent(models.month),
            "daily_cap_micros": models.daily_cap_micros,
            "default_cap": models.default_cap,
            "remaining_today_micros": models.remaining_today_micros(),
        }))
    }

    async fn ended_or_begun(&self, started: &Started, wait: bool) -> Result<String, Failure> {
        if wait {
            return Ok(self.end(started).await?.operation);
        }
        Ok(started.operation.as_ref().map(ToString::to_string).unwrap_or_default())
    }

    /// Follows what was begun to its end, and tells of each event who asked to be told.
    async fn end(&self, started: &Started) -> Result<Ended, Failure> {
        let Some(mut events) = self.engine.follow(started) else {
            return Ok(Ended { operation: String::new(), bytes: 0 });
        };
        let (mut bytes, mut last) = (0, None);
        while let Some(event) = events.next().await {
            let event = event?;
            self.tell(&event).await;
            if matches!(event.phase, Phase::Saving | Phase::Done) && event.bytes.total > 0 {
                bytes = event.bytes.total;
            }
            last = Some(event);
        }
        let last = last.filter(|last| last.phase.is_last()).ok_or(EngineError::Contended)?;
        let operation = check(last)?.operation.to_string();
        Ok(Ended { operation, bytes })
    }

    async fn tell(&self, event: &OperationEvent) {
        let Some((peer, token)) = &self.told else { return };
        let message = format!("{}: {}", event.phase.as_str(), event.message);
        let progress = ProgressNotificationParam::new(token.clone(), event.sequence as f64);
        // who went away is told nothing; the operation goes on
        if let Err(error) = peer.notify_progress(progress.with_message(message)).await {
            tracing::debug!(%error, "an agent was not told how far an operation is");
        }
    }

    /// Returns the box as it stands: after an operation that was waited for, and otherwise as it was left at its begin.
    async fn after(&self, started: &Started, waited: bool) -> Result<BoxRecord, Failure> {
        if let (false, Some(record)) = (waited, &started.record) {
            return Ok(record.clone());
        }
        let found = self.engine.get(&self.caller.user, started.box_id.as_str()).await?;
        Ok(found.ok_or(EngineError::Contended)?)
    }
}

fn confirmed(confirm: bool) -> Confirm {
    if confirm { Confirm::Yes } else { Confirm::No }
}

fn invalid(field: &'static str) -> impl FnOnce(NameError) -> EngineError {
    move |error| EngineError::Invalid { field, reason: error.rule.to_owned() }
}

fn millis(at: Option<Timestamp>) -> i64 {
    at.map_or(0, Timestamp::millis)
}

fn spent(spent: Spent) -> Value {
    json!({
        "calls": spent.calls,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "cost_micros": spent.cost_micros,
    })
}
