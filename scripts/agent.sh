#!/usr/bin/env bash
# Builds the guest's binary so that it runs in any Linux root file system, and puts it at target/agent/cocoonbox-agent.
# With `--with-attacker` also the program that the escape suite puts into boxes: target/agent/cocoonbox-attacker.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
need cc=build-essential
cd "$root"

target=$(uname -m)-unknown-linux-gnu
flags=CARGO_TARGET_$(printf %s "$target" | tr 'a-z-' 'A-Z_')_RUSTFLAGS
mkdir -p target/agent

# build PACKAGE BINARY: at a fixed address, because each process of a box would otherwise write half a megabyte of
# relocated pointers of its own, and read a megabyte of relocations to do so. What keeps a box in is outside of it.
build() {
    env "$flags=-C target-feature=+crt-static -C relocation-model=static" cargo build --profile agent -p "$1" --bin "$2" --target "$target"
    local built=${CARGO_TARGET_DIR:-target}/$target/agent/$2
    # a running box may have the old file mapped: it keeps its inode
    cmp -s "$built" "target/agent/$2" || {
        cp "$built" "target/agent/.new-$2"
        mv "target/agent/.new-$2" "target/agent/$2"
    }
    say "target/agent/$2: $(du -h "target/agent/$2" | cut -f1)"
}

build cocoonbox-agent cocoonbox-agent
[ "${1:-}" != --with-attacker ] || build cocoonbox-escape-tests cocoonbox-attacker
