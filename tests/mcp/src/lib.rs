#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod fixture;
mod server;

pub use server::Server;
