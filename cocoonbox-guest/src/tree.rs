//! Trees as tar streams, blocking.
//!
//! Unpacking is staged: everything is written below a directory of its own inside the destination, and moved into
//! place by renames once the archive is whole. Names are walked one component at a time, none of them a symbolic link,
//! so that no entry leads out of the destination, whatever it or an earlier entry says.

mod pack;
mod unpack;

pub(crate) use pack::pack;
pub(crate) use unpack::unpack;

#[cfg(test)]
mod tests;
