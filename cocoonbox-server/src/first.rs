//! The first start: its secrets reach somebody, even when the server dies on the way.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::Context as _;
use cocoonbox_core::{Entropy, Timestamp};
use cocoonbox_oauth::{FirstStart, LinkToken, UserStore, ensure_admin, renew_admin};

use crate::DataDir;

/// Stands from before the administrator is made until everything was handed out.
const MARK: &str = "first-start.unfinished";

/// Makes the administrator, or new secrets for the one whose first start was cut off; none at every other start.
pub(crate) async fn begin(
    data: &DataDir,
    users: &dyn UserStore,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> anyhow::Result<Option<FirstStart>> {
    let mark = data.join(MARK);
    let cut_off = mark.try_exists().with_context(|| format!("{} cannot be read", mark.display()))?;
    if !cut_off {
        data.write_secret(MARK, b"the administrator's secrets were not handed out yet\n")?;
    }
    let first = ensure_admin(users, now, entropy).await?;
    if first.is_none() && cut_off {
        return Ok(renew_admin(users, now, entropy).await?);
    }
    if first.is_none() {
        end(data)?;
    }
    Ok(first)
}

/// Notes that everything was handed out.
pub(crate) fn end(data: &DataDir) -> anyhow::Result<()> {
    match fs::remove_file(data.join(MARK)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", data.join(MARK).display()))
        }
        _ => Ok(()),
    }
}

/// Writes what the first start hands out: the token into `admin-token.txt` (0600), and the text that tells a person
/// where it is and how to sign in with the one-time link.
///
/// # Errors
/// The token's file cannot be written.
pub fn hand_out(data: &DataDir, address: SocketAddr, first: &FirstStart) -> anyhow::Result<String> {
    const FILE: &str = "admin-token.txt";
    data.write_secret(FILE, format!("{}\n", first.token.reveal()).as_bytes())?;
    let (name, file) = (&first.user.name, data.join(FILE));
    let link = sign_in_words(address, &first.link);
    Ok(format!("made user {name}; its token is in {}\n{link}", file.display()))
}

/// Tells a person how to sign in with a one-time link.
pub fn sign_in_words(address: SocketAddr, link: &LinkToken) -> String {
    format!(
        "one-time sign-in link (10 minutes): http://{address}/cb/#link={}\n  \
         on another machine: cocoonbox --endpoint http://{address} login --link\n",
        link.reveal()
    )
}
