//! No public type, no error and no log line holds a secret.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use cocoonbox_core::{ManualClock, SeededEntropy, SystemClock, SystemEntropy};
use cocoonbox_oauth::testkit::{AT, device, link, token, user};
use cocoonbox_oauth::{
    AccessToken, AccountService, AgentIndex, Credential, Fault, FaultyUserStore, FirstStart, LinkToken,
    MemoryUserStore, ServiceOptions, SignInService, TokenClass, TokenHash, TokenIndex, UserStore,
    ensure_admin,
};
use cocoonbox_wire::control::v1::account_server::Account as _;
use cocoonbox_wire::control::v1::sign_in_server::SignIn as _;
use cocoonbox_wire::control::v1::{RedeemLinkRequest, RevokeDeviceRequest};
use tonic::Request;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn is_not_in(printed: &str, name: &str, secret: &str, hash: &TokenHash) {
    let printed = printed.to_lowercase();
    let digits = secret.rsplit_once('_').expect("a prefix").1;
    assert!(!printed.contains(digits), "the {name} is printed");
    assert!(!printed.contains(&hex(hash.as_bytes())), "the hash of the {name} is printed");
    assert!(!printed.contains(&format!("{:?}", hash.as_bytes())), "the hash of the {name} is printed");
}

async fn first_start(store: &dyn UserStore) -> FirstStart {
    ensure_admin(store, AT, &SystemEntropy).await.expect("a start").expect("the first")
}

#[tokio::test]
async fn nothing_public_prints_a_secret_or_its_hash() {
    let store = MemoryUserStore::default();
    let first = first_start(&store).await;
    let index = Arc::new(TokenIndex::load(&store).await.expect("the tokens"));
    let caller = index.check(&first.token, AT).expect("in");
    let other = user("jo");
    let ((device_secret, record), (link_secret, link_record)) =
        (token(&other.id, TokenClass::Device), link(&other.id));
    let mut printed = vec![
        format!("{first:?} {:?} {:?} {caller:?} {index:?} {store:?}", first.token, first.link),
        format!("{record:?} {link_record:?} {:?} {:?}", record.hash, Credential::Token(record.clone())),
        format!("{:?}", device()),
    ];
    for text in [device_secret.reveal().to_uppercase(), format!("{}x", device_secret.reveal())] {
        let errors: [Box<dyn Error>; 3] = [
            Box::new(AccessToken::parse(&text).expect_err("no token")),
            Box::new(LinkToken::parse(&text).expect_err("no link")),
            Box::new(index.authenticate(Some(text.as_bytes()), AT).expect_err("no token")),
        ];
        printed.extend(errors.map(|error| format!("{error} {error:?}")));
    }
    let unknown = store.redeem_link(&link_secret.hash(), &device(), AT).await.expect_err("unknown");
    printed.push(format!("{unknown} {unknown:?}"));
    let options = ServiceOptions::new(
        Arc::new(FaultyUserStore::new(store, [])),
        index,
        Arc::new(AgentIndex::default()),
        Arc::new(SystemClock),
        Arc::new(SeededEntropy::new(1)),
    );
    printed.push(format!("{options:?} {:?}", SignInService::new(options.clone())));

    let printed = printed.concat();
    is_not_in(&printed, "token", first.token.reveal(), &first.token.hash());
    is_not_in(&printed, "link", first.link.reveal(), &first.link.hash());
    is_not_in(&printed, "device's token", device_secret.reveal(), &device_secret.hash());
    is_not_in(&printed, "other link", link_secret.reveal(), &link_secret.hash());
}

#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_log_line_holds_a_secret() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _here = tracing::subscriber::set_default(subscriber);

    // calls 0 to 2 make the first start and the index; 3 is a redeeming that fails
    let store =
        Arc::new(FaultyUserStore::new(MemoryUserStore::default(), [(3, Fault::Before), (5, Fault::After)]));
    let first = first_start(&*store).await;
    let index = Arc::new(TokenIndex::load(&*store).await.expect("the tokens"));
    let clock = Arc::new(ManualClock::new(AT));
    let options = ServiceOptions::new(store, index.clone(), Arc::default(), clock, Arc::new(SystemEntropy));
    let (sign_in, account) = (SignInService::new(options.clone()), AccountService::new(options));
    let redeem = || {
        let link = first.link.reveal().to_owned();
        sign_in.redeem_link(Request::new(RedeemLinkRequest { link, device_name: "laptop".to_owned() }))
    };
    assert_eq!(redeem().await.expect_err("scheduled").code(), tonic::Code::Unavailable);
    let reply = redeem().await.expect("a good link").into_inner();
    redeem().await.expect_err("spent");
    index.reload(&MemoryUserStore::default()).await.expect("read");
    let mut revoke = Request::new(RevokeDeviceRequest { device_id: first.token.reveal().to_owned() });
    let header = format!("Bearer {}", reply.token).parse().expect("a value");
    revoke.metadata_mut().insert("authorization", header);
    account.revoke_device(revoke).await.expect_err("the token has ended");

    let log = String::from_utf8_lossy(&log.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned();
    assert!(log.contains("somebody came to a door") && log.contains("scheduled"), "{log}");
    let token = AccessToken::parse(&reply.token).expect("a token");
    is_not_in(&log, "token", first.token.reveal(), &first.token.hash());
    is_not_in(&log, "link", first.link.reveal(), &first.link.hash());
    is_not_in(&log, "new token", token.reveal(), &token.hash());
}
