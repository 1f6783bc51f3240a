//! What the suite says of our door and the protocol behind it.

mod fixture;
mod server;

use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;
use tokio::process::Command;

use server::Server;

type Done = Result<(), Box<dyn Error>>;

/// Scenarios that need no tools of a certain name.
const OF_ANY_SERVER: [&str; 6] = [
    "server-initialize",
    "server-session-lifecycle",
    "ping",
    "tools-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
];

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Runs the suite against `server`; its results lie in `results`.
async fn suite<S: AsRef<OsStr>>(
    server: &Server,
    results: &TempDir,
    options: &[S],
) -> Result<Output, Box<dyn Error>> {
    let output = Command::new(here().join("../../scripts/mcp-conformance.sh"))
        .args(["server", "--url", &server.url(), "-o"])
        .arg(results.path())
        .args(options)
        .kill_on_drop(true)
        .output()
        .await?;
    Ok(output)
}

fn told(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_behind_the_door_conforms_to_the_revision_that_it_speaks() -> Done {
    let (server, results) = (Server::with_fixtures().await?, TempDir::new()?);
    let expected = here().join("expected-failures.yml");
    let expected = expected.to_str().ok_or("a path that is no text")?;
    let options = ["--requirements", "2025-11-25", "--expected-failures", expected];
    let output = suite(&server, &results, &options).await?;
    assert!(output.status.success(), "{}", told(&output));
    // each scenario has a folder: it did not pass because nothing ran
    let ran = std::fs::read_dir(results.path())?.count();
    assert!(ran >= 30, "{ran} scenarios\n{}", told(&output));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_of_the_next_revision_is_what_is_written_down() -> Done {
    let (server, results) = (Server::with_fixtures().await?, TempDir::new()?);
    let expected = here().join("expected-failures-2026-07-28.yml");
    let expected = expected.to_str().ok_or("a path that is no text")?;
    let options = ["--requirements", "2026-07-28", "--expected-failures", expected];
    let output = suite(&server, &results, &options).await?;
    assert!(output.status.success(), "{}", told(&output));
    let ran = std::fs::read_dir(results.path())?.count();
    assert!(ran >= 30, "{ran} scenarios\n{}", told(&output));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expected_failure_that_passes_fails_the_suite() -> Done {
    let (server, results) = (Server::with_fixtures().await?, TempDir::new()?);
    let expected = results.path().join("expected.yml");
    std::fs::write(&expected, "server:\n  - ping\n")?;
    let expected = expected.to_str().ok_or("a path that is no text")?;
    let output = suite(&server, &results, &["--scenario", "ping", "--expected-failures", expected]).await?;
    assert!(!output.status.success(), "{}", told(&output));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_control_mcp_passes_what_any_server_can_be_held_to() -> Done {
    let server = Server::control().await?;
    for scenario in OF_ANY_SERVER {
        let results = TempDir::new()?;
        let output = suite(&server, &results, &["--scenario", scenario]).await?;
        assert!(output.status.success(), "{scenario}: {}", told(&output));
        assert!(told(&output).contains("0 failed"), "{scenario}: {}", told(&output));
    }
    Ok(())
}
