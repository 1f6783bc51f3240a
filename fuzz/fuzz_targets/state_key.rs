//! A printed state key.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(key) = cocoonbox_state::StateKey::import(text)
    {
        let printed = key.export();
        let again = cocoonbox_state::StateKey::import(printed.reveal()).expect("what was printed reads back");
        assert!(again.export().matches(&printed));
    }
});
