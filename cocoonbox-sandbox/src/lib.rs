#![doc = include_str!("../README.md")]

mod bwrap;
mod choice;
#[cfg(feature = "container")]
mod container;
pub mod doors;
mod filter;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "http")]
mod message;
#[cfg(feature = "http")]
pub mod node;
pub mod probe;
#[cfg(feature = "client")]
pub mod remote;
#[cfg(all(feature = "testkit", feature = "container"))]
pub mod testkit;

pub use bwrap::{
    BwrapBackend, BwrapConfig, Defence, DiskLimit, Limits, OpenError, ProcessLimit, Reserve, Tier,
};
pub use choice::{BackendChoice, EngineOptions, UnknownBackend, open_backend};
#[cfg(feature = "container")]
pub use container::{ContainerBackend, ContainerConfig, EngineChoice, EngineSockets};
