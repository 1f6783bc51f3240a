#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod asset;
mod encoding;
mod page;
mod policy;

pub use asset::is_built;
pub use page::{PAGES, pages};
