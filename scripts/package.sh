#!/usr/bin/env bash
# Packs each library crate as it would be published. A clean clone is packed as it stands; elsewhere uncommitted files
# go in too.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
cd "$root"

crates=()
for manifest in cocoonbox-*/Cargo.toml; do
    crates+=(-p "$(dirname "$manifest")")
done
dirty=()
# the console's pages are packed as they were built, and git does not know them
if [ -d cocoonbox-console/web/dist ] || [ -n "$(git status --porcelain 2>/dev/null)" ]; then
    dirty=(--allow-dirty)
fi
say "packing the library crates"
cargo package --quiet --no-verify "${dirty[@]}" "${crates[@]}"
