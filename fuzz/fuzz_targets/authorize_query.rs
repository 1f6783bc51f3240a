//! The query of an authorization request: whatever it is, the answer goes nowhere that its client did not register.
#![no_main]

use cocoonbox_oauth::{AuthorizeQuery, Client, Issuer, Verdict, decide, read_registration};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(query) = AuthorizeQuery::parse(text) else { return };
    let issuer: Issuer = "https://cb.example".parse().expect("an issuer");
    let json = br#"{"redirect_uris":["http://127.0.0.1/cb","https://agent.example/cb?k=v"]}"#;
    let agent = read_registration(json, "cbo_1".parse().expect("an id")).expect("a client");
    let own = Client::first_party(&"cocoonbox-cli".parse().expect("an id")).expect("compiled in");
    for client in [agent, own] {
        let Ok(verdict) = decide(&query, client, &issuer) else { continue };
        let there = match verdict {
            Verdict::Back { redirect, .. } => redirect,
            Verdict::Ask(request) => request.granted("cbc_1", &issuer),
        };
        assert!(there.starts_with("http://127.0.0.1") || there.starts_with("https://agent.example/cb?k=v&"), "{there}");
        assert!(there.ends_with("iss=https%3A%2F%2Fcb.example") && !there.contains(['\r', '\n', '#']), "{there}");
    }
});
