#![doc = include_str!("../README.md")]

mod base;
mod file;
mod limit;
mod ring;
mod serve;
mod signal;
mod sys;
mod tree;

pub use base::Base;
pub use limit::{
    LimitError, MAX_ARGUMENT_BYTES, MAX_ARGUMENTS, MAX_PATH_BYTES, MAX_VARIABLE_BYTES, MAX_VARIABLES,
};
pub use serve::init::{InitError, InitOptions, run as run_init};
pub use sys::{adopt, harden};
