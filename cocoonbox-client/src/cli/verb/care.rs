//! `check`, `prune` and `state-key`.

use serde_json::{Value, json};

use super::super::args::{CheckArgs, Global, PruneArgs, StateKeyVerb};
use super::super::environment::{Environment, Io};
use super::super::error::CliError;
use super::super::progress::Progress;
use super::super::render::{plain, size, time};
use super::account::read_line;
use super::boxes::{agrees, print_table, time_json};
use super::{print, print_json, serve};
use crate::PrintedStateKey;
use crate::control::{CheckReport, PruneReply};

fn gone() -> CliError {
    CliError::Refused { message: "interrupted; nothing was changed".to_owned(), hint: None }
}

pub(super) async fn check(
    args: &CheckArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    let save = args.save.as_deref().unwrap_or_default();
    let report = {
        let mut progress = Progress::new(io.stderr, io.stderr_is_terminal, global.json);
        let checked = client.check_save(args.name.as_ref(), save, args.sample, |event| {
            progress.show(format!("read {} of {}", size(event.done_bytes), size(event.total_bytes)));
        });
        serve::unless_interrupted(checked).await.ok_or_else(gone)??
    };
    if global.json {
        print_json(io, &report_json(&report))?;
    } else {
        let id = plain(&report.save_id);
        let mut text = format!("save {id}: {} parts, {} read", report.parts, size(report.bytes));
        text.push_str(if report.damages.is_empty() { "; nothing is damaged\n" } else { "\n" });
        for damage in &report.damages {
            let how = if damage.missing { "missing" } else { "damaged" };
            text = format!("{text}{how}: {}, {} files\n", plain(&damage.object), damage.files);
            for path in &damage.paths {
                text = format!("{text}  {}\n", plain(&String::from_utf8_lossy(path)));
            }
        }
        print(io, &text)?;
    }
    if report.damages.is_empty() {
        return Ok(());
    }
    let message = format!("{} objects of the save are damaged", report.damages.len());
    Err(CliError::failed(
        message,
        Some("`cocoonbox saves` lists the others; a new `cocoonbox save` stores anew"),
    ))
}

pub(super) async fn prune(
    args: &PruneArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    let reply = client.prune(args.dry_run).await?;
    if global.json {
        return print_json(io, &prune_json(&reply));
    }
    if !reply.forget.is_empty() {
        let mut rows = vec![["BOX", "SAVE"].map(str::to_owned).to_vec()];
        rows.extend(reply.forget.iter().map(|gone| vec![plain(&gone.box_id), plain(&gone.save_id)]));
        print_table(io, &rows)?;
    }
    let (saves, packs, freed) = (reply.forget.len(), reply.packs, size(reply.bytes));
    let mut text = match (args.dry_run, reply.sweep_at_ms) {
        (true, _) => format!("would forget {saves} saves and delete {packs} packs ({freed})\n"),
        (false, 0) => "nothing to take out\n".to_owned(),
        (false, at) if saves == 0 && packs == 0 && reply.manifests == 0 => {
            format!("a prune is under way: what it marked is deleted after {}\n", time(at))
        }
        (false, at) => {
            format!("forgot {saves} saves; {packs} packs ({freed}) are deleted after {}\n", time(at))
        }
    };
    if reply.deleted > 0 {
        text = format!("deleted {} objects that were marked before\n{text}", reply.deleted);
    }
    print(io, &text)
}

pub(super) async fn state_key(
    verb: StateKeyVerb,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    match verb {
        StateKeyVerb::Export { yes } => export(yes, global, environment, io).await,
        StateKeyVerb::Import => import(global, environment, io).await,
    }
}

async fn export(
    yes: bool,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    // into a file it goes without a question: whoever redirects it knows what they do
    if io.stdout_is_terminal && !yes {
        let asked = "This shows the key that opens all your saves. Type yes to go on: ";
        if !agrees(io, asked, "yes").await {
            return Err(CliError::Refused { message: "the key was not shown".to_owned(), hint: None });
        }
    }
    let client = environment.client(global).await?;
    let key = client.export_state_key().await?;
    if global.json {
        print_json(io, &json!({ "key": key.reveal() }))
    } else {
        print(io, &format!("{}\n", key.reveal()))
    }
}

async fn import(global: &Global, environment: &Environment, io: &mut Io<'_>) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    if io.terminal.is_some() {
        let _ = write!(io.stderr, "State key: ").and_then(|()| io.stderr.flush());
    }
    let line = serve::unless_interrupted(read_line(io)).await.ok_or_else(gone)?;
    let line = line.map_err(|source| CliError::io("the key cannot be read", source))?;
    let boxes = client.import_state_key(&PrintedStateKey::new(line.reveal().trim().to_owned())).await?;
    if global.json {
        let boxes = boxes.iter().map(|found| {
            json!({ "id": found.box_id, "name": found.name, "saves": found.saves, "newest_at": time_json(found.newest_at_ms) })
        });
        return print_json(io, &json!({ "boxes": boxes.collect::<Vec<_>>() }));
    }
    if boxes.is_empty() {
        return print(io, "the key is yours now; the store holds no saves under it\n");
    }
    let mut rows = vec![["BOX", "SAVES", "NEWEST", "ID"].map(str::to_owned).to_vec()];
    rows.extend(boxes.iter().map(|found| {
        vec![plain(&found.name), found.saves.to_string(), time(found.newest_at_ms), plain(&found.box_id)]
    }));
    print_table(io, &rows)?;
    let _ = writeln!(io.stderr, "hint: `cocoonbox box ensure BOX` brings a box's newest save here");
    Ok(())
}

fn report_json(report: &CheckReport) -> Value {
    let damages = report.damages.iter().map(|damage| {
        json!({
            "object": damage.object,
            "missing": damage.missing,
            "files": damage.files,
            "paths": damage.paths.iter().map(|path| String::from_utf8_lossy(path)).collect::<Vec<_>>(),
        })
    });
    json!({
        "save": report.save_id,
        "parts": report.parts,
        "bytes": report.bytes,
        "damages": damages.collect::<Vec<_>>(),
    })
}

fn prune_json(reply: &PruneReply) -> Value {
    let forget = reply.forget.iter().map(|gone| json!({ "box": gone.box_id, "save": gone.save_id }));
    json!({
        "forget": forget.collect::<Vec<_>>(),
        "packs": reply.packs,
        "manifests": reply.manifests,
        "bytes": reply.bytes,
        "sweep_at": time_json(reply.sweep_at_ms),
        "deleted": reply.deleted,
    })
}
