#!/usr/bin/env bash
# save-box.sh TREE ROUNDS: puts a tree into a new box and saves it the first time, end to end: guest, URLs, edge, store.
# Prints the seconds of each round; bench-state.sh sets them beside its peers.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need /usr/bin/time=time

# with all processors, as the peers have them, and room for the tree in its cache, which is warm for them, too
server box --warm 0 --box-size large
export COCOONBOX_CONFIG_DIR=$config_dir
box() { "$programs/cocoonbox" "$@"; }
# it signs the command line in once it serves
for _ in $(seq 100); do ! box box ls >/dev/null 2>&1 || break; sleep 0.1; done
for _ in $(seq "$2"); do
    box box ensure main >"$work/save.log" 2>&1 || die "there is no box: $(tail -n 2 "$work/save.log")"
    tar -C "$1" -cf - . | box rsh --box main -- tar -C /workspace --no-same-owner -xf -
    sync
    /usr/bin/time -o "$work/time" -f '%e' "$programs/cocoonbox" save main >"$work/save.log" 2>&1 ||
        die "the box was not saved: $(tail -n 2 "$work/save.log" "$work/box.log")"
    say "save-box: $(tail -n 1 "$work/time") s; $(tail -n 1 "$work/save.log")"
    tail -n 1 "$work/time"
    box box rm main --yes >/dev/null 2>&1
    rm -rf "$work/box/state/"us_*/packs
done
