//! The two byte sequences of a session: output until it is acknowledged, input until it is written.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::ring::Stream;

/// The most bytes of either sequence that are held.
pub(crate) const WINDOW: u64 = 8 * 1024 * 1024;

/// The most pieces that are held: a program that writes byte by byte to both streams must not cost a piece each.
const MAX_PIECES: usize = 16 * 1024;

/// Pieces smaller than this are joined.
const SMALL: usize = 4096;

/// An offset that does not fit the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum OffsetError {
    #[error("offset {offset} lies beyond the output's end, {end}")]
    BeyondOutput { offset: u64, end: u64 },
    #[error("output before {start} was acknowledged and is gone; {offset} was asked for")]
    Gone { offset: u64, start: u64 },
    #[error("input at {offset} leaves a gap: input up to {received} was received")]
    Gap { offset: u64, received: u64 },
    #[error("more than {WINDOW} bytes of input are not acknowledged")]
    Window,
    #[error("input goes beyond its end, {end}")]
    BeyondEnd { end: u64 },
    #[error("input cannot end at {offset}: input up to {received} was received")]
    EndMismatch { offset: u64, received: u64 },
}

/// Output that is not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pieces: VecDeque<(Stream, Bytes)>,
    start: u64,
    end: u64,
}

impl Output {
    /// Tells how many more bytes may be read from the program.
    pub(crate) fn room(&self) -> usize {
        if self.pieces.len() >= MAX_PIECES { 0 } else { (WINDOW - (self.end - self.start)) as usize }
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn push(&mut self, stream: Stream, data: &[u8]) {
        self.end += data.len() as u64;
        match self.pieces.back_mut() {
            Some((last, piece)) if *last == stream && piece.len() + data.len() <= SMALL => {
                *piece = [&piece[..], data].concat().into();
            }
            _ => self.pieces.push_back((stream, Bytes::copy_from_slice(data))),
        }
    }

    /// Forgets output before `offset`.
    pub(crate) fn acknowledge(&mut self, offset: u64) -> Result<(), OffsetError> {
        if offset > self.end {
            return Err(OffsetError::BeyondOutput { offset, end: self.end });
        }
        while self.start < offset {
            let Some((_, piece)) = self.pieces.front_mut() else { break };
            let known = (offset - self.start).min(piece.len() as u64);
            self.start += known;
            if known == piece.len() as u64 {
                self.pieces.pop_front();
            } else {
                *piece = piece.slice(known as usize..);
            }
        }
        Ok(())
    }

    /// Checks that output from `offset` on can be replayed.
    pub(crate) fn check(&self, offset: u64) -> Result<(), OffsetError> {
        if offset > self.end {
            Err(OffsetError::BeyondOutput { offset, end: self.end })
        } else if offset < self.start {
            Err(OffsetError::Gone { offset, start: self.start })
        } else {
            Ok(())
        }
    }

    fn read(&self, offset: u64) -> Option<(Stream, Bytes)> {
        // readers are near one of the two ends: at the back when they keep up, at the front when they replay
        let mut back = self.end;
        for (stream, piece) in self.pieces.iter().rev().take(8) {
            back -= piece.len() as u64;
            if back <= offset {
                return (offset < back + piece.len() as u64)
                    .then(|| (*stream, piece.slice((offset - back) as usize..)));
            }
        }
        let mut at = self.start;
        for (stream, piece) in &self.pieces {
            let next = at + piece.len() as u64;
            if offset < next {
                return Some((*stream, piece.slice((offset.max(at) - at) as usize..)));
            }
            at = next;
        }
        None
    }
}

/// Where in the output a stream is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader {
    pub(crate) offset: u64,
}

impl Reader {
    /// Returns the next output, its offset, and moves past it. Output that was acknowledged meanwhile is skipped.
    pub(crate) fn next(&mut self, output: &Output) -> Option<(Stream, u64, Bytes)> {
        self.offset = self.offset.max(output.start);
        let (stream, data) = output.read(self.offset)?;
        let offset = self.offset;
        self.offset += data.len() as u64;
        Some((stream, offset, data))
    }
}

/// Input that is not written.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pieces: VecDeque<Bytes>,
    received: u64,
    written: u64,
    end: Option<u64>,
    /// The program takes no more: what comes counts as written.
    discard: bool,
}

impl Input {
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Takes input at `offset`; what was received before is skipped.
    pub(crate) fn accept(&mut self, offset: u64, mut data: Bytes) -> Result<(), OffsetError> {
        let gap = OffsetError::Gap { offset, received: self.received };
        let known = self.received.checked_sub(offset).ok_or(gap)?;
        if known >= data.len() as u64 {
            return Ok(());
        }
        data = data.slice(known as usize..);
        if let Some(end) = self.end {
            return Err(OffsetError::BeyondEnd { end });
        }
        if self.received + data.len() as u64 - self.written > WINDOW {
            return Err(OffsetError::Window);
        }
        self.received += data.len() as u64;
        if self.discard {
            self.written = self.received;
            return Ok(());
        }
        match self.pieces.back_mut() {
            Some(piece) if piece.len() + data.len() <= SMALL => *piece = [&piece[..], &data].concat().into(),
            _ => self.pieces.push_back(data),
        }
        Ok(())
    }

    /// Ends the input at `offset`.
    pub(crate) fn finish(&mut self, offset: u64) -> Result<(), OffsetError> {
        match self.end {
            Some(end) if end == offset => Ok(()),
            Some(end) => Err(OffsetError::BeyondEnd { end }),
            None if offset == self.received => {
                self.end = Some(offset);
                Ok(())
            }
            None => Err(OffsetError::EndMismatch { offset, received: self.received }),
        }
    }

    /// Ends the input where it is, if it has not ended.
    pub(crate) fn finish_here(&mut self) {
        self.end.get_or_insert(self.received);
    }

    /// Returns the next piece to write.
    pub(crate) fn next(&self) -> Option<Bytes> {
        self.pieces.front().cloned()
    }

    /// Tells whether all input was written.
    pub(crate) fn is_done(&self) -> bool {
        self.end == Some(self.written)
    }

    /// Notes that the first `count` bytes of the next piece were written.
    pub(crate) fn wrote(&mut self, count: usize) {
        if let Some(piece) = self.pieces.front_mut() {
            self.written += count.min(piece.len()) as u64;
            if count >= piece.len() {
                self.pieces.pop_front();
            } else {
                *piece = piece.slice(count..);
            }
        }
    }

    /// Drops what is not written, now and from now on.
    pub(crate) fn discard(&mut self) {
        self.discard = true;
        self.pieces.clear();
        self.written = self.received;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        let mut output = Output::default();
        output.push(Stream::Out, b"hello");
        assert_eq!(output.acknowledge(6), Err(OffsetError::BeyondOutput { offset: 6, end: 5 }));
        output.acknowledge(3).unwrap();
        output.acknowledge(1).unwrap();
        assert_eq!(output.check(2), Err(OffsetError::Gone { offset: 2, start: 3 }));
        assert_eq!((output.check(3), output.check(5)), (Ok(()), Ok(())));
        assert_eq!(output.check(6), Err(OffsetError::BeyondOutput { offset: 6, end: 5 }));

        let mut input = Input::default();
        assert_eq!(
            input.accept(1, Bytes::from_static(b"x")),
            Err(OffsetError::Gap { offset: 1, received: 0 })
        );
        input.accept(0, Bytes::from_static(b"abc")).unwrap();
        input.accept(1, Bytes::from_static(b"bcd")).unwrap();
        assert_eq!(input.finish(3), Err(OffsetError::EndMismatch { offset: 3, received: 4 }));
        input.finish(4).unwrap();
        input.finish(4).unwrap();
        assert_eq!(input.accept(4, Bytes::from_static(b"e")), Err(OffsetError::BeyondEnd { end: 4 }));
        input.accept(0, Bytes::from_static(b"abcd")).unwrap();
        let full = Bytes::from(vec![0; WINDOW as usize + 1]);
        assert_eq!(Input::default().accept(0, full.clone()), Err(OffsetError::Window));
        assert_eq!(Input::default().accept(0, full.slice(1..)), Ok(()));
    }

    #[test]
    fn bytes_written_one_by_one_cost_few_pieces() {
        let mut output = Output::default();
        for number in 0..100_000 {
            output.push(if number % 5000 == 0 { Stream::Err } else { Stream::Out }, b"x");
        }
        assert!(output.pieces.len() < 200, "{}", output.pieces.len());
        let mut output = Output::default();
        let mut count = 0_usize;
        while output.room() > 0 {
            output.push(if count.is_multiple_of(2) { Stream::Err } else { Stream::Out }, b"x");
            count += 1;
        }
        assert_eq!(count, MAX_PIECES);
    }

    proptest! {
        #[test]
        fn a_replay_from_any_offset_is_the_same_bytes(
            writes in proptest::collection::vec((any::<bool>(), 1_usize..6000), 1..40),
            acknowledged in 0..=1000_u64,
            from in 0..=1000_u64,
        ) {
            let (mut output, mut whole) = (Output::default(), Vec::new());
            for (err, length) in writes {
                let data: Vec<u8> = (0..length).map(|n| (whole.len() + n) as u8).collect();
                output.push(if err { Stream::Err } else { Stream::Out }, &data);
                whole.extend(data);
            }
            let acknowledged = acknowledged * whole.len() as u64 / 1000;
            let from = acknowledged + from * (whole.len() as u64 - acknowledged) / 1000;
            output.acknowledge(acknowledged).unwrap();
            prop_assert_eq!(output.room() as u64, WINDOW - (whole.len() as u64 - acknowledged));
            output.check(from).unwrap();
            let (mut reader, mut seen) = (Reader { offset: from }, Vec::new());
            while let Some((_, offset, data)) = reader.next(&output) {
                prop_assert_eq!(offset, from + seen.len() as u64);
                seen.extend_from_slice(&data);
            }
            prop_assert_eq!(&seen[..], &whole[from as usize..]);
        }

        #[test]
        fn input_arrives_once_whatever_is_sent_again(
            sends in proptest::collection::vec((0_usize..3000, 0_usize..3000), 1..60),
        ) {
            let whole: Vec<u8> = (0..20_000_u32).map(|n| n as u8).collect();
            let (mut input, mut seen) = (Input::default(), Vec::new());
            for (back, length) in sends {
                let offset = (input.received() as usize).saturating_sub(back);
                let data = &whole[offset..(offset + length).min(whole.len())];
                input.accept(offset as u64, Bytes::copy_from_slice(data)).unwrap();
                if let Some(piece) = input.next() {
                    let count = piece.len().div_ceil(2);
                    seen.extend_from_slice(&piece[..count]);
                    input.wrote(count);
                }
            }
            while let Some(piece) = input.next() {
                seen.extend_from_slice(&piece);
                input.wrote(piece.len());
            }
            prop_assert_eq!(input.written(), input.received());
            prop_assert_eq!(&seen[..], &whole[..input.received() as usize]);
        }
    }
}
