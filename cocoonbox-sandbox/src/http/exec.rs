//! `POST /v1/sandboxes/{id}/exec`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use serde_json::json;

use super::access::{self, id};
use super::line::Line;
use super::{Answer, serve, wire};
use crate::node::{Code, Command, Node, Refusal};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecBody {
    argv: Vec<String>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    timeout_seconds: Option<i64>,
}

pub(super) async fn exec(State(node): State<Node>, Path(text): Path<String>, request: Request) -> Answer {
    let id = id(&text)?;
    access::own(&node, request.headers(), &id)?;
    let line = request.extensions().get::<Line>().cloned();
    let body: ExecBody = wire::parse(&serve::body(request).await?)?;
    if body.argv.first().is_none_or(String::is_empty) {
        return Err(Refusal::invalid("argv is empty"));
    }
    let timeout = match body.timeout_seconds {
        None | Some(0) => None,
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => return Err(Refusal::invalid("timeout_seconds is negative")),
        },
    };
    let cwd = body.cwd.filter(|cwd| !cwd.is_empty());
    let command = Command { argv: body.argv, cwd, env: body.env, timeout };
    // the server goes on for a client that only ended its side; here nobody then waits for the answer
    let left = async {
        match line {
            Some(line) => line.left().await,
            None => std::future::pending().await,
        }
    };
    let done = tokio::select! {
        done = node.exec(&id, command) => done?,
        () = left => return Err(Refusal::new(Code::Timeout, "the caller left")),
    };
    let reply = json!({
        "exit_code": done.code,
        "stdout": String::from_utf8_lossy(&done.stdout),
        "stderr": String::from_utf8_lossy(&done.stderr),
    });
    Ok(Json(reply).into_response())
}
