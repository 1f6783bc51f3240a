//! A host uid for each box of an ordinary user: what becomes of claims when the range comes or goes.

#![allow(clippy::print_stdout, reason = "tests say what they leave out")]

mod common;

use std::os::unix::fs::MetadataExt as _;

use cocoonbox_core::backend::{BackendError, HibernateTo, SandboxBackend as _, SandboxId};
use cocoonbox_sandbox::Defence;
use common::{Data, Outcome, claim, has_ids, is_root, printed, sh};

/// Runs `story` as an ordinary user with ids to give.
fn as_a_user_with_ids<F: Future<Output = Outcome>>(name: &str, story: impl FnOnce() -> F) -> Outcome {
    if is_root() {
        return common::as_a_user_with_ids(&["--exact", name, "--nocapture", "--test-threads=1"]);
    }
    if !has_ids() {
        println!("this user has no range of ids: not tried");
        return Ok(());
    }
    common::run(story)
}

fn owner(data: &Data, id: &SandboxId) -> std::io::Result<u32> {
    Ok(std::fs::metadata(data.path().join("claims").join(id.as_str()).join("files/home"))?.uid())
}

#[test]
fn a_claim_keeps_the_uid_that_it_was_made_with() -> Outcome {
    as_a_user_with_ids("a_claim_keeps_the_uid_that_it_was_made_with", || async {
        let own = rustix::process::geteuid().as_raw();
        let data = Data::new()?;
        // before the range was given
        let backend = common::open(data.config().with_weakened(Defence::UidMap)).await?;
        let old = claim(&*backend).await?;
        printed(&*backend, &old.id, "echo old >/workspace/kept").await?;
        drop(backend);
        let backend = data.open().await?;
        let new = claim(&*backend).await?;
        assert_eq!(printed(&*backend, &old.id, "cat /workspace/kept").await?, "old");
        backend.hibernate(&old.id, HibernateTo::Disk).await?;
        backend.wake(&old.id).await?;
        assert_eq!(printed(&*backend, &old.id, "cat /workspace/kept; id -u").await?, "old\n1000");
        assert_eq!(owner(&data, &old.id)?, own);
        assert!(common::IDS.contains(&owner(&data, &new.id)?));
        printed(&*backend, &new.id, "echo new >/workspace/kept; chmod 0 /workspace /home/user").await?;
        backend.hibernate(&new.id, HibernateTo::Disk).await?;
        // a guest that locked itself out is let in again, by who may
        backend.wake(&new.id).await?;
        assert_eq!(printed(&*backend, &new.id, "cat /workspace/kept; id -u").await?, "new\n1000");
        backend.hibernate(&new.id, HibernateTo::Disk).await?;
        drop(backend);

        // the range is gone: what needs it says so, the rest goes on
        let backend = common::open(data.config().with_weakened(Defence::UidMap)).await?;
        let refused = backend.wake(&new.id).await;
        assert!(
            matches!(&refused, Err(BackendError::StartFailed { reason, .. }) if reason.contains("/etc/subuid")),
            "{refused:?}"
        );
        backend.release(&old.id).await?;
        assert!(backend.release(&new.id).await.is_err());
        drop(backend);
        // what could not be removed is, as soon as it can be
        drop(common::open(data.config().with_weakened(Defence::UidMap)).await?);
        assert_eq!(std::fs::read_dir(data.path().join("trash"))?.count(), 1);
        drop(data.open().await?);
        assert_eq!(std::fs::read_dir(data.path().join("trash"))?.count(), 0);
        Ok(())
    })
}

#[test]
fn a_box_cannot_signal_who_runs_the_node() -> Outcome {
    as_a_user_with_ids("a_box_cannot_signal_who_runs_the_node", || async {
        // all walls that would hide the others are left out: it is the uid that refuses
        let without = [Defence::PidNamespace, Defence::Landlock];
        let mut other = std::process::Command::new("sleep").arg("100").spawn()?;
        let victim = other.id();
        let attack = format!("kill -9 {victim} 2>/dev/null && echo ended || echo refused");
        for (weakened, expected) in [(None, "refused"), (Some(Defence::UidMap), "ended")] {
            let data = Data::new()?;
            let config = without.into_iter().chain(weakened);
            let config = config.fold(data.config(), cocoonbox_sandbox::BwrapConfig::with_weakened);
            let backend = common::open(config).await?;
            let claim = claim(&*backend).await?;
            let ran = sh(&*backend, &claim.id, &attack).await?;
            assert_eq!(ran.out.trim_end(), expected, "{weakened:?}: {ran:?}");
        }
        other.wait()?;
        Ok(())
    })
}
