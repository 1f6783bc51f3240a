//! Programs that ask for authorization.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::{RedirectUri, RedirectUriError};

/// The longest metadata document, in bytes.
pub const METADATA_MAX: usize = 5 * 1024;
/// The most redirect URIs of one client.
pub const REDIRECT_URIS_MAX: usize = 16;
/// The longest name of a client, in characters; longer ones are cut.
const NAME_MAX: usize = 64;
const ID_MAX: usize = 512;

/// Why a client is not known or not trusted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The text is no client id.
    #[error("the client id is malformed")]
    Id,
    /// What a client says of itself cannot be read.
    #[error("the client's metadata cannot be read: {reason}")]
    Metadata {
        /// What is wrong; nothing of the text.
        reason: &'static str,
    },
    /// A redirect URI breaks a rule.
    #[error(transparent)]
    Redirect(#[from] RedirectUriError),
}

/// What a client is called in protocols: `cocoonbox-cli`, `cocoonbox-app`, `cbo_` and 32 hex digits for a registered
/// one, or the `https` address of its metadata document.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(Box<str>);

impl ClientId {
    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the address of the client's metadata document, for a client that has one.
    pub fn document(&self) -> Option<url::Url> {
        self.0.starts_with("https://").then(|| self.0.parse().ok())?
    }
}

impl FromStr for ClientId {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let good = (1..=ID_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !good {
            return Err(ClientError::Id);
        }
        if text.contains("://") {
            // the draft's rules for an address that is a name: https, a path, nothing that differs by reader
            let url: url::Url = text.parse().map_err(|_| ClientError::Id)?;
            let plain = url.as_str() == text
                && url.scheme() == "https"
                && url.fragment().is_none()
                && url.query().is_none()
                && url.username().is_empty()
                && url.password().is_none()
                && url.path() != "/"
                && matches!(url.host(), Some(url::Host::Domain(name)) if name.contains('.') && !name.ends_with('.'));
            if !plain {
                return Err(ClientError::Id);
            }
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// How a client came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers decide for each")]
pub enum ClientKind {
    /// Compiled in; it alone may ask for `account`, and for nothing else.
    FirstParty,
    /// It registered itself: nothing it says is verified.
    Registered,
    /// It has a metadata document at an address of its own, which verifies the host.
    Document,
}

/// A program that may ask for authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record: stores and tests build it whole")]
pub struct Client {
    /// What protocols call it.
    pub id: ClientId,
    /// What it calls itself, without letters that mislead; shown beside its host.
    pub name: String,
    /// How it came to be known.
    pub kind: ClientKind,
    /// Where browsers may be sent back to.
    pub redirect_uris: Vec<RedirectUri>,
}

impl Client {
    /// Returns the host that is verified to be the client's; none for one that only says so.
    pub fn verified_host(&self) -> Option<String> {
        (self.kind == ClientKind::Document)
            .then(|| self.id.document().and_then(|url| url.host_str().map(str::to_owned)))?
    }

    /// Returns the redirect URI that a request asks for when the client may be sent there.
    ///
    /// # Errors
    /// The URI breaks a rule, or is none of the client's.
    pub fn redirect(&self, asked: &str) -> Result<RedirectUri, ClientError> {
        let asked: RedirectUri = asked.parse()?;
        if self.redirect_uris.iter().any(|own| own.allows(&asked)) {
            Ok(asked)
        } else {
            Err(RedirectUriError { rule: "one that the client registered" }.into())
        }
    }

    /// Returns the compiled-in client of that id.
    pub fn first_party(id: &ClientId) -> Option<Self> {
        let name = match id.as_str() {
            "cocoonbox-cli" => "cocoonbox CLI",
            "cocoonbox-app" => "CocoonBox app",
            _ => return None,
        };
        let redirect = "http://127.0.0.1/callback".parse().ok()?;
        Some(Self {
            id: id.clone(),
            name: name.to_owned(),
            kind: ClientKind::FirstParty,
            redirect_uris: vec![redirect],
        })
    }
}

/// What a client says of itself when it registers (RFC 7591) or in its document; unknown members are passed over.
#[derive(Debug, Deserialize)]
struct Metadata {
    client_id: Option<String>,
    client_name: Option<serde_json::Value>,
    redirect_uris: Option<Vec<String>>,
    token_endpoint_auth_method: Option<String>,
    grant_types: Option<Vec<String>>,
    response_types: Option<Vec<String>>,
}

/// Reads what a client says of itself when it registers; the id is given to it.
///
/// # Errors
/// [`ClientError::Metadata`], [`ClientError::Redirect`].
pub fn read_registration(bytes: &[u8], id: ClientId) -> Result<Client, ClientError> {
    read(bytes, id, ClientKind::Registered)
}

/// Reads a client's metadata document; `id` is the address it was fetched from.
///
/// # Errors
/// [`ClientError::Metadata`], [`ClientError::Redirect`]; also when the document names another client.
pub fn read_document(bytes: &[u8], id: ClientId) -> Result<Client, ClientError> {
    read(bytes, id, ClientKind::Document)
}

fn read(bytes: &[u8], id: ClientId, kind: ClientKind) -> Result<Client, ClientError> {
    let refuse = |reason| Err(ClientError::Metadata { reason });
    if bytes.len() > METADATA_MAX {
        return refuse("it is over 5 KiB");
    }
    let Ok(metadata) = serde_json::from_slice::<Metadata>(bytes) else {
        return refuse("it is no JSON object with the members of RFC 7591");
    };
    if kind == ClientKind::Document && metadata.client_id.as_deref() != Some(id.as_str()) {
        return refuse("client_id is not the document's own address");
    }
    // clients that can keep a secret have no place here: none is given out
    if metadata.token_endpoint_auth_method.is_some_and(|method| method != "none") {
        return refuse("token_endpoint_auth_method is not none");
    }
    if metadata.grant_types.is_some_and(|types| !types.iter().any(|one| one == "authorization_code")) {
        return refuse("grant_types lacks authorization_code");
    }
    if metadata.response_types.is_some_and(|types| !types.iter().any(|one| one == "code")) {
        return refuse("response_types lacks code");
    }
    let uris = metadata.redirect_uris.unwrap_or_default();
    if uris.is_empty() || uris.len() > REDIRECT_URIS_MAX {
        return Err(RedirectUriError { rule: "1 to 16 of them in redirect_uris" }.into());
    }
    let redirect_uris =
        uris.iter().map(|uri| uri.parse()).collect::<Result<Vec<RedirectUri>, RedirectUriError>>()?;
    let said = metadata.client_name.as_ref().and_then(|name| name.as_str()).unwrap_or_default();
    let name = plain_name(said);
    let name = if name.is_empty() { redirect_uris[0].host().to_owned() } else { name };
    Ok(Client { id, name, kind, redirect_uris })
}

/// A name without control characters, marks that turn the direction of writing, and letters that take no room; white
/// space is single. What looks like another name remains possible: the host stands beside it.
fn plain_name(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}')
    };
    let shown: String =
        text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).filter(|c| !hidden(*c)).collect();
    let words: Vec<&str> = shown.split_whitespace().collect();
    words.join(" ").chars().take(NAME_MAX).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn registered(json: &str) -> Result<Client, ClientError> {
        read_registration(json.as_bytes(), "cbo_1".parse()?)
    }

    #[test]
    fn a_registration_is_read_and_unknown_members_are_passed_over() -> Result<(), ClientError> {
        let client = registered(
            r#"{"client_name":" My\tAgent\u202e ","redirect_uris":["http://localhost:1/cb"],"logo_uri":"x","jwks":{},
            "token_endpoint_auth_method":"none","grant_types":["authorization_code","refresh_token"],"response_types":["code"]}"#,
        )?;
        assert_eq!((client.name.as_str(), client.kind), ("My Agent", ClientKind::Registered));
        assert_eq!(client.verified_host(), None);
        assert!(client.redirect("http://localhost:99/cb").is_ok());
        assert!(client.redirect("http://127.0.0.1:99/cb").is_err());
        assert_eq!(registered(r#"{"redirect_uris":["https://a.example/cb"]}"#)?.name, "a.example");
        Ok(())
    }

    #[test]
    fn what_a_public_client_may_not_be_is_refused() {
        for json in [
            "",
            "[]",
            "null",
            "{}",
            r#"{"redirect_uris":[]}"#,
            r#"{"redirect_uris":"http://localhost/"}"#,
            r#"{"redirect_uris":["http://evil.example/"]}"#,
            r#"{"redirect_uris":["https://a.example/","javascript:1"]}"#,
            r#"{"redirect_uris":["https://a.example/"],"token_endpoint_auth_method":"client_secret_basic"}"#,
            r#"{"redirect_uris":["https://a.example/"],"token_endpoint_auth_method":"private_key_jwt"}"#,
            r#"{"redirect_uris":["https://a.example/"],"grant_types":["client_credentials"]}"#,
            r#"{"redirect_uris":["https://a.example/"],"response_types":["token"]}"#,
        ] {
            assert!(registered(json).is_err(), "{json}");
        }
        let many = format!(r#"{{"redirect_uris":[{}]}}"#, vec![r#""https://a.example/""#; 17].join(","));
        assert!(registered(&many).is_err());
        assert!(
            registered(&format!(
                r#"{{"redirect_uris":["https://a.example/"],"x":"{}"}}"#,
                "y".repeat(METADATA_MAX)
            ))
            .is_err()
        );
    }

    #[test]
    fn a_document_names_its_own_address() -> Result<(), ClientError> {
        let id: ClientId = "https://agent.example/oauth/client.json".parse()?;
        let json = r#"{"client_id":"https://agent.example/oauth/client.json","client_name":"A","redirect_uris":["http://127.0.0.1/cb"]}"#;
        let client = read_document(json.as_bytes(), id.clone())?;
        assert_eq!(client.verified_host().as_deref(), Some("agent.example"));
        for json in [
            r#"{"client_name":"A","redirect_uris":["http://127.0.0.1/cb"]}"#,
            r#"{"client_id":"https://agent.example/oauth/client.json/","redirect_uris":["http://127.0.0.1/cb"]}"#,
            r#"{"client_id":"https://other.example/oauth/client.json","redirect_uris":["http://127.0.0.1/cb"]}"#,
        ] {
            assert!(read_document(json.as_bytes(), id.clone()).is_err(), "{json}");
        }
        Ok(())
    }

    #[test]
    fn an_address_that_is_a_name_has_one_spelling() {
        for (text, good) in [
            ("cocoonbox-cli", true),
            ("cbo_00", true),
            ("https://agent.example/client.json", true),
            ("https://agent.example", false),
            ("https://agent.example/", false),
            ("http://agent.example/c", false),
            ("https://Agent.example/c", false),
            ("https://agent.example:443/c", false),
            ("https://user@agent.example/c", false),
            ("https://agent.example/c#x", false),
            ("https://agent.example/c?x", false),
            ("https://agent.example/a/../c", false),
            ("https://127.0.0.1/c", false),
            ("https://[::1]/c", false),
            ("https://localhost/c", false),
            ("https://agent.example./c", false),
            ("a b", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<ClientId>().is_ok(), good, "{text:?}");
        }
    }

    #[test]
    fn first_party_clients_are_two() {
        for (id, known) in [("cocoonbox-cli", true), ("cocoonbox-app", true), ("cocoonbox-api", false)] {
            assert_eq!(id.parse().ok().and_then(|id| Client::first_party(&id)).is_some(), known, "{id}");
        }
    }

    proptest! {
        #[test]
        fn a_name_takes_no_directions(name in "\\PC{0,90}|[a\\u{200e}\\u{202e}\\u{2066}\\n\\u{0} ]{0,20}") {
            let plain = plain_name(&name);
            prop_assert!(plain.chars().count() <= NAME_MAX);
            let misleads = plain.contains(['\u{202e}', '\u{2066}', '\u{200e}', '\n', '\0']);
            prop_assert!(!misleads);
            prop_assert_eq!(plain_name(&plain), plain.trim());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_registration(&bytes, "cbo_1".parse().unwrap());
        }
    }
}
