#!/usr/bin/env bash
# Measures what boxes cost that nobody uses; see benches/README.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# boxes that wait in a pool would be counted as left over
server density --warm 0
export COCOONBOX_CONFIG_DIR=$config_dir
"$programs/bench-density" <<PLAN
{"endpoint":"http://127.0.0.1:$port","token_file":"$token_file","server":$server_pid,
 "boxes":${COCOONBOX_BENCH_BOXES:-1000},"running":${COCOONBOX_BENCH_RUNNING:-100},"seconds":30,"ticks":$(getconf CLK_TCK)}
PLAN
