//! Call tokens: nothing that was not signed with the identity's key is believed.
#![no_main]

use std::sync::LazyLock;

use cocoonbox_core::Timestamp;
use cocoonbox_wire::call_token::{MethodClass, mint, verify};
use cocoonbox_wire::identity::Identity;
use ed25519_dalek::SigningKey;
use libfuzzer_sys::fuzz_target;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

static GOOD: LazyLock<(Identity, String)> = LazyLock::new(|| {
    let key = SigningKey::from_bytes(&[7; 32]);
    let (id, wake) = ("cb-abcdefghij".parse().expect("an id"), format!("wk_{}", "a".repeat(26)));
    let wake = wake.parse().expect("a wake");
    let token = mint(&key, &id, &wake, MethodClass::Exec, NOW);
    (Identity::new(id, wake, None, &key.verifying_key()), token)
});

fuzz_target!(|input: (u16, u16, &str)| {
    let (from, to, text) = input;
    let (identity, good) = &*GOOD;
    let check = |token: &str| {
        if token != good {
            assert!(verify(token, identity, MethodClass::Exec, NOW).is_err(), "{token}");
        }
    };
    check(text);
    // a good token with a part of it replaced
    let from = usize::from(from) % (good.len() + 1);
    let to = from.max(usize::from(to) % (good.len() + 1));
    check(&format!("{}{text}{}", &good[..from], &good[to..]));
});
