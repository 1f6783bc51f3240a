//! The form of the token endpoint: any bytes are members, each once, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| cocoonbox_oauth::http::fuzz_form(bytes));
