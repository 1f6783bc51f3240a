//! `save`, `saves`, `restore` and `browse`.

use std::os::unix::ffi::OsStrExt as _;

use serde_json::{Value, json};

use super::super::args::{BrowseArgs, Global, NamedArgs, RestoreArgs};
use super::super::environment::{Environment, Io};
use super::super::error::CliError;
use super::super::render::{plain, size, time};
use super::boxes::{finish, print_table, time_json};
use super::{follow, idempotency_key, print, print_json, put};
use crate::control::{Save, SnapshotEntry};

pub(super) async fn save(
    args: &NamedArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    let reply = client.save_box(args.name.as_ref(), &idempotency_key()).await?;
    follow(&client, &reply, global, io).await?;
    let saves = client.list_saves(args.name.as_ref()).await?;
    let newest = saves.first();
    if global.json {
        let operation = Some(&reply.operation_id).filter(|id| !id.is_empty());
        return print_json(io, &json!({ "save": newest.map(save_json), "operation": operation }));
    }
    match newest {
        None => print(io, "saved\n"),
        Some(save) => {
            let (files, all, new) = (save.files, size(save.total_bytes), size(save.new_bytes));
            let mut text =
                format!("save {}: {files} files, {all}; {new} new in the store\n", plain(&save.id));
            if save.inconsistent > 0 {
                text = format!("{text}{} files changed while they were read\n", save.inconsistent);
            }
            if save.skipped > 0 {
                text = format!("{text}{} sockets, devices or unreadable files were left out\n", save.skipped);
            }
            print(io, &text)
        }
    }
}

pub(super) async fn saves(
    args: &NamedArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    let saves = client.list_saves(args.name.as_ref()).await?;
    if global.json {
        return print_json(io, &json!({ "saves": saves.iter().map(save_json).collect::<Vec<_>>() }));
    }
    if saves.is_empty() {
        let _ = writeln!(io.stderr, "no saves yet\nhint: `cocoonbox save` makes one");
        return Ok(());
    }
    let mut rows = vec![["SAVED", "FILES", "SIZE", "NEW", "KEPT", "ID"].map(str::to_owned).to_vec()];
    rows.extend(saves.iter().map(|save| {
        vec![
            time(save.at_ms),
            save.files.to_string(),
            size(save.total_bytes),
            size(save.new_bytes),
            plain(&save.kept),
            plain(&save.id),
        ]
    }));
    print_table(io, &rows)
}

pub(super) async fn restore(
    args: RestoreArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    let (name, save) = (args.name.as_ref(), args.save.as_deref().unwrap_or_default());
    let reply = if args.paths.is_empty() {
        client.restore_box(name, save, &idempotency_key()).await?
    } else {
        let paths = args.paths.iter().map(|path| path.as_bytes().to_owned()).collect();
        client.restore_paths(name, save, paths, &idempotency_key()).await?
    };
    finish(&client, &reply, global, io).await
}

pub(super) async fn browse(
    args: &BrowseArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    let save = args.save.as_deref().unwrap_or_default();
    if args.cat {
        let write = |bytes: &[u8]| put(io, bytes);
        return client.read_saved(args.name.as_ref(), save, args.path.as_bytes(), write).await.map(drop);
    }
    let entries = client.browse(args.name.as_ref(), save, args.path.as_bytes()).await?;
    if global.json {
        return print_json(io, &json!({ "entries": entries.iter().map(entry_json).collect::<Vec<_>>() }));
    }
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| {
            vec![
                format!("{}{:04o}", letter(entry), entry.mode & 0o7777),
                entry.bytes.to_string(),
                time(entry.modified_at_ms),
                plain(&String::from_utf8_lossy(&entry.name)),
            ]
        })
        .collect();
    print_table(io, &rows)
}

fn letter(entry: &SnapshotEntry) -> char {
    match entry.kind.as_str() {
        "directory" => 'd',
        "symlink" => 'l',
        "fifo" => 'p',
        _ => '-',
    }
}

fn save_json(save: &Save) -> Value {
    json!({
        "id": save.id,
        "at": time_json(save.at_ms),
        "files": save.files,
        "bytes": save.total_bytes,
        "new_bytes": save.new_bytes,
        "root_hash": save.root_hash,
        "kept": Some(&save.kept).filter(|kept| !kept.is_empty()),
        "inconsistent": save.inconsistent,
        "skipped": save.skipped,
    })
}

fn entry_json(entry: &SnapshotEntry) -> Value {
    json!({
        "name": String::from_utf8_lossy(&entry.name),
        "kind": entry.kind,
        "bytes": entry.bytes,
        "mode": entry.mode,
        "modified_at": time_json(entry.modified_at_ms),
    })
}
