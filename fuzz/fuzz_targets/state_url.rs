//! A presigned URL as an edge gets it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let signer = cocoonbox_state::UrlSigner::new(
        &cocoonbox_seal::Key::new([1; 32]),
        std::sync::Arc::new(cocoonbox_core::SystemClock),
    );
    if let Ok(url) = std::str::from_utf8(bytes) {
        for method in [cocoonbox_state::PresignedMethod::Get, cocoonbox_state::PresignedMethod::Put] {
            assert!(signer.verify(method, url).is_err(), "nobody signed it");
        }
    }
});
