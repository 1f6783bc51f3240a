#!/usr/bin/env bash
# What a machine can say about the code without running it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
cd "$root"

say "formatting"
cargo fmt --all --check
say "clippy"
cargo clippy --workspace --all-targets -- -D warnings
say "docs"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
say "licences, bans and sources"
cargo deny --version >/dev/null 2>&1 || {
    say "installing cargo-deny (a few minutes, once)"
    cargo install --locked --quiet cargo-deny@0.20.2
}
cargo fetch --locked --quiet
cargo deny --offline check licenses bans sources
scripts/package.sh
