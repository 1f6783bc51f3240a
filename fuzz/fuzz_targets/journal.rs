//! A claim's record on disk: any bytes are a record that keeps its meaning, or a typed error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    cocoonbox_sandbox::fuzzing::record(bytes);
});
