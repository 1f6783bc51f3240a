//! `login`, `logout`, `whoami`, `devices` and `status`.

use serde_json::json;
use tokio::io::AsyncReadExt as _;

use super::super::args::{DevicesArgs, DevicesVerb, Global, LoginArgs, LogoutArgs};
use super::super::environment::{Environment, Io};
use super::super::error::CliError;
use super::super::render::{plain, table, time};
use super::browser::{self, Where};
use super::{print, print_json};
use crate::{AccessToken, Client, ClientError, Endpoint, Remembered, SignInLink, TokenSource};

/// The most bytes of a pasted link or token.
const MAX_PASTE: usize = 4096;

pub(super) async fn login(
    args: &LoginArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    if args.token.as_ref().is_some_and(|word| word != "-") {
        // not repeated: it may be one
        let message = "a token is no argument, where others could read it: send it to standard input";
        return Err(CliError::Usage(message.to_owned()));
    }
    let endpoint = environment.endpoint(global)?;
    let store = environment.store(global)?;
    if !endpoint.is_local() {
        let _ = writeln!(
            io.stderr,
            "warning: what is sent to {endpoint} is not encrypted; use a network that you trust"
        );
    }
    let before = store.remembered(&endpoint)?;
    let entry = if args.link {
        let link = SignInLink::new(secret_of(ask("Sign-in link: ", io).await?.reveal()).to_owned());
        let client = Client::connect(endpoint.clone(), None).await?;
        let signed_in = client.redeem_link(&link, environment.device_name()).await.map_err(|error| match error {
            ClientError::NotSignedIn { .. } => CliError::Refused {
                message: "the sign-in link is unknown, used, or older than 10 minutes".to_owned(),
                hint: Some("`cocoonbox up --new-link` prints a new one; `cocoonbox login --token` takes the token of admin-token.txt"),
            },
            error => error.into(),
        })?;
        Remembered::new(signed_in.token, TokenSource::Link).with_user(signed_in.user_name)
    } else if args.token.is_none() {
        let place = if args.no_browser { Where::Elsewhere } else { Where::Here };
        let (token, user) = browser::sign_in(&endpoint, place, environment, io).await?;
        Remembered::new(token, TokenSource::Browser).with_user(user)
    } else {
        let pasted = ask("Token: ", io).await?;
        if !AccessToken::is_well_formed(pasted.reveal()) {
            return Err(CliError::Usage("this is not a token (cb_ and 64 hex digits)".to_owned()));
        }
        let client =
            Client::connect(endpoint.clone(), Some(AccessToken::new(pasted.reveal().to_owned()))).await?;
        let user = client.who_am_i().await?.user_name;
        Remembered::new(pasted, TokenSource::Paste).with_user(user)
    };
    store.remember(&endpoint, &entry)?;
    if let Some(before) = before
        && before.source.is_own()
        && !before.token.matches(&entry.token)
    {
        // the new token is stored already: an old one that cannot be ended now is in the list of devices
        let _ = end_token(&endpoint, before.token).await;
    }
    let user = entry.user.unwrap_or_default();
    if global.json {
        return print_json(io, &json!({ "endpoint": endpoint.to_string(), "user": user }));
    }
    print(io, &format!("signed in to {endpoint} as {}\n", plain(&user)))
}

pub(super) async fn logout(
    args: LogoutArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let endpoint = environment.endpoint(global)?;
    let store = environment.store(global)?;
    let Some(remembered) = store.remembered(&endpoint)? else {
        return Err(CliError::NotSignedIn { endpoint });
    };
    let mut ended = false;
    if args.everywhere {
        // first there, then here: what fails there can be tried again with the token that is still here
        Client::connect(endpoint.clone(), Some(remembered.token)).await?.sign_out_everywhere().await?;
        store.forget(&endpoint)?;
        if global.json {
            return print_json(
                io,
                &json!({ "endpoint": endpoint.to_string(), "token_ended": true, "everywhere": true }),
            );
        }
        return print(io, &format!("signed out of {endpoint} everywhere; boxes stay\n"));
    }
    if remembered.source.is_own() {
        match end_token(&endpoint, remembered.token).await {
            Ok(()) => ended = true,
            Err(error) => {
                let _ = writeln!(
                    io.stderr,
                    "warning: the token could not be ended on the server: {}",
                    plain(&error.to_string())
                );
            }
        }
    }
    store.forget(&endpoint)?;
    if global.json {
        return print_json(io, &json!({ "endpoint": endpoint.to_string(), "token_ended": ended }));
    }
    let what = if ended { "the token is ended" } else { "the token is forgotten here and lives on" };
    print(io, &format!("signed out of {endpoint}; {what}\n"))
}

pub(super) async fn whoami(
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let endpoint = environment.endpoint(global)?;
    let me = environment.client(global).await?.who_am_i().await?;
    if global.json {
        let user = json!({ "id": me.user_id, "name": me.user_name, "admin": me.admin });
        return print_json(io, &json!({ "endpoint": endpoint.to_string(), "user": user }));
    }
    let admin = if me.admin { " (admin)" } else { "" };
    print(io, &format!("{}{admin} at {endpoint}\n", plain(&me.user_name)))
}

/// Serves the control MCP until standard input ends.
pub(super) async fn mcp(global: &Global, environment: &Environment, io: &mut Io<'_>) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    let stdin = std::mem::replace(&mut io.stdin, Box::new(tokio::io::empty()));
    let work = crate::mcp::bridge(&client, stdin, &mut io.command_stdout);
    match super::serve::unless_interrupted(work).await {
        Some(Err(source)) => Err(CliError::io("the standard streams cannot be used", source)),
        _ => Ok(()),
    }
}

pub(super) async fn devices(
    args: DevicesArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    if let Some(DevicesVerb::Revoke { id }) = args.verb {
        client.revoke_device(&id).await?;
        if global.json {
            return print_json(io, &json!({ "revoked": id }));
        }
        return print(io, &format!("device {} is shut out\n", plain(&id)));
    }
    let devices = client.devices().await?;
    if global.json {
        let devices: Vec<_> = devices
            .iter()
            .map(|device| {
                json!({
                    "id": device.id, "client": device.client, "label": device.label, "current": device.current,
                    "created_at_ms": device.created_at_ms, "used_at_ms": device.used_at_ms,
                })
            })
            .collect();
        return print_json(io, &json!({ "devices": devices }));
    }
    if devices.is_empty() {
        let _ = writeln!(io.stderr, "no devices: this sign-in has a token of another kind");
        return Ok(());
    }
    let mut rows = vec![["", "NAME", "SIGNED IN BY", "SINCE", "LAST USED", "ID"].map(str::to_owned).to_vec()];
    rows.extend(devices.iter().map(|device| {
        let by = if device.client.is_empty() { "a link".to_owned() } else { plain(&device.client) };
        let mark = if device.current { "*" } else { "" };
        let (since, used) = (time(device.created_at_ms), time(device.used_at_ms));
        vec![mark.to_owned(), plain(&device.label), by, since, used, plain(&device.id)]
    }));
    let mut text = Vec::new();
    table(&mut text, &rows).map_err(|source| CliError::io("the answer cannot be written", source))?;
    print(io, &String::from_utf8_lossy(&text))
}

pub(super) async fn status(
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let endpoint = environment.endpoint(global)?;
    let client = environment.client(global).await?;
    let me = client.who_am_i().await?;
    let usage = client.usage().await?;
    let source = match environment.variable("COCOONBOX_TOKEN") {
        Some(_) => "COCOONBOX_TOKEN".to_owned(),
        None => environment
            .store(global)?
            .remembered(&endpoint)?
            .map_or_else(String::new, |entry| entry.source.to_string()),
    };
    if global.json {
        return print_json(
            io,
            &json!({
                "endpoint": endpoint.to_string(),
                "user": { "id": me.user_id, "name": me.user_name, "admin": me.admin },
                "token_source": source,
                "server_version": me.version,
                "client_version": env!("CARGO_PKG_VERSION"),
                "boxes": usage.boxes,
                "running": usage.running,
            }),
        );
    }
    let mut rows = vec![
        ("server", format!("{endpoint}, version {}", plain(&me.version))),
        ("user", format!("{}{}", plain(&me.user_name), if me.admin { " (admin)" } else { "" })),
        ("token", format!("from {source}")),
        ("boxes", format!("{}, {} running", usage.boxes, usage.running)),
    ];
    if me.version != env!("CARGO_PKG_VERSION") {
        rows.push(("client", format!("version {}", env!("CARGO_PKG_VERSION"))));
    }
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    let mut text = Vec::new();
    table(&mut text, &rows).map_err(|source| CliError::io("the answer cannot be written", source))?;
    print(io, &String::from_utf8_lossy(&text))
}

/// Ends a token on its server.
async fn end_token(endpoint: &Endpoint, token: AccessToken) -> Result<(), ClientError> {
    let client = Client::connect(endpoint.clone(), Some(token)).await?;
    match client.devices().await?.into_iter().find(|device| device.current) {
        Some(device) => client.revoke_device(&device.id).await,
        None => Err(ClientError::PeerMisbehaved { what: "it does not list the device that asks" }),
    }
}

/// Reads one secret line from standard input; a terminal is asked and does not show it.
async fn ask(question: &str, io: &mut Io<'_>) -> Result<AccessToken, CliError> {
    let failed = |source| CliError::io("standard input cannot be read", source);
    let hidden = match &io.terminal {
        None => None,
        Some(terminal) => {
            let hidden = terminal.without_echo().map_err(failed)?;
            let _ = write!(io.stderr, "{question}").and_then(|()| io.stderr.flush());
            Some(hidden)
        }
    };
    let line = super::serve::unless_interrupted(read_line(io)).await;
    if hidden.is_some() {
        let _ = writeln!(io.stderr);
    }
    drop(hidden);
    match line {
        None => Err(CliError::Refused { message: "interrupted; nothing was changed".to_owned(), hint: None }),
        Some(line) => {
            let line = line.map_err(failed)?;
            let text = line.reveal().trim();
            if text.is_empty() {
                return Err(CliError::Usage("standard input holds no line to sign in with".to_owned()));
            }
            Ok(AccessToken::new(text.to_owned()))
        }
    }
}

/// Reads to the first line break or the end, at most [`MAX_PASTE`] bytes.
pub(super) async fn read_line(io: &mut Io<'_>) -> std::io::Result<AccessToken> {
    let mut line = Vec::with_capacity(MAX_PASTE);
    loop {
        let byte = match io.stdin.read_u8().await {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
            Ok(b'\n') => break,
            Ok(byte) => byte,
        };
        if line.len() == MAX_PASTE {
            return Err(std::io::Error::other("the line is too long"));
        }
        line.push(byte);
    }
    String::from_utf8(line).map(AccessToken::new).map_err(|_| std::io::Error::other("the line is not text"))
}

/// Returns the secret part of a sign-in link: what follows the last `/`, `#`, `?` or `=`.
fn secret_of(link: &str) -> &str {
    link.rsplit(['/', '#', '?', '=']).next().unwrap_or(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_links_secret_is_its_last_part() {
        for link in [
            "abc",
            "http://h:1/cb/link/abc",
            "http://h/cb/#abc",
            "http://h/cb/?link=abc",
            "http://h/#link=abc",
        ] {
            assert_eq!(secret_of(link), "abc", "{link}");
        }
    }
}
