//! Sandboxes inside of boxes, by programs that make their own: they work where a claim asks for them, and nowhere else.

mod common;

use cocoonbox_core::backend::{Nesting, SandboxBackend as _};
use common::{Data, Outcome, as_root_and_as_a_user, claim, printed, request, sh};

#[test]
fn bwrap_in_a_box_works_where_the_claim_asks_for_it() -> Outcome {
    as_root_and_as_a_user("bwrap_in_a_box_works_where_the_claim_asks_for_it", || async {
        let nested = "echo kept >/workspace/kept; bwrap --unshare-all --uid 0 --gid 0 --ro-bind / / --proc /proc --dev /dev \
             --tmpfs /home --hostname inner -- \
             /bin/sh -c 'id -u; hostname; echo process $$; ls /home; cat /workspace/kept; touch /workspace/x || echo no'";
        let data = Data::new()?;
        let backend = data.open().await?;
        let nests = backend.claim(request("nests").with_nesting(Nesting::Allowed)).await?;
        let said = printed(&*backend, &nests.id, &format!("{nested} 2>/dev/null")).await?;
        assert_eq!(said, "0\ninner\nprocess 2\nkept\nno");
        let plain = claim(&*backend).await?;
        let ran = sh(&*backend, &plain.id, nested).await?;
        assert!(ran.code != 0 && ran.out.is_empty() && ran.err.contains("namespace"), "{ran:?}");
        Ok(())
    })
}

/// The real coding agent, without a model: its subcommand runs a program in the sandbox that its tools run in.
#[test]
fn the_codex_sandbox_works_where_the_claim_asks_for_it() -> Outcome {
    const NAME: &str = "the_codex_sandbox_works_where_the_claim_asks_for_it";
    let package = format!("codex-linux-{}", if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" });
    let vendor = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/codex/node_modules/@openai")
        .join(package)
        .join("vendor");
    let Some(found) = std::fs::read_dir(&vendor).into_iter().flatten().flatten().next() else {
        return Err(format!("no codex in {}: `scripts/need.sh test` installs it", vendor.display()).into());
    };
    common::with_shown(NAME, &found.path(), || async {
        let codex = format!("{}/bin/codex", common::SHOWN);
        let inner = "echo in; cat kept; touch x 2>/dev/null || echo read-only; \
                     python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 7443))' 2>/dev/null || echo no network";
        let sandboxed = format!(
            "cd /workspace && echo kept >kept && {codex} sandbox -- sh -c '{}'",
            inner.replace('\'', "'\\''")
        );
        let data = Data::new()?;
        let backend = data.open().await?;
        let nests = backend.claim(request("nests").with_nesting(Nesting::Allowed)).await?;
        let ran = sh(&*backend, &nests.id, &sandboxed).await?;
        assert_eq!(ran.out.trim_end(), "in\nkept\nread-only\nno network", "{ran:?}");
        // the same program without codex around it
        let free = printed(&*backend, &nests.id, &format!("cd /workspace && {inner}")).await?;
        assert_eq!(free, "in\nkept");
        let plain = claim(&*backend).await?;
        let ran = sh(&*backend, &plain.id, &sandboxed).await?;
        assert!(ran.code != 0 && !ran.out.contains("in"), "{ran:?}");
        Ok(())
    })
}
