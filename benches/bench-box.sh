#!/usr/bin/env bash
# Measures a box's start beside its peers; see benches/README.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

server cold --warm 0
cold="{\"endpoint\":\"http://127.0.0.1:$port\",\"token_file\":\"$token_file\"}"
cold_cli=$config_dir
server warm --warm 2
warm="{\"endpoint\":\"http://127.0.0.1:$port\",\"token_file\":\"$token_file\"}"

# bare bwrap: what a start costs before anything of ours
peer 'bare bwrap' bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp -- echo here

# podman: an image of the machine's busybox, no network, as it starts on this machine
(need podman=podman runc=runc /bin/busybox=busybox-static) || say "podman could not be installed"
if command -v podman >/dev/null; then
    mkdir -p "$work/root/bin"
    cp /bin/busybox "$work/root/bin/"
    ln -s busybox "$work/root/bin/echo"
    podman=(podman --root "$work/podman" --runroot "$work/podman-run" --runtime runc)
    tar -C "$work/root" -c . | "${podman[@]}" import - bench:1 >/dev/null 2>&1 || true
    peer 'podman run --rm' "${podman[@]}" run --rm --network=none --ulimit nofile=4096:4096 \
        --ulimit nproc=4096:4096 bench:1 echo here
fi

# a fork bomb and its like are let loose only where boxes are limited
noise=${COCOONBOX_BENCH_NOISE:-}
if [ -z "$noise" ]; then
    noise=false
    # printed whole first: grep -q would hang up on it
    doctor=$("$programs/cocoonbox" doctor 2>/dev/null || true)
    ! grep -qE '^limits +yes ' <<<"$doctor" || noise=true
    [ $noise = true ] || say "noisy-rsh is left out: boxes are not limited here (see cocoonbox doctor)"
fi
export COCOONBOX_CONFIG_DIR=$cold_cli
"$programs/bench-box" <<PLAN
{"cold":$cold,"warm":$warm,"rounds":${COCOONBOX_BENCH_ROUNDS:-21},"crowd":${COCOONBOX_BENCH_CROWD:-100},
 "noise":$noise,"rsh":$(words "$programs/cocoonbox" rsh --box BOX -- true),"peers":[$peers]}
PLAN
