//! What runs: the only part of this crate that spawns tasks, sleeps and reads clocks.

pub(crate) mod agent;
mod children;
mod ends;
pub(crate) mod init;
