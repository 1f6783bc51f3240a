//! Nodes that come, go, and come back.

use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::{
    BackendError, Claim, ClaimFilter, ClaimRequest, ClaimState, HibernateTo, MemoryOptions, SandboxBackend,
    Target,
};
use cocoonbox_core::{ImageName, SystemClock, SystemEntropy};
use cocoonbox_sandbox::node::NodeToken;
use cocoonbox_sandbox::remote::{Fleet, FleetConfig, NodeState, OpenError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::node::{InProcess, echoes, token};

struct Nodes {
    nodes: Vec<InProcess>,
    folder: tempfile::TempDir,
}

impl Nodes {
    async fn start(max_claims: &[u32]) -> Self {
        let mut nodes = Vec::new();
        for max in max_claims {
            nodes.push(InProcess::start(MemoryOptions::default().with_max_claims(*max)).await);
        }
        Self { nodes, folder: tempfile::tempdir().unwrap() }
    }

    fn config(&self) -> FleetConfig {
        let config = FleetConfig::new(self.folder.path().join("nodes.json"));
        self.nodes.iter().fold(config, |config, node| config.with_node(node.address(), Some(token())))
    }

    async fn open(&self) -> Result<Fleet, OpenError> {
        Fleet::open(self.config(), Arc::new(SystemClock), Arc::new(SystemEntropy)).await
    }

    fn live(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.store().live()).collect()
    }
}

/// Looks after a fleet until it is dropped.
fn tended(fleet: &Fleet) -> AbortOnDropHandle<()> {
    let fleet = fleet.clone();
    AbortOnDropHandle::new(tokio::spawn(async move { fleet.serve(CancellationToken::new()).await }))
}

fn request(label: &str) -> ClaimRequest {
    ClaimRequest::new(label.parse().unwrap(), ImageName::host())
}

async fn claim(fleet: &Fleet, label: &str) -> Claim {
    fleet.claim(request(label)).await.unwrap()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), waiting).await.is_ok(), "not in time: {what}");
}

fn is_away(claim: &Claim) -> bool {
    matches!(&claim.state, ClaimState::Away { reason } if reason.contains("has not answered since"))
}

fn unavailable<T>(answer: Result<T, BackendError>) -> String {
    match answer {
        Err(error @ BackendError::Unavailable { .. }) => error.to_string(),
        Err(error) => panic!("unavailable is expected, not {error:?}"),
        Ok(_) => panic!("unavailable is expected, not success"),
    }
}

#[tokio::test]
async fn claims_go_where_there_is_room_and_past_nodes_that_refuse() {
    let nodes = Nodes::start(&[2, 8, 4]).await;
    let fleet = nodes.open().await.unwrap();
    for nth in 0..6 {
        claim(&fleet, &format!("box {nth}")).await;
    }
    assert_eq!(nodes.live(), [0, 5, 1], "the one with the most free places takes the next");
    nodes.nodes[1].store().set_draining(true);
    for nth in 6..11 {
        claim(&fleet, &format!("box {nth}")).await;
    }
    assert_eq!(nodes.live(), [2, 5, 4]);
    let full = fleet.claim(request("one more")).await;
    assert!(matches!(full, Err(BackendError::Quota { .. })), "{full:?}");
    nodes.nodes[1].store().set_draining(false);
    claim(&fleet, "one more").await;
    assert_eq!(nodes.live(), [2, 6, 4]);
}

#[tokio::test]
async fn a_burst_is_spread() {
    let nodes = Nodes::start(&[100, 100]).await;
    let fleet = nodes.open().await.unwrap();
    let made = futures::future::join_all((0..20).map(|_| fleet.claim(request("same")))).await;
    assert!(made.iter().all(Result::is_ok));
    assert_eq!(nodes.live(), [10, 10]);
    assert_eq!(fleet.find(&ClaimFilter::all()).await.unwrap().len(), 20);
}

#[tokio::test]
async fn what_a_node_that_is_away_holds_is_told_as_away_and_is_there_when_it_is_back() {
    let mut nodes = Nodes::start(&[8, 8]).await;
    let fleet = nodes.open().await.unwrap();
    let _tended = tended(&fleet);
    let changes = fleet.changes();
    let (one, two) = (claim(&fleet, "one").await, claim(&fleet, "two").await);
    fleet.hibernate(&two.id, HibernateTo::Memory).await.unwrap();
    let before = fleet.find(&ClaimFilter::all()).await.unwrap();
    assert_eq!(nodes.live(), [1, 0]);
    nodes.nodes[1].stop().await;

    let found = fleet.find(&ClaimFilter::all()).await.unwrap();
    assert_eq!(found[0], before[0], "the other one is as it was");
    assert!(is_away(&found[1]), "{:?}", found[1]);
    assert_eq!(found[1].id, two.id);
    for filter in [ClaimFilter::by_id(two.id.clone()), ClaimFilter::by_ref("two".parse().unwrap())] {
        assert!(is_away(&fleet.find(&filter).await.unwrap()[0]));
    }
    assert!(changes.has_changed().unwrap(), "it is told that a node went");
    assert!(unavailable(fleet.connect(&two.id, Target::Channel).await).contains("has not answered since"));
    unavailable(fleet.wake(&two.id).await);
    unavailable(fleet.release(&two.id).await);
    unavailable(fleet.hibernate(&two.id, HibernateTo::Disk).await);
    echoes(&fleet, &one.id, Target::Channel).await.unwrap();
    let third = claim(&fleet, "three").await;
    assert_eq!(nodes.live(), [2, 0], "claims go to the one that answers");
    assert!(matches!(fleet.nodes()[1].state, NodeState::Away { .. }));
    // one that it may hold and that nobody knows of is not said to be gone
    let prefix = two.id.as_str().split_once('-').unwrap().0;
    let unknown = format!("{prefix}-sb_unknown").parse().unwrap();
    unavailable(fleet.find(&ClaimFilter::by_id(unknown)).await);

    nodes.nodes[1].start_again().await;
    eventually("the node is back", async || {
        fleet.find(&ClaimFilter::by_id(two.id.clone())).await.is_ok_and(|found| found.contains(&before[1]))
    })
    .await;
    fleet.wake(&two.id).await.unwrap();
    echoes(&fleet, &two.id, Target::Channel).await.unwrap();
    for claim in [one, two, third] {
        fleet.release(&claim.id).await.unwrap();
    }
    assert!(fleet.find(&ClaimFilter::all()).await.unwrap().is_empty());
}

#[tokio::test]
async fn nobody_need_ask_for_a_node_to_be_missed() {
    let mut nodes = Nodes::start(&[8, 8]).await;
    let fleet = nodes.open().await.unwrap();
    let _tended = tended(&fleet);
    nodes.nodes[0].stop().await;
    eventually("it is missed", async || matches!(fleet.nodes()[0].state, NodeState::Away { .. })).await;
    nodes.nodes[0].start_again().await;
    eventually("it is back", async || fleet.nodes()[0].state == NodeState::Answers).await;
}

#[tokio::test]
async fn a_start_while_a_node_is_away_says_nothing_is_gone() {
    let mut nodes = Nodes::start(&[8, 8]).await;
    let (one, two) = {
        let fleet = nodes.open().await.unwrap();
        (claim(&fleet, "one").await, claim(&fleet, "two").await)
    };
    nodes.nodes[1].stop().await;
    let fleet = nodes.open().await.unwrap();
    assert_eq!(fleet.find(&ClaimFilter::all()).await.unwrap().len(), 1);
    unavailable(fleet.find(&ClaimFilter::by_id(two.id.clone())).await);
    echoes(&fleet, &one.id, Target::Channel).await.unwrap();
    // the order of nodes is of no meaning
    nodes.nodes[1].start_again().await;
    nodes.nodes.reverse();
    let fleet = nodes.open().await.unwrap();
    for claim in [one, two] {
        assert_eq!(fleet.find(&ClaimFilter::by_id(claim.id.clone())).await.unwrap(), [claim]);
    }
    // a node that is no longer configured is no more
    let left = nodes.nodes.pop().unwrap();
    let fleet = nodes.open().await.unwrap();
    assert_eq!(fleet.find(&ClaimFilter::all()).await.unwrap().len(), 1);
    drop(left);
}

#[tokio::test]
async fn no_node_at_all_is_an_error_unless_one_was_known() {
    let mut nodes = Nodes::start(&[8]).await;
    nodes.nodes[0].stop().await;
    assert!(matches!(nodes.open().await, Err(OpenError::NoAnswer { .. })));
    nodes.nodes[0].start_again().await;
    let fleet = nodes.open().await.unwrap();
    let claimed = claim(&fleet, "one").await;
    nodes.nodes[0].stop().await;
    let fleet = nodes.open().await.unwrap();
    unavailable(fleet.claim(request("two")).await);
    unavailable(fleet.find(&ClaimFilter::by_id(claimed.id)).await);
    let none = FleetConfig::new(nodes.folder.path().join("nodes.json"));
    let none = Fleet::open(none, Arc::new(SystemClock), Arc::new(SystemEntropy)).await;
    assert!(matches!(none, Err(OpenError::NoNode)));
}

#[tokio::test]
async fn a_wrong_token_and_a_node_that_is_there_twice_are_told() {
    let nodes = Nodes::start(&[8, 8]).await;
    let config = FleetConfig::new(nodes.folder.path().join("a.json"))
        .with_node(nodes.nodes[0].address(), Some(token()))
        .with_node(nodes.nodes[1].address(), Some(NodeToken::new("canary-canary-canary".to_owned())));
    let fleet = Fleet::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await.unwrap();
    let report = format!("{:?}", fleet.nodes()[1]);
    assert!(report.contains("refuses this server's token"), "{report}");
    assert!(!format!("{report} {fleet:?}").contains("canary"));
    assert!(!format!("{fleet:?}").contains(super::node::TOKEN));

    let twin = format!("http://localhost:{}", nodes.nodes[0].address.port()).parse().unwrap();
    let config = FleetConfig::new(nodes.folder.path().join("b.json"))
        .with_node(nodes.nodes[0].address(), Some(token()))
        .with_node(twin, Some(token()));
    let fleet = Fleet::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await.unwrap();
    let away = fleet.nodes().into_iter().filter(|node| node.state != NodeState::Answers).collect::<Vec<_>>();
    assert_eq!(away.len(), 1, "{away:?}");
    assert!(format!("{away:?}").contains("it says that it is the node at"), "{away:?}");
    claim(&fleet, "one").await;
    assert_eq!(fleet.find(&ClaimFilter::all()).await.unwrap().len(), 1, "nothing is found twice");
}

#[tokio::test]
async fn a_tenants_cap_is_put_on_every_node_and_on_one_that_is_back() {
    let mut nodes = Nodes::start(&[8, 8]).await;
    let fleet = nodes.open().await.unwrap();
    let _tended = tended(&fleet);
    let owner: cocoonbox_core::TenantName = "us_one".parse().unwrap();
    nodes.nodes[1].stop().await;
    fleet.tenants().unwrap().put_tenant(&owner, 1).await.unwrap();
    nodes.nodes[1].start_again().await;
    eventually("it is back", async || fleet.nodes().iter().all(|node| node.state == NodeState::Answers))
        .await;
    for _ in 0..2 {
        fleet.claim(request("a").with_tenant(owner.clone())).await.unwrap();
    }
    let refused = fleet.claim(request("a").with_tenant(owner)).await;
    assert!(matches!(refused, Err(BackendError::Quota { limit: 1, .. })), "{refused:?}");
    assert_eq!(nodes.live(), [1, 1]);
}
