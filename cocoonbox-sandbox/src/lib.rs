#![doc = include_str!("../README.md")]

mod bwrap;
pub mod doors;

pub use bwrap::{BwrapBackend, BwrapConfig, OpenError};
