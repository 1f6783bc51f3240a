#!/usr/bin/env bash
# The long tests: all of `make test` with its loops made long, saves of a million files and of 4 GiB, and what needs a
# Docker daemon (its own, ended after).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
need dockerd=docker.io docker=docker.io /usr/sbin/mkfs.ext4=e2fsprogs
cd "$root"
failed=0
COCOONBOX_SOAK=1 scripts/test.sh || failed=$?
scripts/soak-state.sh || failed=$?
export COCOONBOX_AGENT=$root/target/agent/cocoonbox-agent
cargo test -p cocoonbox-sandbox --test container_docker || failed=$?
exit "$failed"
