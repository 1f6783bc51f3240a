//! What a hostile guest answers: any line is a response or a typed error, and a response keeps its meaning.
#![no_main]

use cocoonbox_wire::silkd::{decode_response, response_line};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    if let Ok(response) = decode_response(line) {
        let written = response_line(&response);
        let text = written.strip_suffix(b"\n").expect("a line ends in a newline");
        assert!(!text.contains(&b'\n'), "one line");
        assert_eq!(decode_response(text).expect("what we write we read"), response);
    }
});
