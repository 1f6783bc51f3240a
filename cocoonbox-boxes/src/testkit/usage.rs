//! The suite that every [`UsageStore`] passes.

use std::time::Duration;

use cocoonbox_core::{SystemEntropy, Timestamp, UserId};

use crate::usage::{Day, ModelCall, ModelUsage, Spent, UsageStore};

/// A noon on a 15th.
const NOON: Timestamp = Timestamp::from_millis(1_800_014_400_000);
const DAY: Duration = Duration::from_hours(24);

/// Makes one test of each part of the suite; the expression makes a store, and may await and return.
#[macro_export]
macro_rules! usage_store_conformance {
    ($store:expr) => {
        $crate::usage_store_conformance!(_guard => (), $store);
    };
    ($guard:ident => $made:expr, $store:expr) => {
        $crate::usage_store_conformance!(@ $guard, $made, $store;
            calls_are_summed_by_day_and_by_user
            a_cap_of_ones_own_comes_before_the_one_for_everybody
            calls_recorded_at_once_all_count
        );
    };
    (@ $guard:ident, $made:expr, $store:expr; $($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let $guard = $made;
            let store = $store;
            $crate::testkit::usage::$name(&store).await;
        }
    )*};
}

fn user() -> UserId {
    UserId::random(&SystemEntropy).expect("entropy")
}

fn call(user: &UserId, model: &str, cost_micros: u64, at: Timestamp) -> ModelCall {
    ModelCall {
        user: user.clone(),
        model: model.to_owned(),
        input_tokens: 100,
        output_tokens: 7,
        cost_micros,
        at,
    }
}

fn spent(calls: u64, cost_micros: u64) -> Spent {
    Spent { calls, input_tokens: 100 * calls, output_tokens: 7 * calls, cost_micros }
}

/// What was spent today, this month and by others is kept apart; models are summed.
pub async fn calls_are_summed_by_day_and_by_user(store: &dyn UsageStore) {
    let (ana, bert) = (user(), user());
    let yesterday = Timestamp::from_micros(NOON.micros() - DAY.as_micros() as i64);
    let last_month = Timestamp::from_micros(NOON.micros() - 20 * DAY.as_micros() as i64);
    for (user, model, cost, at) in [
        (&ana, "large", 3, NOON),
        (&ana, "large", 4, NOON),
        (&ana, "small", 1, NOON),
        (&ana, "small", 10, yesterday),
        (&ana, "small", 1000, last_month),
        (&ana, "small", 100, NOON.plus(DAY)),
        (&bert, "small", 7, NOON),
    ] {
        store.record(&call(user, model, cost, at)).await.expect("recorded");
    }
    let of = async |user: &UserId| ModelUsage::read(store, user, 50, NOON).await.expect("read");
    let usage = of(&ana).await;
    assert_eq!((usage.today, usage.month), (spent(3, 8), spent(4, 18)));
    assert_eq!((usage.daily_cap_micros, usage.default_cap, usage.remaining_today_micros()), (50, true, 42));
    assert_eq!(of(&bert).await.month, spent(1, 7));
    assert_eq!(of(&user()).await, ModelUsage::none(50));
}

/// A cap is set, replaced and taken away again; 0 is no cap at all.
pub async fn a_cap_of_ones_own_comes_before_the_one_for_everybody(store: &dyn UsageStore) {
    let ana = user();
    for (own, cap, default) in [(Some(9), 9, false), (Some(0), 0, false), (None, 50, true)] {
        store.put_cap(&ana, own).await.expect("written");
        assert_eq!(store.cap(&ana).await.expect("read"), own);
        let usage = ModelUsage::read(store, &ana, 50, NOON).await.expect("read");
        assert_eq!((usage.daily_cap_micros, usage.default_cap), (cap, default));
    }
    assert_eq!(store.cap(&user()).await.expect("read"), None);
}

/// No call is lost between two that write the same day.
pub async fn calls_recorded_at_once_all_count(store: &dyn UsageStore) {
    let ana = user();
    let calls: Vec<_> = (0..20).map(|_| call(&ana, "small", 2, NOON)).collect();
    let recorded = futures::future::join_all(calls.iter().map(|call| store.record(call))).await;
    assert!(recorded.iter().all(Result::is_ok), "{recorded:?}");
    let today = Day::of(NOON);
    assert_eq!(store.spent(&ana, today, today).await.expect("read"), spent(20, 40));
}
