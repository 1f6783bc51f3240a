#!/usr/bin/env bash
# Gives each fuzz target some seconds of work; COCOONBOX_FUZZ_SECONDS says how many, arguments name targets.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
cd "$root"

seconds=${COCOONBOX_FUZZ_SECONDS:-30}
cargo fuzz --version >/dev/null 2>&1 || {
    say "installing cargo-fuzz (a few minutes, once)"
    cargo install --locked --quiet cargo-fuzz@0.13.2
}
# the sanitizer and its coverage are not in the stable language yet, and are in the stable compiler
export RUSTC_BOOTSTRAP=1
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/fuzz}

# what the fixtures hold is where the work begins
seed() {
    mkdir -p "fuzz/corpus/$1"
    cp "$2" "fuzz/corpus/$1/seed-$3"
}
seed identity fixtures/identity-v1.json 1
for target in silkd_request silkd_response; do
    number=0
    while IFS= read -r line; do
        number=$((number + 1))
        printf '%s' "$line" > "$root/fuzz/corpus/.line"
        seed "$target" fuzz/corpus/.line "$number"
    done < fixtures/silkd-v1.jsonl
done
rm -f fuzz/corpus/.line
for folder in fuzz/seeds/*/; do
    target=$(basename "$folder")
    mkdir -p "fuzz/corpus/$target"
    cp "$folder"* "fuzz/corpus/$target/"
done

say "building the fuzz targets"
cargo fuzz build --fuzz-dir fuzz
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo fuzz list --fuzz-dir fuzz)
for target in "${targets[@]}"; do
    say "fuzzing $target for $seconds s"
    cargo fuzz run --fuzz-dir fuzz "$target" -- -max_total_time="$seconds" -timeout=10 -print_final_stats=1 -verbosity=0
done
