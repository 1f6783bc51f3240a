#!/usr/bin/env bash
# Builds the guest's binary so that it runs in any Linux root file system, and puts it at target/agent/cocoonbox-agent.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
need cc=build-essential
cd "$root"

target=$(uname -m)-unknown-linux-gnu
flags=CARGO_TARGET_$(printf %s "$target" | tr 'a-z-' 'A-Z_')_RUSTFLAGS
env "$flags=-C target-feature=+crt-static" cargo build --profile agent -p cocoonbox-agent --target "$target"

built=${CARGO_TARGET_DIR:-target}/$target/agent/cocoonbox-agent
mkdir -p target/agent
# a running box may have the old file mapped: it keeps its inode
cmp -s "$built" target/agent/cocoonbox-agent || {
    cp "$built" target/agent/.new
    mv target/agent/.new target/agent/cocoonbox-agent
}
say "target/agent/cocoonbox-agent: $(du -h target/agent/cocoonbox-agent | cut -f1)"
