//! Cutting a stream into lines: however it comes in pieces, the lines are those of the whole, and none is too long.
#![no_main]

use bytes::BytesMut;
use cocoonbox_wire::silkd::LineCodec;
use libfuzzer_sys::fuzz_target;
use tokio_util::codec::Decoder as _;

const LIMIT: usize = 16;

/// The lines of a stream that comes in pieces of at most `size` bytes, and whether it ended well.
fn lines(data: &[u8], size: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut codec, mut buffer, mut found) = (LineCodec::with_limit(LIMIT), BytesMut::new(), Vec::new());
    for piece in data.chunks(size) {
        buffer.extend_from_slice(piece);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(line)) => found.push(line.to_vec()),
                Ok(None) => break,
                Err(_) => return (found, false),
            }
        }
    }
    match codec.decode_eof(&mut buffer) {
        Ok(None) => (found, true),
        _ => (found, false),
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, data) = input;
    let whole = lines(data, data.len().max(1));
    let pieces = lines(data, usize::from(size).max(1));
    assert_eq!(whole, pieces);
    assert!(whole.0.iter().all(|line| line.len() < LIMIT && !line.contains(&b'\n')));
    if whole.1 {
        let joined: Vec<u8> = whole.0.iter().flat_map(|line| [line.as_slice(), b"\n"].concat()).collect();
        assert_eq!(joined, data);
    }
});
