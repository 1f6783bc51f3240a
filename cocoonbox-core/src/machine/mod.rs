//! The box model: what a box is, and every decision about it, as pure functions.
//!
//! [`decide`] takes a box's record, a [`Command`] and the time, and answers a [`Decision`]: the record to write, the
//! [`Effect`]s to perform once it is written, and the events to append with it. It performs nothing itself. Whoever
//! runs it writes the record first, then performs the effects, then feeds what came of them back as a command:
//!
//! ```text
//!  person, clock ──► Command ──► decide ──► Decision ──► store: record + events, one step
//!                       ▲                      └───────► effects: claim, wake, hibernate, release
//!                       └──── Claimed, Woke, Hibernated, Released, EffectFailed ◄──┘
//! ```
//!
//! Whatever is cut off between two of these steps is found again by [`Command::Reconcile`], which compares the record
//! with what the backend holds.

mod command;
mod decide;
mod record;
mod settle;
mod state;
#[cfg(test)]
mod tests;

pub use command::{
    Bytes, Command, Decision, Effect, FailureKind, Fresh, Look, NewBox, OperationEvent, Refusal, SeenClaim,
    SleepRules, Write,
};
pub use decide::decide;
pub use record::{AgentShare, BoxRecord, Cause, Limits, Pending, Schedule, Tally, Verb};
pub use state::{BoxState, Phase};
