#!/usr/bin/env bash
# Saves and restores large trees, in a release build: a million files, 20 GiB of holes, 4 GiB of random bytes, 200 kills.
# Needs 16 GB of disk.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
cd "$root"

cargo test --release -p cocoonbox-state --no-run

# as root on a disk of its own, without a journal and without discard, which makes of two million files to be deleted
# hours on some machines
work=$(mktemp -d "${TMPDIR:-/tmp}/cocoonbox-soak.XXXXXX")
cleanup() {
    if mountpoint -q "$work/disk"; then umount "$work/disk"; fi
    rm -rf "$work"
}
trap cleanup EXIT
# a test looks at it as another user
chmod 755 "$work"
mkdir "$work/disk"
if [ "$(id -u)" = 0 ] && truncate -s 24G "$work/image" &&
    mkfs.ext4 -q -F -O ^has_journal -N 2400000 "$work/image" &&
    mount -o loop,noatime "$work/image" "$work/disk" 2>/dev/null; then
    export TMPDIR=$work/disk
else
    say "no disk of its own: on the one of $work"
    export TMPDIR=$work
fi
# one after the other, so that the disk is enough
COCOONBOX_SOAK=1 cargo test --release -p cocoonbox-state --no-fail-fast -- --test-threads=1
