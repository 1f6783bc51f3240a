//! The control MCP for programs that speak MCP over their standard streams: each line goes to the server with the
//! caller's token, and what comes back is a line again.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tonic::codegen::http::{HeaderValue, Method, Request, StatusCode, header};
use tower::Service as _;

use crate::{Client, ClientError};

/// Where the control MCP is.
const PATH: &str = "/cocoonbox.mcp/control";
const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
/// The longest message, as the server takes it.
const MESSAGE_MAX: usize = 1 << 20;
/// Messages under way at once; more wait.
const AT_ONCE: usize = 32;

/// What the server and the client agreed on.
#[derive(Clone, Debug, Default)]
struct Agreed {
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
}

/// Carries messages between a program's streams and the control MCP until the program's end; returns how many it sent.
///
/// # Behavior
/// - A message is one line of JSON; one that is not, or is over 1 MiB, is answered as JSON-RPC answers it (-32700).
/// - What the server does not answer is answered with an error of the id that was asked (-32603), so that nobody waits for
///   ever; the session is ended with the program.
///
/// # Errors
/// The streams fail. A server that cannot be reached is told in answers.
pub async fn bridge(
    client: &Client,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> std::io::Result<u64> {
    let agreed = Arc::new(Mutex::new(Agreed::default()));
    let (lines, mut answers) = mpsc::channel::<String>(AT_ONCE);
    let written = async {
        let mut output = pin!(output);
        while let Some(line) = answers.recv().await {
            output.write_all(line.as_bytes()).await?;
            output.write_all(b"\n").await?;
            output.flush().await?;
        }
        Ok::<_, std::io::Error>(())
    };
    let read = async {
        let lines = lines;
        let mut input = BufReader::new(input);
        let mut open = FuturesUnordered::new();
        let mut sent = 0;
        loop {
            let line = tokio::select! {
                Some(()) = open.next() => continue,
                line = next_line(&mut input), if open.len() < AT_ONCE => line?,
            };
            let Some(line) = line else { break };
            let read = line.as_deref().map(serde_json::from_slice::<Value>);
            let Some(Ok(message @ (Value::Object(_) | Value::Array(_)))) = read else {
                let _ = lines.send(error(&Value::Null, -32700, "this line is no message")).await;
                continue;
            };
            sent += 1;
            let one = exchange(client, Arc::clone(&agreed), message.clone(), lines.clone());
            if message["method"] == "initialize" {
                // what follows needs the session that it begins
                one.await;
            } else {
                open.push(one);
            }
        }
        while open.next().await.is_some() {}
        end(client, &agreed).await;
        Ok::<_, std::io::Error>(sent)
    };
    let (sent, written) = tokio::join!(read, written);
    written?;
    sent
}

/// Reads a line; `Some(None)` is one that is too long, none the end.
async fn next_line(
    input: &mut BufReader<impl AsyncRead + Unpin>,
) -> std::io::Result<Option<Option<Vec<u8>>>> {
    let (mut line, mut over) = (Vec::new(), false);
    loop {
        let part = input.fill_buf().await?;
        if part.is_empty() {
            return Ok((!line.is_empty() || over).then_some((!over).then_some(line)));
        }
        let end = part.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(part.len(), |end| end + 1);
        over |= line.len() + taken > MESSAGE_MAX;
        if !over {
            line.extend_from_slice(&part[..taken]);
        }
        input.consume(taken);
        if end.is_some() {
            if !over && line.iter().all(u8::is_ascii_whitespace) {
                line.clear();
                continue;
            }
            return Ok(Some((!over).then_some(line)));
        }
    }
}

fn error(id: &Value, code: i32, message: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } }).to_string()
}

fn lock(agreed: &Mutex<Agreed>) -> std::sync::MutexGuard<'_, Agreed> {
    agreed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends one message and hands its answers on.
async fn exchange(client: &Client, agreed: Arc<Mutex<Agreed>>, message: Value, lines: mpsc::Sender<String>) {
    let id = message.get("id").filter(|_| message.get("method").is_some()).cloned();
    let answered = ask(client, &agreed, &message, &lines).await;
    let Some(id) = id else { return };
    let refusal = match answered {
        Ok(true) => return,
        Ok(false) => "the server did not answer".to_owned(),
        Err(refusal) => refusal,
    };
    let _ = lines.send(error(&id, -32603, &refusal)).await;
}

/// Returns whether a request was answered.
async fn ask(
    client: &Client,
    agreed: &Mutex<Agreed>,
    message: &Value,
    lines: &mpsc::Sender<String>,
) -> Result<bool, String> {
    let initialize = message["method"] == "initialize";
    let request = Request::builder()
        .method(Method::POST)
        .uri(PATH)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream");
    let answer = send(client, agreed, request, message.to_string().into()).await?;
    match answer.status() {
        StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(false),
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED => return Err("not signed in: `cocoonbox login` signs in".to_owned()),
        StatusCode::NOT_FOUND => return Err("the session is over: initialize anew".to_owned()),
        status => return Err(format!("the server answered {status}")),
    }
    if initialize {
        lock(agreed).session = answer.headers().get(SESSION).cloned();
    }
    let kind =
        answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let stream = kind.starts_with("text/event-stream");
    let mut body = answer.into_body();
    let (mut held, mut answered) = (Vec::new(), false);
    loop {
        let part = match body.frame().await {
            None => break,
            Some(Err(_)) => return Err("the connection to the server was lost".to_owned()),
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        held.extend_from_slice(&part);
        if held.len() > 8 * MESSAGE_MAX {
            return Err("the server's answer is too long".to_owned());
        }
        if stream {
            while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = held.drain(..=end).collect();
                if let Some(data) = line.strip_prefix(b"data:") {
                    answered |= told(data, message, agreed, lines).await;
                }
            }
        }
    }
    if !stream {
        answered = told(&held, message, agreed, lines).await;
    }
    Ok(answered)
}

/// Hands one message of the server on; returns whether it is the answer to `asked`.
async fn told(bytes: &[u8], asked: &Value, agreed: &Mutex<Agreed>, lines: &mpsc::Sender<String>) -> bool {
    let Ok(message) = serde_json::from_slice::<Value>(bytes.trim_ascii()) else { return false };
    if let Some(version) = message["result"]["protocolVersion"].as_str() {
        lock(agreed).version = HeaderValue::from_str(version).ok();
    }
    let answers = message.get("id").is_some() && message.get("id") == asked.get("id");
    // whoever reads may be gone
    let _ = lines.send(message.to_string()).await;
    answers
}

async fn end(client: &Client, agreed: &Mutex<Agreed>) {
    if lock(agreed).session.is_some() {
        // the server ends one that nobody uses by itself
        let _ = send(client, agreed, Request::builder().method(Method::DELETE).uri(PATH), Bytes::new()).await;
    }
}

async fn send(
    client: &Client,
    agreed: &Mutex<Agreed>,
    mut request: tonic::codegen::http::request::Builder,
    body: Bytes,
) -> Result<tonic::codegen::http::Response<tonic::body::Body>, String> {
    {
        let agreed = lock(agreed);
        for (name, value) in [(SESSION, &agreed.session), (VERSION, &agreed.version)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
    }
    if let Some(value) = client.bearer() {
        request = request.header(header::AUTHORIZATION, value);
    }
    let body = tonic::body::Body::new(Full::new(body).map_err(|never| match never {}));
    let request = request.body(body).map_err(|_| "the message cannot be sent".to_owned())?;
    let unreachable =
        |source| ClientError::Unreachable { endpoint: client.endpoint().clone(), source }.to_string();
    let mut channel = client.channel();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(unreachable)?;
    channel.call(request).await.map_err(unreachable)
}
