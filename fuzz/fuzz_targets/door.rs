//! What a hostile guest sends through its doors: the line that names one, and what comes after it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    cocoonbox_sandbox::fuzzing::door(bytes);
});
