//! Everything is killed, again and again, while people work.

use std::path::Path;
use std::time::Duration;

use cocoonbox_fault_tests::{Layout, Outcome, Plan, run, seed, soaks};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[test]
fn no_promise_is_broken_by_kills_at_random_moments() -> Result<(), Failure> {
    storm("storm", Layout::Together).map(drop)
}

#[test]
fn nor_where_edge_and_node_are_killed_apart_and_the_way_between_them_is_bad() -> Result<(), Failure> {
    let outcome = storm("storm-apart", Layout::Apart)?;
    let wrong = outcome.counts.get("connections that something was wrong with").copied().unwrap_or_default();
    assert!(wrong > 3, "{outcome:?}");
    Ok(())
}

fn storm(name: &str, layout: Layout) -> Result<Outcome, Failure> {
    let seed = seed(name);
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}.log"));
    let plan = Plan {
        seed,
        layout,
        kills: if soaks() { 200 } else { 20 },
        users: 3,
        workers: 2,
        limit: Duration::from_secs(if soaks() { 540 } else { 90 }),
        log: log.clone(),
    };
    let outcome = run(&plan)?;
    outcome.tell();
    assert_eq!(outcome.faults, Vec::<String>::new(), "seed {seed}; the log is {}", log.display());
    assert!(outcome.kills >= plan.kills, "{} kills in time", outcome.kills);
    // the control: something was promised, and the machine was looked at
    let (_, boxes, numbers) = outcome.promises;
    assert!(boxes >= 4 && numbers >= 50 && outcome.looks > 50, "{outcome:?}");
    std::fs::remove_file(log)?;
    Ok(outcome)
}
