#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod source;
mod tree;

pub use source::{CodeLine, code_lines};
pub use tree::{compare_with_list, library_crates, root, rust_files, tracked_files};
