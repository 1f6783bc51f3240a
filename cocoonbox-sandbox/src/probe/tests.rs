//! The probe, on the machine that runs the tests.

use super::*;

#[tokio::test]
async fn every_answer_but_yes_has_a_reason_and_a_remedy() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let report = probe(&ProbeOptions::new(folder.path().join("data"))).await;
    let names: Vec<_> = report.checks.iter().map(|check| check.name).collect();
    let expected = [
        "user namespaces",
        "bubblewrap",
        "freezing",
        "subordinate ids",
        "landlock",
        "kvm",
        "podman",
        "tmux",
        "rsync",
        "git",
        "disk space",
        "socket paths",
    ];
    assert_eq!(names, expected);
    for check in &report.checks {
        let told = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.trim().is_empty());
        let bad = check.status != Status::Yes;
        assert_eq!((told(&check.reason), told(&check.remedy)), (bad, bad), "{check:?}");
        assert!(!check.detail.is_empty(), "{check:?}");
    }
    // the tests of this crate run boxes, so the probe must not say that none runs here
    let bubblewrap = report.check("bubblewrap").ok_or("not checked")?;
    assert!(report.boxes_run() || bubblewrap.status == Status::No, "{report:?}");
    let json = serde_json::to_value(&report)?;
    assert!(json["checks"][0]["status"].is_string());
    println!("{}", serde_json::to_string_pretty(&json)?);
    Ok(())
}

#[tokio::test]
async fn nothing_of_a_probe_is_left() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    probe(&ProbeOptions::new(data.clone()).with_limit(Duration::from_secs(5))).await;
    assert!(!data.exists(), "the data directory is looked at and not made");
    Ok(())
}

#[test]
fn a_child_that_does_not_answer_is_ended_in_time() {
    let began = std::time::Instant::now();
    let end = child::in_child(Duration::from_millis(50), || {
        loop {
            std::hint::spin_loop();
        }
    });
    assert_eq!(end, child::End::Late);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_child_that_dies_says_so() {
    let end = child::in_child(Duration::from_secs(5), || {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        child::Word::default()
    });
    assert_eq!(end, child::End::Died);
}
