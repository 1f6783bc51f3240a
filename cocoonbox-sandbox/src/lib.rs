#![doc = include_str!("../README.md")]

mod bwrap;
pub mod doors;
pub mod probe;

pub use bwrap::{BwrapBackend, BwrapConfig, OpenError};
