//! The contract of [`Catalog`] as a suite: an implementation is done when all of it passes on a fresh one.

use super::{Catalog, CatalogError, Ledger};
use crate::Label;

fn uid(text: &str) -> Label {
    text.parse().expect("a label")
}

/// Runs the whole suite.
///
/// # Panics
/// When a promise is broken.
pub async fn holds_the_contract(catalog: &dyn Catalog) {
    what_was_never_written_is_empty(catalog).await;
    a_stale_write_is_refused_and_changes_nothing(catalog).await;
    of_many_writers_one_wins(catalog).await;
    users_do_not_see_each_other(catalog).await;
}

/// What was never written is the empty ledger at revision 0.
///
/// # Panics
/// When it is not.
pub async fn what_was_never_written_is_empty(catalog: &dyn Catalog) {
    let (ledger, revision) = catalog.load(&uid("nobody")).await.expect("it loads");
    assert_eq!((ledger, revision), (Ledger::default(), 0));
}

/// A write that expects an old revision is a conflict.
///
/// # Panics
/// When it is not.
pub async fn a_stale_write_is_refused_and_changes_nothing(catalog: &dyn Catalog) {
    let uid = uid("stale");
    let first =
        catalog.store(&uid, &Ledger { sweeps: 1, ..Ledger::default() }, 0).await.expect("the first is taken");
    for stale in [0, first + 1] {
        let refused = catalog.store(&uid, &Ledger { sweeps: 9, ..Ledger::default() }, stale).await;
        assert!(matches!(refused, Err(CatalogError::Conflict { .. })), "{stale}: {refused:?}");
    }
    let (ledger, revision) = catalog.load(&uid).await.expect("it loads");
    assert_eq!((ledger.sweeps, revision), (1, first));
    let second =
        catalog.store(&uid, &Ledger { sweeps: 2, ..Ledger::default() }, first).await.expect("it is taken");
    assert!(second > first);
}

/// Of writers that expect one revision, one succeeds.
///
/// # Panics
/// When none does, or several.
pub async fn of_many_writers_one_wins(catalog: &dyn Catalog) {
    let uid = uid("race");
    let ledgers: Vec<Ledger> = (1..=8).map(|sweeps| Ledger { sweeps, ..Ledger::default() }).collect();
    let done = futures::future::join_all(ledgers.iter().map(|ledger| catalog.store(&uid, ledger, 0))).await;
    let won: Vec<usize> = (0..done.len()).filter(|writer| done[*writer].is_ok()).collect();
    assert_eq!(won.len(), 1, "{done:?}");
    let (ledger, _) = catalog.load(&uid).await.expect("it loads");
    assert_eq!(ledger, ledgers[won[0]]);
}

/// One user's write is not another's.
///
/// # Panics
/// When it is.
pub async fn users_do_not_see_each_other(catalog: &dyn Catalog) {
    catalog.store(&uid("one"), &Ledger { sweeps: 7, ..Ledger::default() }, 0).await.expect("it is taken");
    let (ledger, revision) = catalog.load(&uid("other")).await.expect("it loads");
    assert_eq!((ledger.sweeps, revision), (0, 0));
}
