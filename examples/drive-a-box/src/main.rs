//! Shows how a program brings its first box up and runs a command there. It skips what a command line does besides:
//! remembering tokens, showing progress, passing signals on.
//!
//! ```text
//! COCOONBOX_TOKEN=$(cat ~/.local/share/cocoonbox/admin-token.txt) cargo run -p example-drive-a-box -- uname -a
//! ```

use std::error::Error;
use std::process::ExitCode;

use cocoonbox_client::exec::{Command, RunOptions, Stdio};
use cocoonbox_client::{AccessToken, Client, Endpoint, EnsureOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let endpoint = match std::env::var("COCOONBOX_ENDPOINT") {
        Ok(text) => text.parse()?,
        Err(_) => Endpoint::local(),
    };
    let token = AccessToken::new(std::env::var("COCOONBOX_TOKEN")?.trim().to_owned());
    let client = Client::connect(endpoint, Some(token)).await?;

    let ensured = client.ensure_box(None, EnsureOptions::default()).await?;
    client.follow(&ensured, |_event| {}).await?;

    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        words = vec!["uname".to_owned(), "-a".to_owned()];
    }
    let stdio = Stdio { stdin: tokio::io::empty(), stdout: tokio::io::stdout(), stderr: tokio::io::stderr() };
    let exit = client.exec(None).run(Command::argv(words), stdio, RunOptions::default()).await?;
    Ok(ExitCode::from(exit.status()))
}
