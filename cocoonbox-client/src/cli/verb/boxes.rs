//! `box …`.

use serde_json::{Value, json};

use super::super::args::{BoxVerb, Global, RmArgs, ScheduleArgs, UpgradeArgs};
use super::super::environment::{Environment, Io};
use super::super::error::CliError;
use super::super::render::{plain, table, time};
use super::account::read_line;
use super::{follow, idempotency_key, print, print_json, serve};
use crate::control::{self, BoxState, Memory, OperationReply, Schedule};
use crate::{BoxRef, Client, CreateOptions, EnsureOptions, HibernateOptions};

pub(super) async fn run(
    verb: BoxVerb,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let client = environment.client(global).await?;
    match verb {
        BoxVerb::Create(args) => {
            let mut options = CreateOptions::new(args.name).with_idempotency_key(idempotency_key());
            options.image = args.image;
            let reply = client.create_box(options).await?;
            finish(&client, &reply, global, io).await
        }
        BoxVerb::Ensure(args) => {
            let options = EnsureOptions::default().with_idempotency_key(idempotency_key());
            let reply = client.ensure_box(args.name.as_ref(), options).await?;
            finish(&client, &reply, global, io).await
        }
        BoxVerb::Hibernate(args) => {
            let options = HibernateOptions::default()
                .with_to_disk(args.to_disk)
                .with_idempotency_key(idempotency_key());
            let reply = client.hibernate_box(args.name.as_ref(), options).await?;
            finish(&client, &reply, global, io).await
        }
        BoxVerb::Ls => list(&client, global, io).await,
        BoxVerb::Show(args) => {
            let found = client.show_box(args.name.as_ref()).await?;
            show(&found, global, io)
        }
        BoxVerb::Rename(args) => {
            let renamed = client.rename_box(&args.name, &args.to).await?;
            if global.json {
                return print_json(io, &box_json(&renamed));
            }
            print(io, &format!("box {} is now {}\n", args.name, plain(&renamed.name)))
        }
        BoxVerb::Upgrade(args) => upgrade(&client, &args, global, io).await,
        BoxVerb::Rm(args) => remove(&client, &args, global, io).await,
        BoxVerb::Schedule(args) => schedule(&client, args, global, io).await,
        BoxVerb::Usage => usage(&client, global, io).await,
    }
}

/// Waits for an operation and says how the box is after it.
pub(super) async fn finish(
    client: &Client,
    reply: &OperationReply,
    global: &Global,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    follow(client, reply, global, io).await?;
    let id = reply.r#box.as_ref().map(|found| found.id.clone()).unwrap_or_default();
    let after = client.show_box(id.parse::<BoxRef>().ok().as_ref()).await?;
    if global.json {
        let operation = Some(&reply.operation_id).filter(|id| !id.is_empty());
        return print_json(io, &json!({ "box": box_json(&after), "operation": operation }));
    }
    print(io, &format!("box {} is {}\n", plain(&after.name), condition(&after)))
}

async fn list(client: &Client, global: &Global, io: &mut Io<'_>) -> Result<(), CliError> {
    let boxes = client.list_boxes().await?;
    if global.json {
        return print_json(io, &json!({ "boxes": boxes.iter().map(box_json).collect::<Vec<_>>() }));
    }
    if boxes.is_empty() {
        let _ = writeln!(io.stderr, "no boxes yet\nhint: `cocoonbox box ensure` makes the first one");
        return Ok(());
    }
    let mut rows = vec![["NAME", "STATE", "IMAGE", "LAST USED", "ID"].map(str::to_owned).to_vec()];
    rows.extend(boxes.iter().map(|found| {
        vec![
            plain(&found.name),
            condition(found),
            plain(&found.image),
            time(found.last_used_at_ms),
            plain(&found.id),
        ]
    }));
    print_table(io, &rows)
}

fn show(found: &control::Box, global: &Global, io: &mut Io<'_>) -> Result<(), CliError> {
    if global.json {
        return print_json(io, &box_json(found));
    }
    if found.state() == BoxState::Absent {
        let _ = writeln!(io.stderr, "no boxes yet\nhint: `cocoonbox box ensure` makes the first one");
        return Ok(());
    }
    let mut rows = vec![
        ("name", plain(&found.name)),
        ("id", plain(&found.id)),
        ("state", condition(found)),
        ("image", plain(&found.image)),
        ("created", time(found.created_at_ms)),
        ("last used", time(found.last_used_at_ms)),
        ("last saved", time(found.last_saved_at_ms)),
    ];
    if found.upgrade_available {
        rows.push(("upgrade", plain(&found.latest_image)));
    }
    if !found.failure.is_empty() {
        rows.push(("failure", plain(&found.failure)));
    }
    if !found.operation_id.is_empty() {
        rows.push(("operation", plain(&found.operation_id)));
    }
    if let Some(text) = schedule_text(found) {
        rows.push(("schedule", text));
    }
    if found.sleep_at_ms != 0 {
        rows.push(("sleeps at", time(found.sleep_at_ms)));
    }
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    print_table(io, &rows)
}

/// Asks the person; holds when they type `word`.
pub(super) async fn agrees(io: &mut Io<'_>, asked: &str, word: &str) -> bool {
    let _ = write!(io.stderr, "{asked}").and_then(|()| io.stderr.flush());
    let answer = serve::unless_interrupted(read_line(io)).await;
    matches!(&answer, Some(Ok(line)) if line.reveal().trim() == word)
}

async fn upgrade(
    client: &Client,
    args: &UpgradeArgs,
    global: &Global,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let found = client.show_box(args.name.as_ref()).await?;
    let name = plain(&found.name);
    let exact: BoxRef = found.id.parse().map_err(|_| {
        let hint = Some("`cocoonbox box ensure` makes your first box");
        CliError::Refused { message: "there is no box to upgrade".to_owned(), hint }
    })?;
    if !args.yes {
        if io.terminal.is_none() {
            return Err(CliError::Refused {
                message: format!("box {name} was not upgraded: nobody is here to ask"),
                hint: Some("--yes upgrades it without asking"),
            });
        }
        let image = plain(args.image.as_deref().unwrap_or(&found.latest_image));
        let asked = format!(
            "This ends the programs of box {name} and moves it to image {image}. Type yes to go on: "
        );
        if !agrees(io, &asked, "yes").await {
            return Err(CliError::Refused { message: format!("box {name} was not upgraded"), hint: None });
        }
    }
    let reply = client.rebase_box(&exact, args.image.as_deref(), &idempotency_key()).await?;
    finish(client, &reply, global, io).await
}

async fn remove(client: &Client, args: &RmArgs, global: &Global, io: &mut Io<'_>) -> Result<(), CliError> {
    let found = client.show_box(Some(&args.name)).await?;
    if !args.yes {
        if io.terminal.is_none() {
            return Err(CliError::Refused {
                message: format!("box {} was not ended: nobody is here to ask", plain(&found.name)),
                hint: Some("--yes ends it without asking"),
            });
        }
        let (name, id) = (plain(&found.name), plain(&found.id));
        let asked = format!("This ends box {name} ({id}) and everything in it. Type its name to go on: ");
        if !agrees(io, &asked, &found.name).await {
            return Err(CliError::Refused { message: format!("box {name} was not ended"), hint: None });
        }
    }
    // the box that was shown is the one that ends, whatever is renamed meanwhile
    let exact = found.id.parse().unwrap_or_else(|_| args.name.clone());
    let reply = client.delete_box(&exact, &idempotency_key()).await?;
    follow(client, &reply, global, io).await?;
    if global.json {
        return print_json(
            io,
            &json!({ "ended": { "id": found.id, "name": found.name }, "operation": reply.operation_id }),
        );
    }
    print(io, &format!("box {} is ended\n", plain(&found.name)))
}

async fn schedule(
    client: &Client,
    args: ScheduleArgs,
    global: &Global,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let found = match (args.cron, args.clear) {
        (Some(cron), _) => {
            let schedule = Schedule {
                cron,
                time_zone: args.time_zone.unwrap_or_default(),
                stay_up_seconds: args
                    .stay_up
                    .map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX)),
                next_at_ms: 0,
            };
            client.schedule_box(args.name.as_ref(), Some(schedule)).await?
        }
        (None, true) => client.schedule_box(args.name.as_ref(), None).await?,
        (None, false) => client.show_box(args.name.as_ref()).await?,
    };
    if global.json {
        return print_json(io, &json!({ "box": found.name, "schedule": schedule_json(&found) }));
    }
    match schedule_text(&found) {
        Some(text) => print(io, &format!("box {} wakes at {text}\n", plain(&found.name))),
        None => print(io, &format!("box {} wakes only when it is used\n", plain(&found.name))),
    }
}

async fn usage(client: &Client, global: &Global, io: &mut Io<'_>) -> Result<(), CliError> {
    let usage = client.usage().await?;
    let limit = |most: i64| Some(most).filter(|most| *most != 0);
    if global.json {
        return print_json(
            io,
            &json!({
                "boxes": usage.boxes,
                "running": usage.running,
                "max_boxes": limit(usage.max_boxes),
                "max_running": limit(usage.max_running),
            }),
        );
    }
    let of = |most: i64| limit(most).map_or_else(|| "no limit".to_owned(), |most| format!("at most {most}"));
    let row = |name: &str, count: i64, most: i64| vec![name.to_owned(), count.to_string(), of(most)];
    print_table(
        io,
        &[row("boxes", usage.boxes, usage.max_boxes), row("running", usage.running, usage.max_running)],
    )
}

pub(super) fn print_table(io: &mut Io<'_>, rows: &[Vec<String>]) -> Result<(), CliError> {
    let mut text = Vec::new();
    table(&mut text, rows).map_err(|source| CliError::io("the answer cannot be written", source))?;
    print(io, &String::from_utf8_lossy(&text))
}

fn state(found: &control::Box) -> &'static str {
    match found.state() {
        BoxState::Unspecified => "unknown",
        BoxState::Absent => "absent",
        BoxState::Starting => "starting",
        BoxState::Running => "running",
        BoxState::Hibernating => "hibernating",
        BoxState::Hibernated => "hibernated",
        BoxState::Failed => "failed",
    }
}

fn memory(found: &control::Box) -> Option<&'static str> {
    match found.memory() {
        Memory::Unspecified => None,
        Memory::Kept => Some("kept"),
        Memory::Lost => Some("lost"),
    }
}

/// Returns the state, and for a sleeping box what it still has.
fn condition(found: &control::Box) -> String {
    match (found.state(), found.memory()) {
        (BoxState::Hibernated, Memory::Kept) => "hibernated (memory kept)".to_owned(),
        (BoxState::Hibernated, Memory::Lost) => "hibernated (to disk)".to_owned(),
        _ => state(found).to_owned(),
    }
}

fn schedule_text(found: &control::Box) -> Option<String> {
    let schedule = found.schedule.as_ref().filter(|schedule| !schedule.cron.is_empty())?;
    let zone = if schedule.time_zone.is_empty() { "UTC" } else { &schedule.time_zone };
    let mut text = format!(
        "{:?} ({}), stays up {} min",
        plain(&schedule.cron),
        plain(zone),
        schedule.stay_up_seconds / 60
    );
    if schedule.next_at_ms != 0 {
        text = format!("{text}, next {}", time(schedule.next_at_ms));
    }
    Some(text)
}

fn schedule_json(found: &control::Box) -> Value {
    match found.schedule.as_ref().filter(|schedule| !schedule.cron.is_empty()) {
        None => Value::Null,
        Some(schedule) => json!({
            "cron": schedule.cron,
            "time_zone": if schedule.time_zone.is_empty() { "UTC" } else { &schedule.time_zone },
            "stay_up_seconds": schedule.stay_up_seconds,
            "next_at": time_json(schedule.next_at_ms),
        }),
    }
}

pub(super) fn time_json(millis: i64) -> Value {
    if millis == 0 { Value::Null } else { Value::String(time(millis)) }
}

fn text_json(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { Value::String(text.to_owned()) }
}

fn box_json(found: &control::Box) -> Value {
    json!({
        "id": text_json(&found.id),
        "name": text_json(&found.name),
        "image": text_json(&found.image),
        "latest_image": text_json(&found.latest_image),
        "upgrade_available": found.upgrade_available,
        "state": state(found),
        "memory": memory(found),
        "failure": text_json(&found.failure),
        "created_at": time_json(found.created_at_ms),
        "last_used_at": time_json(found.last_used_at_ms),
        "last_saved_at": time_json(found.last_saved_at_ms),
        "operation": text_json(&found.operation_id),
        "schedule": schedule_json(found),
        "sleep_at": time_json(found.sleep_at_ms),
    })
}
