//! The server alone: `cocoonbox up` without the command line around it.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use cocoonbox_client::cli::{Environment, UpArgs};
use cocoonbox_server::{ServerConfig, hand_out, log_to_stderr, run, settings, sign_in_words, stop_signal};

/// Serves boxes until it is stopped; each flag can be given as COCOONBOX_… in the environment or a key in api.yaml.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    server: UpArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve(&Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(cli: &Cli) -> anyhow::Result<()> {
    let environment = Environment::new(std::env::vars_os(), "");
    log_to_stderr(environment.variable("COCOONBOX_LOG").and_then(|text| text.to_str()))?;
    let config = ServerConfig::read(&settings(&cli.server, &environment)?, &cli.server)?;
    let stop = stop_signal()?;
    let tell = |data: &cocoonbox_server::DataDir, started: &cocoonbox_server::Started| {
        let mut out = std::io::stdout().lock();
        if let Some(first) = &started.first {
            write!(out, "{}", hand_out(data, started.address, first)?)?;
        }
        if let Some(link) = &started.link {
            write!(out, "{}", sign_in_words(started.address, link))?;
        }
        writeln!(out, "listening on http://{} ({} boxes)", started.address, started.boxes)?;
        Ok(out.flush()?)
    };
    run(config, tell, stop).await
}
