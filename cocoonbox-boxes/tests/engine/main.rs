//! Stories of the engine, on stores and backends in memory and a clock that is moved by hand.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod agents;
mod away;
mod call;
mod clock;
mod gate;
mod restart;
mod saves;
mod service;
mod setup;
mod sleep;
mod two;
mod verb;
