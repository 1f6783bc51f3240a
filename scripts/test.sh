#!/usr/bin/env bash
# Installs what the tests need, starts a PostgreSQL of its own, builds, and runs every test.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
scripts_dir=$root/scripts
"$scripts_dir/need.sh" test
cd "$root"

# stories dial real ports and open many files
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true

"$scripts_dir/agent.sh" --with-attacker
# the pages, which the binaries take in
"$scripts_dir/console.sh"
# in one go with the tests, so that each library is built once
cargo build --workspace --bins --tests --examples
export COCOONBOX_AGENT=$root/target/agent/cocoonbox-agent
export COCOONBOX_BINARIES=${CARGO_TARGET_DIR:-$root/target}/debug

# the closing lines are cargo's counts
exec "$scripts_dir/postgres.sh" run target/postgres -- cargo test --workspace --no-fail-fast
