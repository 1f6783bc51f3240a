//! The wire's messages, from the engine's words.

use cocoonbox_core::backend::Memory;
use cocoonbox_core::machine::{BoxRecord, BoxState, OperationEvent, Phase, Schedule};
use cocoonbox_core::{ImageName, Timestamp};
use cocoonbox_wire::control::v1 as wire;

use crate::{SaveInfo, SavedEntryInfo};

fn millis(at: Option<Timestamp>) -> i64 {
    at.map_or(0, Timestamp::millis)
}

pub(super) fn state(state: BoxState) -> wire::BoxState {
    match state {
        BoxState::Absent => wire::BoxState::Absent,
        BoxState::Starting => wire::BoxState::Starting,
        BoxState::Running => wire::BoxState::Running,
        BoxState::Hibernating => wire::BoxState::Hibernating,
        BoxState::Hibernated => wire::BoxState::Hibernated,
        BoxState::Failed => wire::BoxState::Failed,
    }
}

fn memory(memory: Option<Memory>) -> wire::Memory {
    match memory {
        None => wire::Memory::Unspecified,
        Some(Memory::Kept) => wire::Memory::Kept,
        Some(Memory::Lost) => wire::Memory::Lost,
    }
}

fn phase(phase: Phase) -> wire::Phase {
    match phase {
        Phase::Creating => wire::Phase::Creating,
        Phase::Waking => wire::Phase::Waking,
        Phase::Snapshotting => wire::Phase::Snapshotting,
        Phase::Saving => wire::Phase::Saving,
        Phase::Restoring => wire::Phase::Restoring,
        Phase::Deleting => wire::Phase::Deleting,
        Phase::Done => wire::Phase::Done,
        Phase::Failed => wire::Phase::Failed,
        Phase::RestoringFiles => wire::Phase::RestoringFiles,
    }
}

pub(super) fn event(event: OperationEvent) -> wire::OperationEvent {
    wire::OperationEvent {
        operation_id: event.operation.to_string(),
        sequence: event.sequence as i64,
        phase: phase(event.phase).into(),
        message: event.message,
        done_bytes: event.bytes.done as i64,
        total_bytes: event.bytes.total as i64,
        at_ms: event.at.millis(),
        memory: memory(event.memory).into(),
        box_id: event.box_id.to_string(),
    }
}

pub(super) fn save(save: SaveInfo) -> wire::Save {
    wire::Save {
        id: save.id,
        at_ms: save.at.millis(),
        total_bytes: save.bytes as i64,
        image: String::new(),
        files: save.files as i64,
        new_bytes: save.new_bytes as i64,
        root_hash: save.root_hash,
        kept: save.kept,
        inconsistent: save.inconsistent as i64,
        skipped: save.skipped as i64,
    }
}

pub(super) fn entry(entry: SavedEntryInfo) -> wire::SnapshotEntry {
    wire::SnapshotEntry {
        name: entry.name,
        kind: entry.kind.to_owned(),
        bytes: entry.bytes as i64,
        mode: entry.mode,
        modified_at_ms: entry.modified_at.millis(),
    }
}

fn schedule(schedule: Schedule) -> wire::Schedule {
    wire::Schedule {
        next_at_ms: millis(schedule.next_at),
        cron: schedule.cron,
        time_zone: schedule.time_zone,
        stay_up_seconds: schedule.stay_up.as_secs() as i64,
    }
}

/// Returns the newest image that a box of `image` could move to: the default one, when both have one name.
fn latest(image: &ImageName, default: &ImageName) -> String {
    let name = |image: &ImageName| image.as_str().split(':').next().map(str::to_owned);
    if name(image) == name(default) { default.to_string() } else { image.to_string() }
}

pub(super) fn one(record: BoxRecord, default_image: &ImageName) -> wire::Box {
    let latest_image = latest(&record.image, default_image);
    let runs = matches!(record.state, BoxState::Running);
    wire::Box {
        id: record.id.to_string(),
        name: record.name.to_string(),
        upgrade_available: latest_image != record.image.as_str(),
        latest_image,
        image: record.image.to_string(),
        state: state(record.state).into(),
        memory: memory(record.memory).into(),
        failure: record.failure.unwrap_or_default(),
        created_at_ms: record.created_at.millis(),
        last_saved_at_ms: millis(record.last_saved_at),
        last_used_at_ms: millis(record.last_used_at),
        operation_id: record.pending.map(|pending| pending.operation.to_string()).unwrap_or_default(),
        schedule: record.schedule.map(schedule),
        sleep_at_ms: millis(record.sleep_at),
        wake_id: record.wake_id.filter(|_| runs).map(|wake| wake.to_string()).unwrap_or_default(),
    }
}

/// What a user without a box, and a box that is gone, are told.
pub(super) fn absent() -> wire::Box {
    wire::Box { state: wire::BoxState::Absent.into(), ..wire::Box::default() }
}
