//! What clients say of themselves: any bytes are a client that cannot mislead, or an error.
#![no_main]

use cocoonbox_oauth::{read_document, read_registration};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let id = || "https://agent.example/client.json".parse().expect("an id");
    for read in [read_registration(bytes, id()), read_document(bytes, id())] {
        let Ok(client) = read else { continue };
        assert!(!client.name.is_empty() && client.name.chars().count() <= 253);
        assert!(!client.name.chars().any(|c| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')));
        assert!(!client.redirect_uris.is_empty());
        for uri in &client.redirect_uris {
            assert!(uri.as_str().starts_with("https://") || uri.is_loopback(), "{uri:?}");
            assert!(client.redirect(uri.as_str()).is_ok());
        }
    }
});
