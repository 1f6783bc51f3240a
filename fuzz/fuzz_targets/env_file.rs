//! The claim's variables as a guest reads them: any bytes are some variables, and those read back.
#![no_main]

use cocoonbox_wire::env_file::{parse, render};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let variables = parse(bytes);
    let again = render(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    if again.len() <= cocoonbox_wire::env_file::MAX_BYTES {
        assert_eq!(parse(&again), variables);
    }
});
