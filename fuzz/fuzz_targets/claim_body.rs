//! The body of a claim over HTTP: any bytes are a request or a refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    cocoonbox_sandbox::fuzzing::claim_body(bytes);
});
