//! `login` through a browser.

use cocoonbox_core::SystemEntropy;

use super::super::environment::{Environment, Io};
use super::super::error::CliError;
use super::super::render::plain;
use super::account::read_line;
use super::serve::unless_interrupted;
use crate::{AccessToken, BrowserSignIn, BrowserSignInError, Client, ClientError, Endpoint};

/// Where the browser is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// On this machine: it is opened.
    Here,
    /// Elsewhere: the address is printed, and what comes back is read from standard input.
    Elsewhere,
}

impl From<BrowserSignInError> for CliError {
    fn from(error: BrowserSignInError) -> Self {
        match error {
            BrowserSignInError::Client(ClientError::Unsupported { .. }) => Self::Refused {
                message: "this server does not sign in through a browser".to_owned(),
                hint: Some(
                    "`cocoonbox login --link` takes a one-use link, `cocoonbox login --token` a token",
                ),
            },
            BrowserSignInError::Client(error) => error.into(),
            BrowserSignInError::Refused { reason } if reason == "access_denied" => {
                Self::Refused { message: "nothing was allowed at the browser".to_owned(), hint: None }
            }
            error @ BrowserSignInError::Refused { .. } => Self::Refused {
                message: error.to_string(),
                hint: Some("a sign-in lasts a minute once it is allowed: `cocoonbox login` begins another"),
            },
            error => Self::failed(error.to_string(), Some("`cocoonbox login` begins another sign-in")),
        }
    }
}

/// Signs in through a browser and returns the token with its user's name.
pub(super) async fn sign_in(
    endpoint: &Endpoint,
    place: Where,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(AccessToken, String), CliError> {
    let client = Client::connect(endpoint.clone(), None).await?;
    let waiting = BrowserSignIn::begin(client, environment.device_name(), &SystemEntropy).await?;
    // the address holds no secret: a challenge and a state are good for this sign-in and this port alone
    let address = plain(waiting.address());
    let code = match place {
        Where::Here => {
            let opened = webbrowser::open(waiting.address()).is_ok();
            let said = if opened {
                "a browser opens; if it does not, open"
            } else {
                "open in a browser of this machine"
            };
            let _ = writeln!(
                io.stderr,
                "{said}\n  {address}\nwaiting for it; Ctrl-C gives up, --no-browser signs in elsewhere"
            );
            let _ = io.stderr.flush();
            unless_interrupted(waiting.code()).await.ok_or_else(given_up)??
        }
        Where::Elsewhere => {
            let _ = writeln!(
                io.stderr,
                "open in any browser\n  {address}\nwhen it has nothing to show at 127.0.0.1, paste the address that it is at"
            );
            let _ = write!(io.stderr, "Address or code: ").and_then(|()| io.stderr.flush());
            let line = unless_interrupted(read_line(io)).await.ok_or_else(given_up)?;
            let line = line.map_err(|source| CliError::io("standard input cannot be read", source))?;
            if line.reveal().trim().is_empty() {
                return Err(CliError::Usage("standard input holds no line to sign in with".to_owned()));
            }
            waiting.pasted(line.reveal())?
        }
    };
    let token = waiting.exchange(&code).await?;
    let client = Client::connect(endpoint.clone(), Some(AccessToken::new(token.reveal().to_owned()))).await?;
    let user = client.who_am_i().await?.user_name;
    Ok((token, user))
}

fn given_up() -> CliError {
    CliError::Refused { message: "interrupted; nothing was changed".to_owned(), hint: None }
}
