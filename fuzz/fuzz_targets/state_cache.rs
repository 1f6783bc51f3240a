//! A scan cache without its checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = cocoonbox_state::decode_cache("cb-a", bytes);
});
