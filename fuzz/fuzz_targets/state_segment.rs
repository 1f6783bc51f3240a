//! A manifest's segment once it is opened.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = cocoonbox_state::decode_segment(bytes);
});
