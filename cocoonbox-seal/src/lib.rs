#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod aead;
mod key;

pub use aead::{NONCE_LENGTH, SealError, TAG_LENGTH, open, seal};
pub use key::{KEY_LENGTH, Key, derive};
