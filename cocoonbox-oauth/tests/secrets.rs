//! No public type and no error prints a secret.

use std::error::Error;
use std::sync::Arc;

use cocoonbox_core::{SeededEntropy, SystemClock};
use cocoonbox_oauth::testkit::{AT, device, link, token, user};
use cocoonbox_oauth::{
    AccessToken, Credential, FaultyUserStore, LinkToken, MemoryUserStore, ServiceOptions, TokenClass,
    TokenIndex, UserStore, ensure_admin,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn nothing_public_prints_a_secret_or_its_hash() {
    let store = MemoryUserStore::default();
    let first = ensure_admin(&store, AT, &SeededEntropy::new(1)).await.expect("a start").expect("the first");
    let index = Arc::new(TokenIndex::load(&store).await.expect("the tokens"));
    let caller = index.check(&first.token, AT).expect("in");
    let other = user("jo");
    let ((device_secret, record), (link_secret, link_record)) =
        (token(&other.id, TokenClass::Device), link(&other.id));
    let mut printed = format!("{first:?} {:?} {:?} {caller:?} {index:?} {store:?}", first.token, first.link);
    printed +=
        &format!("{record:?} {link_record:?} {:?} {:?}", record.hash, Credential::Token(record.clone()));
    printed += &format!("{:?}", device());

    let bad = [device_secret.reveal().to_uppercase(), format!("{}x", device_secret.reveal())];
    for text in &bad {
        let errors: [Box<dyn Error>; 3] = [
            Box::new(AccessToken::parse(text).expect_err("no token")),
            Box::new(LinkToken::parse(text).expect_err("no link")),
            Box::new(index.authenticate(Some(text.as_bytes()), AT).expect_err("no token")),
        ];
        for error in errors {
            printed += &format!("{error} {error:?}");
        }
    }
    let unknown = store.redeem_link(&link_secret.hash(), &device(), AT).await.expect_err("unknown");
    printed += &format!("{unknown} {unknown:?}");
    let options = ServiceOptions::new(
        Arc::new(FaultyUserStore::new(store, [])),
        index,
        Arc::new(SystemClock),
        Arc::new(SeededEntropy::new(1)),
    );
    printed += &format!("{options:?}");

    let printed = printed.to_lowercase();
    for (name, secret, hash) in [
        ("token", first.token.reveal(), first.token.hash()),
        ("link", first.link.reveal(), first.link.hash()),
        ("device", device_secret.reveal(), device_secret.hash()),
        ("device link", link_secret.reveal(), link_secret.hash()),
    ] {
        let digits = secret.rsplit_once('_').expect("a prefix").1;
        assert!(!printed.contains(digits), "the {name} is printed");
        assert!(!printed.contains(&hex(hash.as_bytes())), "the hash of the {name} is printed");
        assert!(!printed.contains(&format!("{:?}", hash.as_bytes())), "the hash of the {name} is printed");
    }
}
