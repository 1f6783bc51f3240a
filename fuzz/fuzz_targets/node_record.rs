//! A record of the node's own: any bytes are one or a refusal, and what is read is written the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    cocoonbox_sandbox::fuzzing::node_record(bytes);
});
