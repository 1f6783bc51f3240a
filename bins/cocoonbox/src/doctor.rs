//! `cocoonbox doctor`: what this machine, and nodes elsewhere, can do.

use std::io::Write;
use std::path::PathBuf;

use cocoonbox_client::cli::{DoctorArgs, Environment, Global, UpArgs, exit, nodes};
use cocoonbox_sandbox::probe::{Check, ProbeOptions, Status, probe};
use cocoonbox_server::{check_nodes, settings};
use serde_json::json;

/// Looks, prints, and returns the exit status: 0 when boxes run here, or on a node where nodes are to keep them.
pub(crate) async fn run(
    args: DoctorArgs,
    global: &Global,
    environment: &Environment,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let data = environment.variable("COCOONBOX_DATA").map_or_else(std::env::temp_dir, PathBuf::from);
    let mut flags = UpArgs::default();
    (flags.node, flags.node_token_file) = (args.node, args.node_token_file);
    let mut report = probe(&ProbeOptions::new(data)).await;
    // what cannot be read is one more thing to be told, and keeps nobody from the rest
    let read = settings(&flags, environment).and_then(|settings| Ok(nodes(&settings)?));
    let nodes = read.unwrap_or_else(|error| {
        let remedy = "correct it: `cocoonbox config show` tells where each setting comes from";
        report.checks.push(Check::no("settings", "", format!("{error:#}"), remedy));
        Vec::new()
    });
    let answers = check_nodes(&nodes).await;
    let boxes_run = if nodes.is_empty() {
        report.boxes_run()
    } else {
        answers.iter().any(|check| check.status == Status::Yes)
    };
    report.checks.extend(answers);
    if global.json {
        writeln!(out, "{}", json!({ "boxes_run": boxes_run, "checks": report.checks }))?;
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
        let verdict = match (boxes_run, nodes.is_empty()) {
            (true, true) => "boxes run here: start with `cocoonbox up`",
            (false, true) => "boxes do not run here yet: see the remedies above",
            (true, false) => "boxes run on nodes: start with `cocoonbox up` and the same nodes",
            (false, false) => "no node takes boxes: see the remedies above",
        };
        writeln!(out, "\n{verdict}")?;
    }
    Ok(if boxes_run { exit::DONE } else { exit::FAILED })
}
