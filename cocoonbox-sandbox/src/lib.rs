#![doc = include_str!("../README.md")]

mod bwrap;
pub mod doors;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "http")]
pub mod node;
pub mod probe;

pub use bwrap::{
    BwrapBackend, BwrapConfig, Defence, DiskLimit, Limits, OpenError, ProcessLimit, Reserve, Tier,
};
