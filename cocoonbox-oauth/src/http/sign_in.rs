//! Who came to which door.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Query, State};
use cocoonbox_core::{SignInId, Timestamp, UserId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Authority;
use super::answer::Refusal;
use super::session::SignedIn;
use crate::{SignInRecord, UserKey};

/// How many are told in one answer.
const PAGE: usize = 50;

#[derive(Debug, Deserialize)]
pub(super) struct Before {
    /// The last one that was told already: its time, a point, and its id.
    before: Option<String>,
}

impl Before {
    fn read(&self) -> Result<Option<(Timestamp, SignInId)>, Refusal> {
        let Some(text) = &self.before else { return Ok(None) };
        let parts = text.split_once('.');
        let read =
            parts.and_then(|(at, id)| Some((Timestamp::from_micros(at.parse().ok()?), id.parse().ok()?)));
        read.map(Some).ok_or_else(|| Refusal::invalid("before is none that was told"))
    }
}

fn shown(record: &SignInRecord, user_name: Option<&str>) -> Value {
    let mut shown = json!({
        "id": record.id.to_string(),
        "at": record.at.millis(),
        "door": record.door.as_str(),
        "let_in": record.let_in,
        "from": record.from.map(|from| from.to_string()).unwrap_or_default(),
        "what": record.what,
    });
    if let Some(name) = user_name {
        shown["user_name"] = name.into();
    }
    shown
}

/// Returns where the next answer goes on; empty when this was the last.
fn next(page: &[SignInRecord]) -> String {
    let last = page.last().filter(|_| page.len() == PAGE);
    last.map(|last| format!("{}.{}", last.at.micros(), last.id)).unwrap_or_default()
}

/// Tells the caller's own, the newest first.
pub(super) async fn own(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Query(before): Query<Before>,
) -> Result<axum::Json<Value>, Refusal> {
    let before = before.read()?;
    let before = before.as_ref().map(|(at, id)| (*at, id));
    let page = authority.store().sign_ins(Some(&who.user.id), before, PAGE).await?;
    let told: Vec<Value> = page.iter().map(|record| shown(record, None)).collect();
    Ok(axum::Json(json!({ "sign_ins": told, "next": next(&page) })))
}

/// Tells an administrator everybody's, and those of nobody.
pub(super) async fn all(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Query(before): Query<Before>,
) -> Result<axum::Json<Value>, Refusal> {
    who.must_administer()?;
    let before = before.read()?;
    let before = before.as_ref().map(|(at, id)| (*at, id));
    let page = authority.store().sign_ins(None, before, PAGE).await?;
    let mut names: HashMap<UserId, String> = HashMap::new();
    for id in page.iter().filter_map(|record| record.user.as_ref()) {
        if !names.contains_key(id) {
            let user = authority.store().user(UserKey::Id(id)).await?;
            names.insert(id.clone(), user.map(|user| user.name.to_string()).unwrap_or_default());
        }
    }
    let name = |record: &SignInRecord| record.user.as_ref().and_then(|id| names.get(id)).cloned();
    let told: Vec<Value> =
        page.iter().map(|record| shown(record, Some(&name(record).unwrap_or_default()))).collect();
    Ok(axum::Json(json!({ "sign_ins": told, "next": next(&page) })))
}
