//! The signed word of a preview URL: nobody guesses one, and what is signed reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    cocoonbox_sandbox::fuzzing::preview_token(bytes);
});
