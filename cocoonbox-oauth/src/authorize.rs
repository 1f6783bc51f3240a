//! What an authorization request asks for, decided without IO.

use std::fmt;

use crate::{Client, ClientKind, Label, RedirectUri};

/// The longest query of an authorization request, in bytes.
pub const QUERY_MAX: usize = 8 * 1024;
/// The path of the protected resource: the control MCP and every box MCP under it.
pub const RESOURCE_PATH: &str = "/cocoonbox.mcp";
/// The scope of outside agents.
pub const SCOPE_BOXES: &str = "boxes";
/// The scope of first-party clients: everything of the user.
pub const SCOPE_ACCOUNT: &str = "account";

/// The origin that this server is reached at, `https://host[:port]` or `http://` on a loopback address: the issuer of
/// RFC 8414, without a slash at its end.
#[derive(Clone, PartialEq, Eq)]
pub struct Issuer(Box<str>);

/// A text that is no issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an issuer: use https://HOST[:PORT] without a path, or http:// on a loopback address")]
#[non_exhaustive]
pub struct IssuerError;

impl Issuer {
    /// Returns the issuer as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the address of a path on this server.
    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }

    /// Returns whether it is reached over TLS.
    pub fn is_https(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// Returns whether `resource` is the protected resource or lies under it (RFC 8707).
    pub fn covers(&self, resource: &str) -> bool {
        let Some(path) = resource.strip_prefix(&*self.0).and_then(|rest| rest.strip_prefix(RESOURCE_PATH))
        else {
            return false;
        };
        // segments that a reader walks up would lead out of the resource again
        let segments = || path.split('/').skip(1);
        path.is_empty()
            || (path.starts_with('/')
                && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte))
                && !segments().any(|part| part == "." || part == ".."))
    }
}

impl std::str::FromStr for Issuer {
    type Err = IssuerError;

    fn from_str(text: &str) -> Result<Self, IssuerError> {
        let text = text.strip_suffix('/').unwrap_or(text);
        let uri: RedirectUri = text.parse().map_err(|_| IssuerError)?;
        let after = text.split_once("://").map_or("", |(_, after)| after);
        if after.contains(['/', '?']) { Err(IssuerError) } else { Ok(Self(uri.as_str().into())) }
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The members of an authorization request, each at most once (RFC 6749, section 3.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizeQuery {
    response_type: Option<String>,
    /// Which client asks.
    pub client_id: Option<String>,
    /// Where the answer goes.
    pub redirect_uri: Option<String>,
    scope: Option<String>,
    state: Option<String>,
    code_challenge: Option<String>,
    code_challenge_method: Option<String>,
    resource: Option<String>,
    device_name: Option<String>,
}

/// A request that is answered on the page, never by a redirect: whoever sent it is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this request cannot be trusted: {reason}")]
#[non_exhaustive]
pub struct Untrusted {
    /// Why, for a person.
    pub reason: String,
}

impl Untrusted {
    /// Refuses for `reason`.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl AuthorizeQuery {
    /// Reads a query.
    ///
    /// # Errors
    /// [`Untrusted`]: it is over [`QUERY_MAX`], or a member is there twice.
    pub fn parse(query: &str) -> Result<Self, Untrusted> {
        let query = query.strip_prefix('?').unwrap_or(query);
        if query.len() > QUERY_MAX {
            return Err(Untrusted::new("it is longer than 8 KiB"));
        }
        let mut read = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "response_type" => &mut read.response_type,
                "client_id" => &mut read.client_id,
                "redirect_uri" => &mut read.redirect_uri,
                "scope" => &mut read.scope,
                "state" => &mut read.state,
                "code_challenge" => &mut read.code_challenge,
                "code_challenge_method" => &mut read.code_challenge_method,
                "resource" => &mut read.resource,
                "device_name" => &mut read.device_name,
                // unknown members are ignored
                _ => continue,
            };
            if place.replace(value.into_owned()).is_some() {
                return Err(Untrusted::new(format!("{name} is there twice")));
            }
        }
        Ok(read)
    }
}

/// What the user is asked to allow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers decide for each")]
pub enum Wish {
    /// A device of the user's own, with everything of the account.
    Account {
        /// What the device is called.
        device_name: Label,
    },
    /// Boxes of its own, for an outside agent.
    Boxes {
        /// The resource that it named, or the whole one.
        resource: String,
    },
}

/// A request that may be put before the user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthorizeRequest {
    /// Who asks.
    pub client: Client,
    /// Where the answer goes.
    pub redirect: RedirectUri,
    /// What is asked for.
    pub wish: Wish,
    /// The S256 challenge: 43 letters of base64url.
    pub challenge: String,
    state: Option<String>,
}

/// A fault that goes back to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the codes of the RFCs")]
pub enum AuthorizeError {
    /// `invalid_request`.
    InvalidRequest,
    /// `unsupported_response_type`.
    UnsupportedResponseType,
    /// `invalid_scope`.
    InvalidScope,
    /// `invalid_target` (RFC 8707).
    InvalidTarget,
    /// `access_denied`: the user said no.
    AccessDenied,
}

impl AuthorizeError {
    /// Returns the code that goes into `error`.
    pub const fn code(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::UnsupportedResponseType => "unsupported_response_type",
            Self::InvalidScope => "invalid_scope",
            Self::InvalidTarget => "invalid_target",
            Self::AccessDenied => "access_denied",
        }
    }
}

/// What comes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers decide for each")]
pub enum Verdict {
    /// It may be put before the user.
    Ask(Box<AuthorizeRequest>),
    /// The browser goes back to the client with a fault.
    Back {
        /// Where to, with everything in it.
        redirect: String,
        /// Which fault.
        error: AuthorizeError,
    },
}

/// Decides over a request of a client that is known.
///
/// # Errors
/// [`Untrusted`] when the redirect URI is none of the client's: then nothing goes back.
pub fn decide(query: &AuthorizeQuery, client: Client, issuer: &Issuer) -> Result<Verdict, Untrusted> {
    let asked = match (&query.redirect_uri, &client.redirect_uris[..]) {
        (Some(asked), _) => asked.clone(),
        // RFC 6749, section 3.1.2.3: it may be left out where there is but one, which OAuth 2.1 takes back
        _ => return Err(Untrusted::new("redirect_uri is missing")),
    };
    let redirect = client.redirect(&asked).map_err(|error| Untrusted::new(error.to_string()))?;
    let state = query.state.clone();
    let back = |error: AuthorizeError| {
        Ok(Verdict::Back {
            redirect: answer(&redirect, state.as_deref(), issuer, &[("error", error.code())]),
            error,
        })
    };
    if query.response_type.as_deref() != Some("code") {
        return back(match query.response_type {
            None => AuthorizeError::InvalidRequest,
            Some(_) => AuthorizeError::UnsupportedResponseType,
        });
    }
    let challenge = query.code_challenge.as_deref().unwrap_or_default();
    let base64url = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if query.code_challenge_method.as_deref() != Some("S256")
        || challenge.len() != 43
        || !challenge.bytes().all(base64url)
    {
        return back(AuthorizeError::InvalidRequest);
    }
    let scopes: Vec<&str> =
        query.scope.as_deref().unwrap_or_default().split(' ').filter(|s| !s.is_empty()).collect();
    let wish = if client.kind == ClientKind::FirstParty {
        if scopes != [SCOPE_ACCOUNT] {
            return back(AuthorizeError::InvalidScope);
        }
        let name = query.device_name.as_deref().unwrap_or_default().trim();
        let Ok(device_name) = name.parse() else { return back(AuthorizeError::InvalidRequest) };
        Wish::Account { device_name }
    } else {
        if scopes.iter().any(|scope| *scope != SCOPE_BOXES) {
            return back(AuthorizeError::InvalidScope);
        }
        Wish::Boxes { resource: query.resource.clone().unwrap_or_else(|| issuer.at(RESOURCE_PATH)) }
    };
    if query.resource.as_deref().is_some_and(|resource| !issuer.covers(resource)) {
        return back(AuthorizeError::InvalidTarget);
    }
    let challenge = challenge.to_owned();
    Ok(Verdict::Ask(Box::new(AuthorizeRequest { client, redirect, wish, challenge, state })))
}

impl AuthorizeRequest {
    /// Returns where the browser goes with a code.
    pub fn granted(&self, code: &str, issuer: &Issuer) -> String {
        answer(&self.redirect, self.state.as_deref(), issuer, &[("code", code)])
    }

    /// Returns where the browser goes when the user says no.
    pub fn denied(&self, issuer: &Issuer) -> String {
        let error = AuthorizeError::AccessDenied.code();
        answer(&self.redirect, self.state.as_deref(), issuer, &[("error", error)])
    }
}

/// Every answer names its issuer (RFC 9207), so that a client with several servers cannot be mixed up.
fn answer(redirect: &RedirectUri, state: Option<&str>, issuer: &Issuer, members: &[(&str, &str)]) -> String {
    let mut all = members.to_vec();
    all.extend(state.map(|state| ("state", state)));
    all.push(("iss", issuer.as_str()));
    redirect.with(&all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::client::read_registration;

    const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

    fn issuer() -> Issuer {
        "http://127.0.0.1:7420".parse().expect("an issuer")
    }

    fn agent() -> Client {
        let json =
            br#"{"client_name":"Agent","redirect_uris":["http://127.0.0.1/cb","https://agent.example/cb"]}"#;
        read_registration(json, "cbo_1".parse().expect("an id")).expect("a client")
    }

    fn cli() -> Client {
        Client::first_party(&"cocoonbox-cli".parse().expect("an id")).expect("compiled in")
    }

    fn verdict(client: Client, query: &str) -> Result<Verdict, Untrusted> {
        decide(&AuthorizeQuery::parse(query)?, client, &issuer())
    }

    fn base(more: &str) -> String {
        format!(
            "response_type=code&redirect_uri=http://127.0.0.1:5/cb&code_challenge={CHALLENGE}&code_challenge_method=S256&state=a%26b{more}"
        )
    }

    #[test]
    fn an_agent_asks_for_boxes() {
        for (more, resource) in [
            ("", "http://127.0.0.1:7420/cocoonbox.mcp"),
            ("&scope=boxes", "http://127.0.0.1:7420/cocoonbox.mcp"),
            (
                "&resource=http://127.0.0.1:7420/cocoonbox.mcp/control&foo=1&foo=2",
                "http://127.0.0.1:7420/cocoonbox.mcp/control",
            ),
        ] {
            let Ok(Verdict::Ask(request)) = verdict(agent(), &base(more)) else { panic!("{more}") };
            assert_eq!(request.wish, Wish::Boxes { resource: resource.to_owned() });
            assert_eq!(
                request.granted("cbc_1", &issuer()),
                "http://127.0.0.1:5/cb?code=cbc_1&state=a%26b&iss=http%3A%2F%2F127.0.0.1%3A7420"
            );
            assert_eq!(
                request.denied(&issuer()),
                "http://127.0.0.1:5/cb?error=access_denied&state=a%26b&iss=http%3A%2F%2F127.0.0.1%3A7420"
            );
        }
    }

    #[test]
    fn a_first_party_client_asks_for_the_account_alone() {
        let ask = |more: &str| {
            let query = base(more).replace("/cb", "/callback");
            verdict(cli(), &query)
        };
        let Ok(Verdict::Ask(request)) = ask("&scope=account&device_name=Jo%27s%20laptop") else {
            panic!("asked")
        };
        assert_eq!(request.wish, Wish::Account { device_name: "Jo's laptop".parse().expect("a label") });
        for (more, code) in [
            ("&device_name=x", "invalid_scope"),
            ("&scope=boxes&device_name=x", "invalid_scope"),
            ("&scope=account%20boxes&device_name=x", "invalid_scope"),
            ("&scope=account", "invalid_request"),
            ("&scope=account&device_name=a%0d%0aset-cookie:x", "invalid_request"),
        ] {
            assert!(matches!(ask(more), Ok(Verdict::Back { error, .. }) if error.code() == code), "{more}");
        }
        let long = format!("&scope=account&device_name={}", "x".repeat(65));
        assert!(matches!(ask(&long), Ok(Verdict::Back { error: AuthorizeError::InvalidRequest, .. })));
    }

    #[test]
    fn faults_of_a_known_client_go_back_to_it_with_the_issuer() {
        for (query, code) in [
            (base("&scope=account"), "invalid_scope"),
            (base("&scope=boxes%20account"), "invalid_scope"),
            (base("&scope=Boxes"), "invalid_scope"),
            (base("&resource=http://127.0.0.1:7420/"), "invalid_target"),
            (base("&resource=http://evil.example/cocoonbox.mcp"), "invalid_target"),
            (base("&resource=http://127.0.0.1:7420/cocoonbox.mcpx"), "invalid_target"),
            (base("&resource=http://127.0.0.1:7420/cocoonbox.mcp/../cb"), "invalid_target"),
            (base("&resource=http://127.0.0.1:7420/cocoonbox.mcp/%252e%252e/cb"), "invalid_target"),
            (base("&resource=http://127.0.0.1:7420/cocoonbox.mcp?x"), "invalid_target"),
            (base("").replace("response_type=code", "response_type=token"), "unsupported_response_type"),
            (base("").replace("response_type=code&", ""), "invalid_request"),
            (base("").replace("S256", "plain"), "invalid_request"),
            (base("").replace("S256", "s256"), "invalid_request"),
            (base("").replace("&code_challenge_method=S256", ""), "invalid_request"),
            (base("").replace(CHALLENGE, ""), "invalid_request"),
            (base("").replace(CHALLENGE, &CHALLENGE[1..]), "invalid_request"),
            (base("").replace("code_challenge=E9", "code_challenge=E="), "invalid_request"),
        ] {
            let Ok(Verdict::Back { redirect, error }) = verdict(agent(), &query) else { panic!("{query}") };
            assert_eq!(error.code(), code, "{query}");
            assert_eq!(
                redirect,
                format!("http://127.0.0.1:5/cb?error={code}&state=a%26b&iss=http%3A%2F%2F127.0.0.1%3A7420")
            );
        }
    }

    #[test]
    fn whoever_is_not_trusted_gets_nothing_back() {
        for query in [
            base("").replace("redirect_uri=http://127.0.0.1:5/cb&", ""),
            base("").replace("127.0.0.1:5", "localhost:5"),
            base("").replace("127.0.0.1:5/cb", "127.0.0.1:5/cb2"),
            base("").replace("http://127.0.0.1:5/cb", "https://evil.example/cb"),
            base("&state=2"),
            base("&redirect_uri=https://agent.example/cb"),
            base("&client_id=1&client_id=2"),
            base(&format!("&x={}", "y".repeat(QUERY_MAX))),
        ] {
            assert!(verdict(agent(), &query).is_err(), "{query:.200}");
        }
    }

    #[test]
    fn an_issuer_is_an_origin() {
        for (text, read) in [
            ("https://cb.example", Some("https://cb.example")),
            ("https://cb.example/", Some("https://cb.example")),
            ("https://cb.example:8443", Some("https://cb.example:8443")),
            ("http://127.0.0.1:7420", Some("http://127.0.0.1:7420")),
            ("http://[::1]:7420", Some("http://[::1]:7420")),
            ("http://cb.example", None),
            ("https://cb.example/x", None),
            ("https://cb.example?x", None),
            ("https://CB.example", None),
            ("https://a@cb.example", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Issuer>().ok().as_ref().map(Issuer::as_str), read, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_decided(query in "([a-z_]{0,14}=[ -~]{0,20}&){0,6}|\\PC{0,60}") {
            if let Ok(read) = AuthorizeQuery::parse(&query) {
                let _ = decide(&read, agent(), &issuer());
            }
        }
    }
}
