//! The wire's messages, from the engine's words.

use cocoonbox_core::Timestamp;
use cocoonbox_core::backend::Memory;
use cocoonbox_core::machine::{BoxRecord, BoxState, OperationEvent, Phase, Schedule};
use cocoonbox_wire::control::v1 as wire;

use crate::usage::Spent;
use crate::{EngineConfig, SaveInfo, SavedEntryInfo, UsageCount};

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

pub(super) fn one(record: BoxRecord, config: &EngineConfig) -> wire::Box {
    let latest_image = config.latest_of(&record.image).to_string();
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
        agent: record.agent,
        wake_id: record.wake_id.filter(|_| runs).map(|wake| wake.to_string()).unwrap_or_default(),
    }
}

fn model_calls(spent: Spent) -> wire::ModelCalls {
    wire::ModelCalls {
        calls: spent.calls as i64,
        input_tokens: spent.input_tokens as i64,
        output_tokens: spent.output_tokens as i64,
        cost_micros: spent.cost_micros as i64,
    }
}

pub(super) fn usage(usage: &UsageCount) -> wire::UsageReply {
    let UsageCount { tally, limits, models } = usage;
    wire::UsageReply {
        boxes: tally.boxes.into(),
        running: tally.running.into(),
        max_boxes: limits.max_boxes.unwrap_or(0).into(),
        max_running: limits.max_running.unwrap_or(0).into(),
        agent_boxes: tally.agent_boxes.into(),
        max_agent_boxes: limits.max_agent_boxes.unwrap_or(0).into(),
        today: Some(model_calls(models.today)),
        month: Some(model_calls(models.month)),
        daily_cap_micros: models.daily_cap_micros as i64,
        default_cap: models.default_cap,
        remaining_today_micros: models.remaining_today_micros() as i64,
    }
}

/// What a user without a box, and a box that is gone, are told.
pub(super) fn absent() -> wire::Box {
    wire::Box { state: wire::BoxState::Absent.into(), ..wire::Box::default() }
}
