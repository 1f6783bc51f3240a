//! Stories of the engine, on stores and backends in memory and a clock that is moved by hand.

mod call;
mod restart;
mod service;
mod setup;
mod sleep;
mod two;
mod verb;
