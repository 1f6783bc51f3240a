#!/usr/bin/env bash
# Measures saves and restores of a real tree beside restic and borg (and rustic where it is installed; RUSTIC=1 installs
# it), each to a local folder; JSON lines, medians. COCOONBOX_BENCH_TREE names the tree, COCOONBOX_BENCH_ROUNDS the rounds.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
need_cargo
need restic=restic borg=borgbackup /usr/bin/time=time
cd "$root"
cargo build --release -q -p example-seal-folder
ours=${CARGO_TARGET_DIR:-$root/target}/release/example-seal-folder
ours=$(realpath "$ours")
if [ "${RUSTIC:-}" = 1 ] && ! command -v rustic >/dev/null; then cargo install --locked --quiet rustic-rs; fi

rounds=${COCOONBOX_BENCH_ROUNDS:-5}
work=$(mktemp -d "${TMPDIR:-/tmp}/cocoonbox-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree
source=${COCOONBOX_BENCH_TREE:-${CARGO_HOME:-$HOME/.cargo}/registry/src}
say "copying $source"
cp -a "$source" "$tree"
files=$(find "$tree" -type f | wc -l)
bytes=$(du -sb "$tree" | cut -f1)
[ "$bytes" -ge $((2 << 30)) ] && [ "$files" -ge 60000 ] ||
    say "a small tree: $bytes bytes, $files files; COCOONBOX_BENCH_TREE names a larger one"
head -c $((40 << 20)) /dev/urandom >"$tree/one-file"
export RESTIC_PASSWORD=bench BORG_PASSPHRASE=bench BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes RUSTIC_PASSWORD=bench
export BORG_BASE_DIR=$work/borg-home XDG_CACHE_HOME=$work/caches

tools=(cocoonbox restic borg)
command -v rustic >/dev/null && tools+=(rustic)
store() { echo "$work/store-$1"; }
fresh() { rm -rf "$(store "$1")" "$work/caches" "$work/borg-home" "$work/cache"; }
begin() { # makes an empty store
    case $1 in
        cocoonbox) rm -f "$work/key" ;;
        restic) restic init -q -r "$(store restic)" ;;
        borg) borg init -e repokey-blake2 "$(store borg)" ;;
        rustic) rustic --log-level error -r "$(store rustic)" init >/dev/null ;;
    esac
}
save() {
    case $1 in
        cocoonbox) "$ours" save "$tree" --tagged --cache "$work/cache" --store "$(store cocoonbox)" --key "$work/key" --json ;;
        restic) restic backup -q -r "$(store restic)" "$tree" ;;
        borg) borg create "$(store borg)::$(date +%s%N)" "$tree" ;;
        rustic) rustic --log-level error -r "$(store rustic)" backup "$tree" ;;
    esac >/dev/null 2>&1
}
restore() {
    case $1 in
        cocoonbox) "$ours" restore "$work/out" --store "$(store cocoonbox)" --key "$work/key" --json ;;
        restic) restic restore latest -q -r "$(store restic)" --target "$work/out" ;;
        borg) mkdir -p "$work/out" && cd "$work/out" && borg extract "$(store borg)::$(borg list --last 1 --short "$(store borg)")" ;;
        rustic) rustic --log-level error -r "$(store rustic)" restore latest "$work/out" ;;
    esac >/dev/null 2>&1
}
restore_one() {
    case $1 in
        cocoonbox) "$ours" restore-one one-file "$work/out" --store "$(store cocoonbox)" --key "$work/key" --json ;;
        restic) restic restore latest -q -r "$(store restic)" --target "$work/out" --include "$tree/one-file" ;;
        borg) mkdir -p "$work/out" && cd "$work/out" &&
            borg extract "$(store borg)::$(borg list --last 1 --short "$(store borg)")" "${tree#/}/one-file" ;;
        rustic) rustic --log-level error -r "$(store rustic)" restore "latest:$tree/one-file" "$work/out" ;;
    esac >/dev/null 2>&1
}
touch_some() { # one file of a hundred gets a line more
    find "$tree" -type f -name '*.rs' | sort | awk "NR % 100 == $1" | while IFS= read -r file; do echo "// $1" >>"$file"; done
}
declare -A times peaks sizes
measure() { # measure NAME TOOL FUNCTION
    local name=$1 tool=$2
    sync
    export -f save restore restore_one store
    export work tree ours
    if ! /usr/bin/time -o "$work/time" -f '%e %M' bash -c "set -euo pipefail; $3 $tool"; then
        say "$tool failed at $name"
        return
    fi
    read -r seconds kib < <(tail -n 1 "$work/time")
    times[$name-$tool]+=" $seconds"
    [ "$name" != save-first ] || peaks[$tool]+=" $((kib / 1024))"
}
median() { tr ' ' '\n' | grep -v '^$' | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

for round in $(seq "$rounds"); do
    # who comes first goes in turns
    order=("${tools[@]:$((round % ${#tools[@]}))}" "${tools[@]:0:$((round % ${#tools[@]}))}")
    for tool in "${order[@]}"; do fresh "$tool"; begin "$tool" >/dev/null 2>&1; measure save-first "$tool" save
        sizes[$tool]+=" $(($(du -sb "$(store "$tool")" | cut -f1) / 1048576))"
        measure save-unchanged "$tool" save
        touch_some "$round"
        measure save-touched "$tool" save
        measure restore-full "$tool" restore
        rm -rf "$work/out"
        measure restore-one "$tool" restore_one
        rm -rf "$work/out"
    done
done
line() { # line NAME UNIT VALUES…: one JSON line, ours and the peers'
    local name=$1 unit=$2 tool out=
    shift 2
    for tool in "${tools[@]}"; do
        out+=",\"$tool\":$(printf '%s' "${values[$tool]:-}" | median)"
    done
    printf '{"bench":"%s","unit":"%s","rounds":%s,"files":%s,"bytes":%s,"cache":"warm"%s}\n' \
        "$name" "$unit" "$rounds" "$files" "$bytes" "${out//:,/:null,}"
}
for name in save-first save-unchanged save-touched restore-full restore-one; do
    declare -A values=()
    for tool in "${tools[@]}"; do values[$tool]=${times[$name-$tool]:-}; done
    line "$name" seconds
done
declare -A values=()
for tool in "${tools[@]}"; do values[$tool]=${peaks[$tool]:-}; done
line save-peak mib
for tool in "${tools[@]}"; do values[$tool]=${sizes[$tool]:-}; done
line stored-size mib
# save-box, the same first save end to end through a guest and an edge, is measured where both are
