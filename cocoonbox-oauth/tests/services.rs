//! `SignIn` and `Account`, over a real connection.

use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::{ManualClock, SystemEntropy};
use cocoonbox_oauth::testkit::{AT, user};
use cocoonbox_oauth::{
    AccessToken, AgentIndex, DoorLimits, FirstStart, LinkToken, MemoryUserStore, ServiceOptions, TokenIndex,
    User, UserKey, UserStore, ensure_admin, renew_personal_token, services, sign_in_link,
};
use cocoonbox_wire::control::v1::account_client::AccountClient;
use cocoonbox_wire::control::v1::sign_in_client::SignInClient;
use cocoonbox_wire::control::v1::{
    ListDevicesRequest, RedeemLinkReply, RedeemLinkRequest, RevokeDeviceRequest, WhoAmIReply, WhoAmIRequest,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};

struct Stand {
    store: Arc<MemoryUserStore>,
    index: Arc<TokenIndex>,
    clock: Arc<ManualClock>,
    first: FirstStart,
    channel: Channel,
}

async fn stand(limits: DoorLimits) -> Stand {
    let (store, clock) = (Arc::new(MemoryUserStore::default()), Arc::new(ManualClock::new(AT)));
    let first = ensure_admin(&*store, AT, &SystemEntropy).await.expect("a start").expect("the first");
    let index = Arc::new(TokenIndex::load(&*store).await.expect("the tokens"));
    let agents = Arc::new(AgentIndex::load(&*store, AT).await.expect("the grants"));
    let entropy = Arc::new(SystemEntropy);
    let options = ServiceOptions::new(store.clone(), index.clone(), agents, clock.clone(), entropy)
        .with_version("7.7")
        .with_limits(limits);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = Server::builder().add_routes(services(options));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let channel = Channel::from_shared(format!("http://{address}"))
        .expect("a URI")
        .connect()
        .await
        .expect("it answers");
    Stand { store, index, clock, first, channel }
}

fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a value"));
    request
}

impl Stand {
    async fn redeem(&self, link: &str, device_name: &str) -> Result<RedeemLinkReply, Status> {
        let request = RedeemLinkRequest { link: link.to_owned(), device_name: device_name.to_owned() };
        SignInClient::new(self.channel.clone()).redeem_link(request).await.map(tonic::Response::into_inner)
    }

    async fn who(&self, token: &str) -> Result<WhoAmIReply, Status> {
        let request = with(token, WhoAmIRequest {});
        AccountClient::new(self.channel.clone()).who_am_i(request).await.map(tonic::Response::into_inner)
    }

    async fn link(&self) -> LinkToken {
        sign_in_link(&*self.store, &self.first.user.id, AT, &SystemEntropy).await.expect("a link")
    }
}

#[tokio::test]
async fn a_link_becomes_a_device_that_can_be_listed_and_revoked() {
    let stand = stand(DoorLimits::default()).await;
    let reply = stand.redeem(stand.first.link.reveal(), "laptop").await.expect("a fresh link");
    assert_eq!(reply.user_name, "admin");
    let who = stand.who(&reply.token).await.expect("the token works at once");
    assert_eq!((who.user_name.as_str(), who.admin, who.version.as_str()), ("admin", true, "7.7"));
    assert_eq!(who.user_id, stand.first.user.id.to_string());

    stand.clock.advance(Duration::from_secs(5));
    let second = stand.redeem(stand.link().await.reveal(), "phone").await.expect("a fresh link");
    let mut account = AccountClient::new(stand.channel.clone());
    let devices =
        account.list_devices(with(&reply.token, ListDevicesRequest {})).await.expect("a list").into_inner();
    let seen: Vec<_> = devices
        .devices
        .iter()
        .map(|d| (d.label.as_str(), d.current, d.created_at_ms, d.used_at_ms))
        .collect();
    let at = AT.millis();
    assert_eq!(seen, [("laptop", true, at, at + 5000), ("phone", false, at + 5000, 0)]);

    let open = stand.index.check(&AccessToken::parse(&second.token).expect("a token"), AT).expect("in");
    let phone = devices.devices[1].id.clone();
    account
        .revoke_device(with(&reply.token, RevokeDeviceRequest { device_id: phone.clone() }))
        .await
        .expect("held");
    assert!(open.ended().is_cancelled());
    assert_eq!(stand.who(&second.token).await.expect_err("revoked").code(), Code::Unauthenticated);
    let again = account.revoke_device(with(&reply.token, RevokeDeviceRequest { device_id: phone })).await;
    assert_eq!(again.expect_err("gone").code(), Code::NotFound);
}

#[tokio::test]
async fn a_link_is_refused_when_spent_old_or_no_link() {
    let stand = stand(DoorLimits::default()).await;
    stand.redeem(stand.first.link.reveal(), "laptop").await.expect("a fresh link");
    let unknown = LinkToken::random(&SystemEntropy).expect("randomness");
    let late = stand.link().await;
    let long = "x".repeat(10_000);
    let mut messages = Vec::new();
    for link in [stand.first.link.reveal(), unknown.reveal(), "", "cbl_", &long] {
        messages.push(stand.redeem(link, "laptop").await.expect_err("no good"));
    }
    stand.clock.advance(Duration::from_mins(10));
    messages.push(stand.redeem(late.reveal(), "laptop").await.expect_err("too old"));
    for status in &messages {
        assert_eq!(status.code(), Code::Unauthenticated);
        // nobody learns which it was
        assert_eq!(status.message(), messages[0].message());
    }
    let huge = stand.redeem(&"x".repeat(64 * 1024), "laptop").await.expect_err("over the limit");
    assert_eq!(huge.code(), Code::OutOfRange);
}

#[tokio::test]
async fn a_bad_device_name_does_not_spend_the_link() {
    let stand = stand(DoorLimits::default()).await;
    for name in ["", "a\nb", &"a".repeat(65)] {
        let status = stand.redeem(stand.first.link.reveal(), name).await.expect_err("no name");
        assert_eq!(status.code(), Code::InvalidArgument, "{name:?}");
    }
    stand.redeem(stand.first.link.reveal(), " laptop ").await.expect("still good");
}

#[tokio::test]
async fn a_link_of_somebody_shut_out_is_refused_and_so_is_their_token() {
    let stand = stand(DoorLimits::default()).await;
    let held = stand.store.user(UserKey::Id(&stand.first.user.id)).await.expect("an answer").expect("made");
    stand.store.save_user(&User { disabled: true, ..held }).await.expect("fresh");
    stand.index.reload(&*stand.store).await.expect("read");
    let status = stand.redeem(stand.first.link.reveal(), "laptop").await.expect_err("shut out");
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(
        stand.who(stand.first.token.reveal()).await.expect_err("shut out").code(),
        Code::Unauthenticated
    );
}

#[tokio::test]
async fn wrong_links_run_out_of_tries_and_good_ones_do_not_count() {
    let stand = stand(DoorLimits::new(3, Duration::from_mins(15))).await;
    for _ in 0..5 {
        stand.redeem(stand.link().await.reveal(), "laptop").await.expect("a fresh link");
    }
    for _ in 0..3 {
        assert_eq!(
            stand.redeem("cbl_wrong", "laptop").await.expect_err("wrong").code(),
            Code::Unauthenticated
        );
    }
    let status = stand.redeem(stand.first.link.reveal(), "laptop").await.expect_err("no tries left");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("15 minutes"), "{}", status.message());
    stand.clock.advance(Duration::from_mins(15));
    assert_eq!(stand.redeem("cbl_wrong", "laptop").await.expect_err("wrong").code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_call_without_a_good_token_is_unauthenticated() {
    let stand = stand(DoorLimits::default()).await;
    let wrong = format!("cb_{}", "0".repeat(64));
    for token in ["", "cb_", "x", wrong.as_str()] {
        assert_eq!(stand.who(token).await.expect_err("no token").code(), Code::Unauthenticated, "{token}");
    }
    let mut account = AccountClient::new(stand.channel.clone());
    let missing = account.list_devices(ListDevicesRequest {}).await.expect_err("no token");
    assert_eq!(missing.code(), Code::Unauthenticated);
    let missing = account.revoke_device(RevokeDeviceRequest::default()).await.expect_err("no token");
    assert_eq!(missing.code(), Code::Unauthenticated);
    let mut two = with(stand.first.token.reveal(), WhoAmIRequest {});
    two.metadata_mut().append("authorization", "Bearer x".parse().expect("a value"));
    assert_eq!(account.who_am_i(two).await.expect_err("two tokens").code(), Code::Unauthenticated);
}

#[tokio::test]
async fn anothers_device_is_not_found_and_neither_is_the_personal_token() {
    let stand = stand(DoorLimits::default()).await;
    let jo = user("jo");
    stand.store.create_user(&jo, &[]).await.expect("a new user");
    let token = renew_personal_token(&*stand.store, &jo.id, AT, &SystemEntropy).await.expect("a token");
    let theirs = stand.redeem(stand.first.link.reveal(), "laptop").await.expect("a fresh link");
    let of = |token: &str| stand.index.check(&AccessToken::parse(token).expect("a token"), AT).expect("in");
    let (theirs, own) = (of(&theirs.token), of(token.reveal()));
    let mut account = AccountClient::new(stand.channel.clone());
    for device_id in [theirs.token().as_str(), own.token().as_str(), "", "no id", &"x".repeat(4000)] {
        let request = with(token.reveal(), RevokeDeviceRequest { device_id: device_id.to_owned() });
        let status = account.revoke_device(request).await.expect_err("not a device of jo");
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no such device"));
    }
    assert!(!theirs.ended().is_cancelled() && !own.ended().is_cancelled());
}
