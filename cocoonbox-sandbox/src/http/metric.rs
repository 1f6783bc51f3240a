//! `GET /metrics`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse as _;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Answer, access, info};
use crate::node::{Code, Node, Refusal};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabel {
    tenant: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabel {
    template: String,
    net: String,
    size: String,
}

fn count(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

pub(super) async fn metrics(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::root(&node, &headers)?;
    let info = info::read(&node).await?;
    let mut registry = Registry::with_prefix("sandboxd");
    for (name, help, value) in [
        ("claimed", "Claims, asleep and failed ones included", count(info.claimed)),
        ("hibernated", "Claims that sleep", count(info.hibernated)),
        ("archived", "Claims that are put away", count(info.archived)),
        ("failed", "Claims whose sandbox died", count(info.failed)),
        ("draining", "Whether the node takes no new claims", i64::from(info.draining)),
    ] {
        let gauge: Gauge = Gauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    let (tenants, _) = node.tenants();
    let by_tenant = Family::<TenantLabel, Gauge>::default();
    for (name, _, held) in tenants.into_iter().filter(|(_, tenant, _)| !tenant.removed) {
        by_tenant.get_or_create(&TenantLabel { tenant: name.as_str().to_owned() }).set(count(held));
    }
    registry.register("tenant_claims", "Claims of each tenant", by_tenant);
    let (warm, target) = (Family::<PoolLabel, Gauge>::default(), Family::<PoolLabel, Gauge>::default());
    for (key, is, should) in info.pools() {
        let name = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let label =
            PoolLabel { template: name(&key["template"]), net: name(&key["net"]), size: name(&key["size"]) };
        warm.get_or_create(&label).set(count(is));
        target.get_or_create(&label).set(count(should));
    }
    registry.register("pool_warm", "Warm sandboxes of each pool", warm);
    registry.register("pool_target", "Warm sandboxes that each pool should hold", target);
    node.metrics().register(&mut registry);
    let mut body = String::new();
    text::encode(&mut body, &registry)
        .map_err(|_| Refusal::new(Code::Internal, "the metrics cannot be written"))?;
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], body).into_response())
}
