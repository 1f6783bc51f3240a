//! The last output of a detached program.

use std::collections::VecDeque;

use bytes::Bytes;

/// Which stream of a program a piece of output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// Pieces of output in order, the oldest dropped when there are too many bytes.
#[derive(Debug)]
pub(crate) struct Ring {
    pieces: VecDeque<(Stream, Bytes)>,
    /// The number of the first kept piece.
    first: u64,
    bytes: usize,
    limit: usize,
}

impl Ring {
    pub(crate) fn new(limit: usize) -> Self {
        Self { pieces: VecDeque::new(), first: 0, bytes: 0, limit }
    }

    pub(crate) fn push(&mut self, stream: Stream, data: &[u8]) {
        const SMALL: usize = 4096;
        let data = &data[data.len().saturating_sub(self.limit)..];
        self.bytes += data.len();
        match self.pieces.back_mut() {
            // many tiny writes must not cost a piece each
            Some((last, piece)) if *last == stream && piece.len() + data.len() <= SMALL => {
                *piece = [&piece[..], data].concat().into();
            }
            _ => self.pieces.push_back((stream, Bytes::copy_from_slice(data))),
        }
        while self.bytes > self.limit || self.pieces.len() > self.limit / 64 + 1 {
            let Some((_, piece)) = self.pieces.pop_front() else { break };
            self.bytes -= piece.len();
            self.first += 1;
        }
    }

    /// Returns what lies at `cursor` (a piece's number and how much of it was read) and moves the cursor past it.
    pub(crate) fn read(&self, cursor: &mut (u64, usize)) -> Option<(Stream, Bytes)> {
        if cursor.0 < self.first {
            *cursor = (self.first, 0);
        }
        loop {
            let (stream, piece) = self.pieces.get((cursor.0 - self.first) as usize)?;
            if cursor.1 < piece.len() {
                let rest = piece.slice(cursor.1..);
                cursor.1 = piece.len();
                return Some((*stream, rest));
            }
            if cursor.0 + 1 >= self.first + self.pieces.len() as u64 {
                return None;
            }
            *cursor = (cursor.0 + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_late_reader_gets_the_last_bytes() {
        let mut ring = Ring::new(10_000);
        for number in 0..5000_u32 {
            ring.push(if number % 3 == 0 { Stream::Err } else { Stream::Out }, &number.to_le_bytes());
        }
        let (mut cursor, mut seen) = ((0, 0), Vec::new());
        while let Some((_, piece)) = ring.read(&mut cursor) {
            seen.extend_from_slice(&piece);
        }
        assert!(seen.len() <= 10_000 && seen.ends_with(&4999_u32.to_le_bytes()));
    }

    proptest! {
        #[test]
        fn a_reader_that_keeps_up_sees_every_byte(
            writes in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 1..300)), 0..60),
        ) {
            let (mut ring, mut cursor) = (Ring::new(1 << 20), (0, 0));
            let mut want = (Vec::new(), Vec::new());
            let mut have = (Vec::new(), Vec::new());
            for (err, data) in writes {
                let stream = if err { want.1.extend(&data); Stream::Err } else { want.0.extend(&data); Stream::Out };
                ring.push(stream, &data);
                if data[0] % 2 == 0 {
                    while let Some((stream, piece)) = ring.read(&mut cursor) {
                        if stream == Stream::Err { have.1.extend_from_slice(&piece) } else { have.0.extend_from_slice(&piece) }
                    }
                }
            }
            while let Some((stream, piece)) = ring.read(&mut cursor) {
                if stream == Stream::Err { have.1.extend_from_slice(&piece) } else { have.0.extend_from_slice(&piece) }
            }
            prop_assert_eq!(have, want);
        }
    }
}
