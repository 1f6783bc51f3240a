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
        "limits",
        "subordinate ids",
        "landlock",
        "kvm",
        "podman",
        "tmux",
        "rsync",
        "git",
        "data directory",
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

/// Run by the test below, where nothing is allowed and no program is found.
#[tokio::test]
#[ignore = "only where user namespaces are switched off"]
async fn inside_a_machine_that_can_do_nothing() {
    let report = probe(&ProbeOptions::new("/tmp/cocoonbox-none".into())).await;
    let check = |name: &str| report.check(name).expect("it is checked");
    assert_eq!(check("user namespaces").status, Status::No, "{report:?}");
    let remedy = check("user namespaces").remedy.clone().unwrap_or_default();
    assert!(remedy.contains("sysctl -w user.max_user_namespaces"), "{remedy}");
    for name in ["bubblewrap", "podman", "tmux", "rsync", "git"] {
        assert_eq!(check(name).remedy, Some(format!("apt-get install -y {name}")), "{name}");
    }
    assert!(!report.boxes_run());
}

#[test]
fn where_namespaces_are_switched_off_the_setting_is_named() -> Result<(), Box<dyn std::error::Error>> {
    if namespace::check().status != Status::Yes {
        return Ok(());
    }
    // a namespace has a limit of its own, which its root may set to nothing
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && PATH=/nonexistent exec \"$0\" \"$@\"";
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script])
        .arg(std::env::current_exe()?)
        .args(["--exact", "probe::tests::inside_a_machine_that_can_do_nothing", "--ignored"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
