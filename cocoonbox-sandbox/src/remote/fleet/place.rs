//! Where a claim goes.

use std::cmp::Reverse;
use std::sync::Arc;

use cocoonbox_core::backend::ClaimRequest;

use super::member::Member;
use crate::message::Room;

/// Returns the nodes that may take a claim, the best first.
pub(super) fn order(members: &[Arc<Member>], request: &ClaimRequest) -> Vec<Arc<Member>> {
    let mut fit: Vec<_> = members
        .iter()
        .filter(|member| member.answers())
        .filter(|member| member.capabilities().is_some_and(|able| request.check(&able).is_ok()))
        .filter_map(|member| Some((rank(member.room()?, request.size.memory_bytes()), Arc::clone(member))))
        .collect();
    fit.sort_by_key(|(rank, _)| *rank);
    fit.into_iter().map(|(_, member)| member).collect()
}

/// Ranks a node, the least first: those that take claims and have a place free, then those with memory for this one,
/// then by free places and, among equals, by free memory. A full one is still asked, last: it may have room by now.
fn rank(room: Room, needed: u64) -> (bool, bool, Reverse<u32>, Reverse<u64>) {
    let free =
        room.max_claims.filter(|max| *max > 0).map_or(u32::MAX, |max| max).saturating_sub(room.claimed);
    let memory = room.memory_available_bytes;
    let refuses = room.draining || free == 0;
    (refuses, memory.is_some_and(|memory| memory < needed), Reverse(free), Reverse(memory.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_with_the_most_room_comes_first() {
        let room = |claimed, max_claims, gib: Option<u64>| Room {
            claimed,
            max_claims,
            draining: false,
            memory_available_bytes: gib.map(|gib| gib << 30),
        };
        let mut nodes = [
            ("draining", Room { draining: true, ..room(0, Some(100), Some(64)) }),
            ("full", room(4, Some(4), Some(64))),
            ("half a GiB left", room(0, Some(100), Some(0))),
            ("nine places", room(1, Some(10), Some(8))),
            ("ten places, less memory", room(0, Some(10), Some(4))),
            ("ten places, more memory", room(0, Some(10), Some(9))),
            ("no cap", room(50, None, Some(2))),
        ];
        nodes.sort_by_key(|(_, room)| rank(*room, 1 << 30));
        assert_eq!(
            nodes.map(|(name, _)| name),
            [
                "no cap",
                "ten places, more memory",
                "ten places, less memory",
                "nine places",
                "half a GiB left",
                "draining",
                "full",
            ]
        );
    }
}
