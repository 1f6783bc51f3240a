//! `fs_find` and `fs_replace` on the guest channel.

use std::io;
use std::ops::ControlFlow;

use cocoonbox_wire::MAX_FRAME_BYTES;
use cocoonbox_wire::silkd::Response;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::Guest;
use super::channel::{Failure, Output, Refusal};
use super::files::{blocking, path};
use crate::search;

/// The most files of one request.
const MAX_FILES: usize = 4096;

pub(super) async fn find(
    text: String,
    pattern: String,
    glob: Option<String>,
    guest: &Guest,
    output: &mut Output,
) -> Result<(), Failure> {
    let root = path(&text, guest)?;
    let pattern = search::pattern(&pattern).map_err(Refusal::from)?;
    let (sender, mut receiver) = mpsc::channel(64);
    let searching = spawn_blocking(move || {
        search::find(&root, &pattern, glob.as_deref(), |found| match sender.blocking_send(found) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })
    });
    while let Some(found) = receiver.recv().await {
        // its escapes may make a line six times as long
        if found.content.len() > MAX_FRAME_BYTES / 8 {
            return Err(Refusal::internal("a line that matches is too long for an answer").into());
        }
        let file = found.file.to_string_lossy().into_owned();
        output.send(&Response::Match { file, line: found.line, content: found.content }).await?;
    }
    searching.await.map_err(|_| Refusal::internal("the work was given up"))??;
    output.send(&Response::Done {}).await
}

pub(super) async fn replace(
    files: Vec<String>,
    pattern: String,
    replacement: String,
    guest: &Guest,
    output: &mut Output,
) -> Result<(), Failure> {
    if files.len() > MAX_FILES {
        return Err(Refusal::bad(format!("at most {MAX_FILES} files")).into());
    }
    let pattern = search::pattern(&pattern).map_err(Refusal::from)?;
    for text in files {
        let file = path(&text, guest)?;
        let (pattern, replacement) = (pattern.clone(), replacement.clone());
        let replacements =
            blocking(move || -> io::Result<u64> { search::replace(&file, &pattern, &replacement) })
                .await
                .map_err(|refusal| Refusal { message: format!("{text}: {}", refusal.message), ..refusal })?;
        output.send(&Response::Replaced { file: text, replacements }).await?;
    }
    output.send(&Response::Done {}).await
}
