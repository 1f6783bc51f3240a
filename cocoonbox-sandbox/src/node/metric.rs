//! What the node counts.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
}

/// Counters of this start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    verbs: Family<Verb, Counter>,
    claim_failures: Counter,
    claim_seconds: Counter<f64, AtomicU64>,
    wake_seconds: Counter<f64, AtomicU64>,
}

impl Metrics {
    pub(super) fn did(&self, verb: &'static str) {
        self.verbs.get_or_create(&Verb { verb }).inc();
    }
    pub(super) fn claimed(&self, took: Duration, done: bool) {
        if done {
            self.claim_seconds.inc_by(took.as_secs_f64());
        } else {
            self.claim_failures.inc();
        }
    }
    pub(super) fn woke(&self, took: Duration) {
        self.wake_seconds.inc_by(took.as_secs_f64());
    }

    /// Adds the counters to what is shown.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("verbs", "Things done to claims, by verb", self.verbs.clone());
        registry.register("claim_failures", "Claims that failed", self.claim_failures.clone());
        registry.register("claim_seconds", "Time that claims took", self.claim_seconds.clone());
        registry.register("wake_seconds", "Time that wakes took", self.wake_seconds.clone());
    }
}
