use std::sync::Arc;

use cocoonbox_boxes::{Caller, Limits, grpc};
use cocoonbox_core::UserId;
use cocoonbox_core::backend::{Fault, Method};
use cocoonbox_wire::control::v1 as wire;
use cocoonbox_wire::control::v1::boxes_client::BoxesClient;
use cocoonbox_wire::control::v1::boxes_server::BoxesServer;
use cocoonbox_wire::control::v1::state_client::StateClient;
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status};

use crate::setup::{World, user};

type Client = BoxesClient<BoxesServer<grpc::Boxes>>;

const LIMITS: Limits = Limits { max_boxes: Some(2), max_running: Some(1), max_agent_boxes: None };

fn client(world: &World) -> Client {
    BoxesClient::new(grpc::service(Arc::new(world.engine.clone())))
}

fn by<T>(user: &UserId, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Caller {
        user: user.clone(),
        admin: false,
        agent: None,
        limits: LIMITS,
        ended: CancellationToken::new(),
    });
    request
}

fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, words: &str) {
    let status = result.expect_err("a refusal");
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(words), "{:?} lacks {words:?}", status.message());
}

fn ensure(wait: bool) -> wire::EnsureRequest {
    wire::EnsureRequest { wait, ..Default::default() }
}

fn create(name: &str) -> wire::CreateRequest {
    wire::CreateRequest { name: name.to_owned(), wait: true, ..Default::default() }
}

#[tokio::test]
async fn a_box_lives_through_the_service() {
    let (world, ana) = (World::new().await, user());
    let mut boxes = client(&world);
    let absent = boxes.get(by(&ana, wire::GetRequest::default())).await.unwrap().into_inner();
    assert_eq!(absent, wire::Box { state: wire::BoxState::Absent.into(), ..Default::default() });

    let reply = boxes.ensure(by(&ana, ensure(true))).await.unwrap().into_inner();
    let one = reply.r#box.unwrap();
    assert_eq!(
        (one.state(), one.name.as_str(), one.image.as_str()),
        (wire::BoxState::Running, "main", "host")
    );
    assert!(!one.upgrade_available && one.latest_image == "host" && one.wake_id.starts_with("wk_"));
    assert_eq!((one.operation_id.as_str(), one.last_saved_at_ms), ("", 0));
    assert_eq!(reply.event.unwrap().phase(), wire::Phase::Done);
    let watch = wire::WatchRequest { operation_id: reply.operation_id.clone(), after_sequence: 0 };
    let events: Vec<_> = boxes.watch(by(&ana, watch)).await.unwrap().into_inner().collect().await;
    let phases: Vec<_> = events.into_iter().map(|event| event.unwrap().phase()).collect();
    assert_eq!(phases, [wire::Phase::Creating, wire::Phase::Done]);
    let again = boxes.ensure(by(&ana, ensure(true))).await.unwrap().into_inner();
    assert_eq!(again.operation_id, "");

    let sleep = |to_disk| wire::HibernateRequest { to_disk, wait: true, ..Default::default() };
    let slept = boxes.hibernate(by(&ana, sleep(false))).await.unwrap().into_inner();
    assert_eq!(slept.event.unwrap().memory(), wire::Memory::Kept);
    let one = slept.r#box.unwrap();
    assert_eq!(
        (one.state(), one.memory(), one.wake_id.as_str()),
        (wire::BoxState::Hibernated, wire::Memory::Kept, "")
    );
    let disk = boxes.hibernate(by(&ana, sleep(true))).await.unwrap().into_inner();
    assert_eq!(disk.event.unwrap().memory(), wire::Memory::Lost);
    let woke = boxes.ensure(by(&ana, ensure(true))).await.unwrap().into_inner();
    assert_eq!(woke.event.unwrap().memory(), wire::Memory::Lost);

    let schedule = wire::Schedule {
        cron: "0 9 * * 1-5".to_owned(),
        time_zone: "Europe/Berlin".to_owned(),
        stay_up_seconds: 600,
        next_at_ms: 0,
    };
    let set = wire::SetScheduleRequest { r#box: "main".to_owned(), schedule: Some(schedule) };
    assert!(boxes.set_schedule(by(&ana, set)).await.unwrap().into_inner().schedule.unwrap().next_at_ms > 0);
    let rename = wire::RenameRequest { r#box: String::new(), name: "home".to_owned() };
    assert_eq!(boxes.rename(by(&ana, rename)).await.unwrap().into_inner().name, "home");
    let usage = boxes.usage(by(&ana, wire::UsageRequest {})).await.unwrap().into_inner();
    let expected = wire::UsageReply {
        boxes: 1,
        running: 1,
        max_boxes: 2,
        max_running: 1,
        today: Some(wire::ModelCalls::default()),
        month: Some(wire::ModelCalls::default()),
        default_cap: true,
        ..Default::default()
    };
    assert_eq!(usage, expected);
    let list = boxes.list(by(&ana, wire::ListRequest::default())).await.unwrap().into_inner();
    assert_eq!((list.boxes.len(), list.next_page_token.as_str()), (1, ""));

    let delete =
        wire::DeleteRequest { r#box: "home".to_owned(), confirm: true, wait: true, ..Default::default() };
    let gone = boxes.delete(by(&ana, delete)).await.unwrap().into_inner();
    assert_eq!(gone.r#box.unwrap().state(), wire::BoxState::Absent);
    assert_eq!(gone.event.unwrap().phase(), wire::Phase::Done);
}

#[tokio::test]
async fn refusals_say_the_next_step() {
    let (world, ana, bob) = (World::new().await, user(), user());
    let mut boxes = client(&world);
    refused(boxes.ensure(Request::new(ensure(false))).await, Code::Unauthenticated, "sign in");
    boxes.create(by(&ana, create("one"))).await.unwrap();
    refused(boxes.create(by(&ana, create("one"))).await, Code::AlreadyExists, "called one");
    refused(boxes.create(by(&ana, create("two"))).await, Code::ResourceExhausted, "1 of the 1 boxes");
    boxes.hibernate(by(&ana, wire::HibernateRequest { wait: true, ..Default::default() })).await.unwrap();
    boxes.create(by(&ana, create("two"))).await.unwrap();
    refused(
        boxes.create(by(&ana, create("three"))).await,
        Code::ResourceExhausted,
        "2 of 2 boxes: delete one",
    );
    let wake = wire::EnsureRequest { r#box: "one".to_owned(), ..Default::default() };
    refused(boxes.ensure(by(&ana, wake)).await, Code::ResourceExhausted, "hibernate one");
    for bad in ["", "A", "cb-abcdefghij", "-x", "a b", &"x".repeat(33)] {
        let rename = wire::RenameRequest { r#box: "one".to_owned(), name: bad.to_owned() };
        refused(boxes.rename(by(&ana, rename)).await, Code::InvalidArgument, "name: use 1 to 32");
        if !bad.is_empty() {
            refused(boxes.create(by(&ana, create(bad))).await, Code::InvalidArgument, "name: use 1 to 32");
        }
    }
    let image = wire::CreateRequest { image: "../x".to_owned(), ..create("x") };
    refused(boxes.create(by(&ana, image)).await, Code::InvalidArgument, "image");
    for key in ["k".repeat(129), "tab\t".to_owned()] {
        let keyed = wire::CreateRequest { idempotency_key: key, ..create("x") };
        refused(boxes.create(by(&ana, keyed)).await, Code::InvalidArgument, "idempotency_key");
    }
    let delete = wire::DeleteRequest { r#box: "one".to_owned(), ..Default::default() };
    refused(boxes.delete(by(&ana, delete.clone())).await, Code::FailedPrecondition, "set confirm");
    refused(
        boxes.delete(by(&bob, wire::DeleteRequest { confirm: true, ..delete })).await,
        Code::NotFound,
        "you have no box one",
    );
    let page = wire::ListRequest { page_size: 1001, page_token: String::new() };
    refused(boxes.list(by(&ana, page)).await, Code::InvalidArgument, "page_size");
    let page = wire::ListRequest { page_size: 0, page_token: "x".to_owned() };
    refused(boxes.list(by(&ana, page)).await, Code::InvalidArgument, "page_token");
    let watch = wire::WatchRequest { operation_id: "x".to_owned(), after_sequence: 0 };
    assert_eq!(boxes.watch(by(&ana, watch)).await.err().unwrap().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_waiting_call_answers_the_failure() {
    let (world, ana) = (World::new().await, user());
    let mut boxes = client(&world);
    let image = wire::CreateRequest { image: "nowhere:1".to_owned(), ..create("x") };
    refused(boxes.create(by(&ana, image)).await, Code::FailedPrecondition, "choose an image");
    world.backend.fail_next(Method::Claim, Fault::Before);
    refused(
        boxes.ensure(by(&ana, wire::EnsureRequest { r#box: "x".to_owned(), ..ensure(true) })).await,
        Code::Unavailable,
        "later",
    );
}

#[tokio::test]
async fn what_needs_saves_says_what_is_missing() {
    let (world, ana) = (World::new().await, user());
    let mut boxes = client(&world);
    let missing = "this server has no state store";
    refused(boxes.save(by(&ana, wire::SaveRequest::default())).await, Code::Unimplemented, missing);
    refused(
        boxes.list_saves(by(&ana, wire::ListSavesRequest::default())).await,
        Code::Unimplemented,
        missing,
    );
    refused(boxes.restore(by(&ana, wire::RestoreRequest::default())).await, Code::Unimplemented, missing);
    refused(
        boxes.browse_snapshot(by(&ana, wire::BrowseSnapshotRequest::default())).await,
        Code::Unimplemented,
        missing,
    );
    refused(
        boxes.restore_paths(by(&ana, wire::RestorePathsRequest::default())).await,
        Code::Unimplemented,
        missing,
    );
    let rebase = boxes.rebase(by(&ana, wire::RebaseRequest::default())).await;
    refused(rebase, Code::Unimplemented, missing);
    let mut state = StateClient::new(grpc::state_service(Arc::new(world.engine.clone()), None));
    refused(state.check(by(&ana, wire::CheckRequest::default())).await, Code::Unimplemented, missing);
    refused(state.prune(by(&ana, wire::PruneRequest::default())).await, Code::Unimplemented, missing);
    refused(
        state.export_key(by(&ana, wire::ExportKeyRequest { confirm: true })).await,
        Code::Unimplemented,
        missing,
    );
    refused(
        state.import_key(by(&ana, wire::ImportKeyRequest::default())).await,
        Code::Unimplemented,
        missing,
    );
    // a call that shows no token is told so first
    refused(state.prune(Request::new(wire::PruneRequest::default())).await, Code::Unauthenticated, "sign in");
}
