//! What a caller of the guest channel says: any line is a request or a typed error, and a request keeps its meaning.
#![no_main]

use cocoonbox_wire::silkd::{decode_request, request_line};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    if let Ok(request) = decode_request(line) {
        let written = request_line(&request);
        let text = written.strip_suffix(b"\n").expect("a line ends in a newline");
        assert!(!text.contains(&b'\n'), "one line");
        assert_eq!(decode_request(text).expect("what we write we read"), request);
    }
});
