//! What a node answers to a server that keeps its boxes there: any bytes are an answer or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    cocoonbox_sandbox::fuzzing::node_answer(bytes);
});
