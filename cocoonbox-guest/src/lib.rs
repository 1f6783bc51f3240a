#![doc = include_str!("../README.md")]

mod base;
mod claim_env;
mod confine;
mod feed;
mod fence;
mod file;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handoff;
mod hook;
mod identity_file;
mod limit;
mod privilege;
mod replay;
mod ring;
mod search;
mod serve;
mod signal;
mod swap;
mod sys;
mod terminfo;
mod tree;

pub use base::Base;
pub use confine::confine;
pub use fence::{Fence, FenceError};
pub use handoff::{Handed, take as take_handoff};
pub use hook::{HOOK_LIMIT, StateHook};
pub use identity_file::IdentityFileError;
pub use limit::{
    LimitError, MAX_ARGUMENT_BYTES, MAX_ARGUMENTS, MAX_PATH_BYTES, MAX_VARIABLE_BYTES, MAX_VARIABLES,
};
pub use privilege::settle as settle_privileges;
pub use serve::agent::{AgentError, AgentOptions, run as run_agent};
pub use serve::init::{InitError, InitOptions, run as run_init};
pub use sys::{adopt, harden};
