//! `cocoonbox doctor`: what this machine can do.

use std::io::Write;
use std::path::PathBuf;

use cocoonbox_client::cli::{Environment, Global, exit};
use cocoonbox_sandbox::probe::{ProbeOptions, Status, probe};
use serde_json::json;

/// Looks, prints, and returns the exit status: 0 when boxes run here.
pub(crate) async fn run(
    global: &Global,
    environment: &Environment,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let data = environment.variable("COCOONBOX_DATA").map_or_else(std::env::temp_dir, PathBuf::from);
    let report = probe(&ProbeOptions::new(data)).await;
    if global.json {
        writeln!(out, "{}", json!({ "boxes_run": report.boxes_run(), "checks": report.checks }))?;
    } else {
        for check in &report.checks {
            let status = match check.status {
                Status::Yes => "yes",
                Status::Degraded => "in part",
                Status::No => "no",
            };
            writeln!(out, "{:<20} {status:<8} {}", check.name, check.detail)?;
            for (label, text) in [("because", &check.reason), ("remedy", &check.remedy)] {
                if let Some(text) = text {
                    writeln!(out, "{:<20} {label}: {text}", "")?;
                }
            }
        }
        let verdict = if report.boxes_run() {
            "boxes run here: start with `cocoonbox up`"
        } else {
            "boxes do not run here yet: see the remedies above"
        };
        writeln!(out, "\n{verdict}")?;
    }
    Ok(if report.boxes_run() { exit::DONE } else { exit::FAILED })
}
