//! Signing in through a browser: a code comes back to a port of this machine (RFC 8252, section 7.3).

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use cocoonbox_core::{Entropy, random_secret};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::codegen::http::{Method, Request, Response, StatusCode, header};
use tower::Service as _;

use crate::{AccessToken, Client, ClientError};

/// What this program is called where it asks for authorization.
const CLIENT_ID: &str = "cocoonbox-cli";
/// The largest answer that is read.
const ANSWER_MAX: usize = 64 * 1024;
/// Connections that are served at once while the browser is waited for.
const CONNECTIONS_MAX: usize = 16;
/// The longest name of a device, in bytes.
const DEVICE_NAME_MAX: usize = 64;

cocoonbox_core::secret! {
    /// What the browser brings back; it is exchanged once.
    pub struct SignInCode;
}

cocoonbox_core::secret! {
    /// What proves that whoever exchanges the code is who asked for it (RFC 7636).
    struct Verifier;
}

/// Why a sign-in through a browser did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrowserSignInError {
    /// The server was asked something and did not answer well.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No port of this machine can be listened on, or no random bytes can be had.
    #[error("this machine cannot wait for the browser: {reason}")]
    Local {
        /// Why not.
        reason: String,
    },
    /// The person at the browser said no, or the server did.
    #[error("the sign-in was refused: {reason}")]
    Refused {
        /// The server's code, such as `access_denied`.
        reason: String,
    },
    /// What came back belongs to another sign-in, or to another server.
    #[error("what the browser brought back is not the answer to this sign-in: {what}")]
    Foreign {
        /// What does not fit.
        what: &'static str,
    },
}

/// A sign-in that waits for its browser.
#[derive(Debug)]
pub struct BrowserSignIn {
    client: Client,
    issuer: String,
    token_path: String,
    address: String,
    redirect: String,
    expected: Expected,
    verifier: Verifier,
    listener: TcpListener,
}

/// What an answer must carry.
#[derive(Clone, Debug)]
struct Expected {
    state: String,
    issuer: String,
}

/// What is read of a server's metadata (RFC 8414).
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
}

#[derive(Deserialize)]
struct Token {
    access_token: String,
}

#[derive(Deserialize)]
struct Fault {
    error: String,
}

impl BrowserSignIn {
    /// Asks the server where its doors are, and opens a port on 127.0.0.1.
    ///
    /// # Errors
    /// [`BrowserSignInError`].
    pub async fn begin(
        client: Client,
        device_name: &str,
        entropy: &dyn Entropy,
    ) -> Result<Self, BrowserSignInError> {
        let local = |error: &dyn std::error::Error| BrowserSignInError::Local { reason: error.to_string() };
        let request = Request::get("/.well-known/oauth-authorization-server");
        let (status, bytes) = client.http(request, Bytes::new()).await?;
        let found: Metadata = match status {
            StatusCode::OK => serde_json::from_slice(&bytes).map_err(|_| misbehaved())?,
            _ => {
                return Err(
                    ClientError::Unsupported { message: "signing in through a browser".to_owned() }.into()
                );
            }
        };
        let token_path = found.token_endpoint.strip_prefix(&found.issuer).ok_or_else(misbehaved)?.to_owned();
        if !found.authorization_endpoint.starts_with(&found.issuer) {
            return Err(misbehaved().into());
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(|error| local(&error))?;
        let port = listener.local_addr().map_err(|error| local(&error))?.port();
        let redirect = format!("http://{}/callback", SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let state = random_secret(entropy, "").map_err(|error| local(&error))?;
        let mut bytes = [0_u8; 32];
        entropy.fill(&mut bytes).map_err(|error| local(&error))?;
        let verifier = Verifier::new(URL_SAFE_NO_PAD.encode(bytes));
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.reveal().as_bytes()));
        let query: String = form_urlencoded::Serializer::new(String::new())
            .extend_pairs([
                ("response_type", "code"),
                ("client_id", CLIENT_ID),
                ("redirect_uri", &redirect),
                ("scope", "account"),
                ("code_challenge", &challenge),
                ("code_challenge_method", "S256"),
                ("state", &state),
                ("device_name", named(device_name)),
            ])
            .finish();
        let address = format!("{}?{query}", found.authorization_endpoint);
        let expected = Expected { state, issuer: found.issuer.clone() };
        Ok(Self { client, issuer: found.issuer, token_path, address, redirect, expected, verifier, listener })
    }

    /// Returns the address that the browser opens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the server's own name for itself.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Waits until a browser of this machine brings the code. Dropping the future ends the wait and frees nothing else.
    ///
    /// # Errors
    /// [`BrowserSignInError::Refused`]; requests that are no answer to this sign-in are told so and waited past.
    pub async fn code(&self) -> Result<SignInCode, BrowserSignInError> {
        let (answer, mut answered) = oneshot::channel();
        let answer = Arc::new(Mutex::new(Some(answer)));
        // side by side: one that stays silent must not keep the browser out
        let mut open = FuturesUnordered::new();
        loop {
            let stream = tokio::select! {
                code = &mut answered => {
                    let code = code.unwrap_or(Err(BrowserSignInError::Foreign { what: "it is cut off" }));
                    // the page that says so is still on its way
                    while let Some(()) = open.next().now_or_never().flatten() {}
                    return code;
                }
                Some(()) = open.next() => continue,
                accepted = self.listener.accept(), if open.len() < CONNECTIONS_MAX => {
                    accepted.map_err(|error| BrowserSignInError::Local { reason: error.to_string() })?.0
                }
            };
            let (expected, answer) = (self.expected.clone(), Arc::clone(&answer));
            let service = service_fn(move |request: Request<Incoming>| {
                let page = visited(&request, &expected, &answer);
                async move { Ok::<_, Infallible>(page) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            open.push(async move { drop(connection.await) });
        }
    }

    /// Reads what a person pasted: the address that the browser could not open, or the code alone.
    ///
    /// # Errors
    /// [`BrowserSignInError::Refused`], [`BrowserSignInError::Foreign`].
    pub fn pasted(&self, text: &str) -> Result<SignInCode, BrowserSignInError> {
        let text = text.trim();
        match text.split_once('?') {
            Some((_, query)) => self.expected.read(query),
            None if text.starts_with("cbc_") => Ok(SignInCode::new(text.to_owned())),
            None => Err(BrowserSignInError::Foreign { what: "it is neither an address nor a code" }),
        }
    }

    /// Exchanges the code for a token of this device.
    ///
    /// # Errors
    /// [`BrowserSignInError::Refused`] when the code is too old or was used.
    pub async fn exchange(self, code: &SignInCode) -> Result<AccessToken, BrowserSignInError> {
        let form = form_urlencoded::Serializer::new(String::new())
            .extend_pairs([
                ("grant_type", "authorization_code"),
                ("client_id", CLIENT_ID),
                ("code", code.reveal()),
                ("redirect_uri", &self.redirect),
                ("code_verifier", self.verifier.reveal()),
            ])
            .finish();
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.token_path)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let (status, bytes) = self.client.http(request, form.into()).await?;
        if status != StatusCode::OK {
            let fault: Fault = serde_json::from_slice(&bytes).map_err(|_| misbehaved())?;
            return Err(BrowserSignInError::Refused { reason: fault.error });
        }
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| misbehaved())?;
        let token = AccessToken::new(token.access_token);
        if AccessToken::is_well_formed(token.reveal()) { Ok(token) } else { Err(misbehaved().into()) }
    }
}

fn misbehaved() -> ClientError {
    ClientError::PeerMisbehaved { what: "it answered a sign-in in no form that there is" }
}

/// Cuts a device's name to what the server takes.
fn named(device_name: &str) -> &str {
    let mut end = device_name.len().min(DEVICE_NAME_MAX);
    while !device_name.is_char_boundary(end) {
        end -= 1;
    }
    match device_name[..end].trim() {
        "" => "a computer",
        name => name,
    }
}

impl Expected {
    /// Reads the code out of an answer's query.
    fn read(&self, query: &str) -> Result<SignInCode, BrowserSignInError> {
        let foreign = |what| Err(BrowserSignInError::Foreign { what });
        let member = |wanted: &str| {
            let mut found = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == wanted);
            let first = found.next().map(|(_, value)| value.into_owned());
            first.filter(|_| found.next().is_none())
        };
        if member("state").as_deref() != Some(&self.state) {
            return foreign("its state is another");
        }
        // RFC 9207: an answer of another server must not be exchanged here
        if member("iss").as_deref() != Some(&self.issuer) {
            return foreign("its issuer is another");
        }
        match (member("code"), member("error")) {
            (Some(code), None) => Ok(SignInCode::new(code)),
            (None, Some(error)) => Err(BrowserSignInError::Refused {
                reason: error.chars().filter(char::is_ascii_graphic).take(40).collect(),
            }),
            _ => foreign("it has no code"),
        }
    }
}

type Answer = oneshot::Sender<Result<SignInCode, BrowserSignInError>>;

/// Answers a browser, and hands the first answer to this sign-in on.
fn visited(
    request: &Request<Incoming>,
    expected: &Expected,
    answer: &Mutex<Option<Answer>>,
) -> Response<Full<Bytes>> {
    if request.uri().path() != "/callback" || *request.method() != Method::GET {
        return page(StatusCode::NOT_FOUND, "There is nothing here.");
    }
    match expected.read(request.uri().query().unwrap_or_default()) {
        Err(BrowserSignInError::Foreign { .. }) => {
            page(StatusCode::BAD_REQUEST, "This is not the answer to the sign-in that waits here.")
        }
        outcome => {
            let text = match outcome {
                Ok(_) => "You are signed in. This page can be closed.",
                Err(_) => "Nothing was allowed. This page can be closed.",
            };
            if let Some(answer) = answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // whoever waited may have given up
                let _ = answer.send(outcome);
            }
            page(StatusCode::OK, text)
        }
    }
}

fn page(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>cocoonbox</title><p>{text}</p></html>\n"
    );
    let mut answer = Response::new(Full::new(html.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(name, header::HeaderValue::from_static(value));
    }
    answer
}

impl Client {
    /// Sends a plain HTTP request over the connection and reads its whole answer.
    async fn http(
        &self,
        request: tonic::codegen::http::request::Builder,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let body = tonic::body::Body::new(Full::new(body).map_err(|never| match never {}));
        let request = request.body(body).map_err(|_| ClientError::Misuse { what: "the request" })?;
        let mut channel = self.channel();
        let unreachable = |source| ClientError::Unreachable { endpoint: self.endpoint().clone(), source };
        std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(unreachable)?;
        let answer = channel.call(request).await.map_err(unreachable)?;
        let status = answer.status();
        let bytes = Limited::new(answer.into_body(), ANSWER_MAX).collect().await.map_err(|_| misbehaved())?;
        Ok((status, bytes.to_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected { state: "s1".to_owned(), issuer: "http://127.0.0.1:7420".to_owned() }
    }

    #[test]
    fn an_answer_is_taken_when_it_is_whole_and_ours() {
        let iss = "iss=http%3A%2F%2F127.0.0.1%3A7420";
        let read = |query: String| expected().read(&query);
        assert_eq!(
            read(format!("code=cbc_1&state=s1&{iss}")).ok().as_ref().map(SignInCode::reveal),
            Some("cbc_1")
        );
        assert!(matches!(
            read(format!("error=access_denied&state=s1&{iss}")),
            Err(BrowserSignInError::Refused { reason }) if reason == "access_denied"
        ));
        for query in [
            String::new(),
            format!("code=cbc_1&{iss}"),
            format!("code=cbc_1&state=s2&{iss}"),
            format!("code=cbc_1&state=s1&state=s1&{iss}"),
            "code=cbc_1&state=s1".to_owned(),
            "code=cbc_1&state=s1&iss=http%3A%2F%2Fevil.example".to_owned(),
            format!("state=s1&{iss}"),
            format!("code=a&code=b&state=s1&{iss}"),
            format!("code=a&error=b&state=s1&{iss}"),
        ] {
            assert!(matches!(read(query.clone()), Err(BrowserSignInError::Foreign { .. })), "{query}");
        }
        let hostile = read(format!("error=%1b%5b2J{}&state=s1&{iss}", "x".repeat(99)));
        let Err(BrowserSignInError::Refused { reason }) = hostile else { panic!("a refusal") };
        assert!(reason.len() <= 40 && reason.bytes().all(|byte| byte.is_ascii_graphic()));
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        assert_eq!(named("laptop"), "laptop");
        assert_eq!(named(&"ü".repeat(40)).len(), 64);
        assert_eq!(named(&format!("x{}", "ü".repeat(40))).len(), 63);
        assert_eq!(named("  "), "a computer");
    }
}
