//! A box's identity file: any bytes are an identity whose key holds together, or a typed error.
#![no_main]

use cocoonbox_wire::identity::{Identity, key_id};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(identity) = Identity::parse(bytes) {
        assert_eq!(key_id(&identity.key().expect("it was checked")), identity.key_id);
        assert_eq!(Identity::parse(&identity.to_bytes()).expect("what we write we read"), identity);
    }
});
