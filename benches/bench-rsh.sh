#!/usr/bin/env bash
# Measures remote commands beside ssh; see benches/README.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

fresh_disk
server rsh
ssh_server
peer_ssh=null
[ ${#ssh[@]} = 0 ] || peer_ssh=$(words "${ssh[@]}")
export COCOONBOX_CONFIG_DIR=$config_dir
"$programs/bench-rsh" <<PLAN
{"endpoint":"http://127.0.0.1:$port","token_file":"$token_file","rounds":${COCOONBOX_BENCH_ROUNDS:-21},
 "bytes":${COCOONBOX_BENCH_BYTES:-1073741824},"files":${COCOONBOX_BENCH_FILES:-20000},"work":"$work",
 "rsh":$(words "$programs/cocoonbox" rsh),"ssh":$peer_ssh}
PLAN
