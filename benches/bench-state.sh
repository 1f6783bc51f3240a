#!/usr/bin/env bash
# Measures saves and restores of a real tree beside restic, borg and, where it is installed, rustic; see
# benches/README.md. --quick: one round on a warm cache.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
need_cargo
cd "$root"

rounds=${COCOONBOX_BENCH_ROUNDS:-5}
# rounds of them that are measured on a cold cache, too
cold_rounds=${COCOONBOX_BENCH_COLD_ROUNDS:-3}
if [ "${1:-}" = --quick ]; then rounds=1 cold_rounds=0; fi
need restic=restic borg=borgbackup /usr/bin/time=time git=git
if [ "${RUSTIC:-}" = 1 ] && ! command -v rustic >/dev/null; then
    say "building rustic"
    cargo install --locked --quiet rustic-rs
fi
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
if [ -z "${COCOONBOX_BENCH_BUILT:-}" ]; then
    cargo build --release -q -p example-seal-folder
    cargo build --release -q -p cocoonbox-state --example stages
fi
programs=$(realpath "${COCOONBOX_BENCH_BUILT:-$built/release}")
ours=$programs/example-seal-folder
stages=$programs/examples/stages

work=$(mktemp -d "${TMPDIR:-/tmp}/cocoonbox-bench.XXXXXX")
clean_up() {
    umount -l "$work/disk" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
tree=$work/tree
disk=$work/disk
out=$disk/out

# A tree as a developer's box has it: the sources that built this, a node_modules, repositories of git, a toolchain's
# libraries. Direct packages are pinned; what is downloaded is kept for the next run.
packages=(typescript@5.4.5 next@14.2.3 react@18.2.0 react-dom@18.2.0 @mui/material@5.15.15 date-fns@3.6.0
    lodash@4.17.21 rxjs@7.8.1 three@0.164.1 aws-sdk@2.1610.0 googleapis@134.0.0 monaco-editor@0.47.0 webpack@5.91.0
    eslint@8.57.0 jest@29.7.0 @babel/preset-env@7.24.4 antd@5.16.2 echarts@5.5.0 mermaid@10.9.0 pdfjs-dist@4.1.392
    vite@5.2.9 core-js@3.37.0 prettier@3.2.5 lucide-react@0.372.0 plotly.js-dist@2.31.1)
node_modules() {
    local kept=$built/bench-state/node
    if [ ! -e "$kept/whole" ]; then
        need npm=npm
        say "fetching a node_modules"
        rm -rf "$kept"
        mkdir -p "$kept"
        echo '{"name":"bench-tree","private":true}' >"$kept/package.json"
        (cd "$kept" && npm install --ignore-scripts --no-audit --no-fund --legacy-peer-deps --save-exact \
            "${packages[@]}" >&2)
        touch "$kept/whole"
    fi
    mkdir -p "$tree/app"
    cp -a "$kept/package.json" "$kept/package-lock.json" "$kept/node_modules" "$tree/app/"
}
build_tree() {
    local sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
    cargo fetch --locked -q
    mkdir -p "$tree/.cargo/registry"
    cp -a "$sources" "$tree/.cargo/registry/"
    node_modules
    git clone -q --no-hardlinks "$root" "$tree/cocoonbox"
    # a repository with objects of its own, of the same sources; a size over the threshold goes into one pack at once
    local git=(git --git-dir="$tree/vendored.git" --work-tree="$sources" -c core.bigFileThreshold=1 -c gc.auto=0
        -c user.name=bench -c user.email=bench@example.invalid -c commit.gpgsign=false)
    git init -q --bare "$tree/vendored.git"
    "${git[@]}" -c core.bare=false add -A "$sources"
    "${git[@]}" -c core.bare=false commit -q -m all
    mkdir -p "$tree/.rustup"
    cp -a "$(rustc --print sysroot)/lib" "$(rustc --print sysroot)/bin" "$tree/.rustup/"
}
if [ -n "${COCOONBOX_BENCH_TREE:-}" ]; then
    cp -a "$COCOONBOX_BENCH_TREE" "$tree"
else
    say "building the tree"
    build_tree
fi
head -c $((40 << 20)) /dev/urandom >"$tree/one-file"
files=$(find "$tree" -type f | wc -l)
bytes=$(find "$tree" -type f -printf '%s\n' | awk '{ all += $1 } END { printf "%.0f", all }')
say "the tree: $files files, $((bytes >> 20)) MiB"
[ "$bytes" -ge $((2 << 30)) ] && [ "$files" -ge 60000 ] || say "that is a small one: figures say less"

# Restores go to a new file system each time, where whoever runs this may make one: ext4 passes over the inodes that
# were freed a minute ago one by one, and what was removed before would decide how fast files are made. Its journal is
# as long as that of a disk of usual size, or writers would wait for room in it.
need /usr/sbin/mkfs.ext4=e2fsprogs
told=
fresh_disk() {
    if mountpoint -q "$disk"; then umount "$disk" || umount -l "$disk"; fi
    rm -rf "$disk" "$disk.ext4"
    mkdir "$disk"
    [ "$(id -u)" = 0 ] || return 0
    truncate -s $((bytes * 3)) "$disk.ext4"
    if ! { /usr/sbin/mkfs.ext4 -q -E nodiscard -J size=1024 "$disk.ext4" &&
        mount -o loop,noinit_itable "$disk.ext4" "$disk"; } 2>/dev/null; then
        rm -f "$disk.ext4"
        [ -n "$told" ] || say "no file system of its own here: restores depend on what was removed before"
        told=1
    fi
}

drop_caches() { sync && echo 3 2>/dev/null >/proc/sys/vm/drop_caches; }
if [ "$cold_rounds" -gt 0 ] && ! (drop_caches) 2>/dev/null; then
    say "the page cache cannot be dropped here: no figures of a cold one"
    cold_rounds=0
fi

# each with its defaults and, where that is not it, with zstd 1, as ours is; restic's zstd has no level
tools=(cocoonbox restic borg borg-1)
declare -A names=([restic]="$(restic version | cut -d' ' -f1,2)" [borg]="$(borg --version), lz4" [borg-1]="$(borg --version), zstd 1")
if command -v rustic >/dev/null; then
    tools+=(rustic rustic-1)
    names+=([rustic]="$(rustic --version)" [rustic-1]="$(rustic --version), zstd 1")
fi
export RESTIC_PASSWORD=bench BORG_PASSPHRASE=bench RUSTIC_PASSWORD=bench
export BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes BORG_RELOCATED_REPO_ACCESS_IS_OK=yes
export BORG_BASE_DIR=$work/borg-home XDG_CACHE_HOME=$work/caches
export work tree out ours archive=
store() { echo "$work/store-$1"; }
fresh() { # makes an empty store
    rm -rf "$(store "$1")" "$work/caches" "$work/borg-home" "$work/cache" "$work/key"
    case $1 in
        restic) restic init -q -r "$(store restic)" ;;
        borg*) borg init -e repokey-blake2 "$(store "$1")" ;;
        rustic) rustic --log-level error -r "$(store rustic)" init ;;
        rustic-1) rustic --log-level error -r "$(store rustic-1)" init --set-compression 1 ;;
    esac >/dev/null 2>&1
}
save() {
    case $1 in
        cocoonbox) "$ours" save "$tree" --tagged --cache "$work/cache" --store "$(store cocoonbox)" --key "$work/key" --json ;;
        restic) restic backup -q -r "$(store restic)" "$tree" ;;
        borg) borg create "$(store borg)::$archive" "$tree" ;;
        borg-1) borg create -C zstd,1 "$(store borg-1)::$archive" "$tree" ;;
        rustic*) rustic --log-level error -r "$(store "$1")" backup "$tree" ;;
    esac
}
restore() {
    case $1 in
        cocoonbox) "$ours" restore "$out" --store "$(store cocoonbox)" --key "$work/key" --json ;;
        restic) restic restore latest -q -r "$(store restic)" --target "$out" ;;
        borg*) mkdir "$out" && cd "$out" && borg extract "$(store "$1")::$archive" ;;
        rustic*) rustic --log-level error -r "$(store "$1")" restore latest "$out" ;;
    esac
}
restore_one() {
    case $1 in
        cocoonbox) "$ours" restore-one one-file "$out" --store "$(store cocoonbox)" --key "$work/key" --json ;;
        restic) restic restore latest -q -r "$(store restic)" --target "$out" --include "$tree/one-file" ;;
        borg*) mkdir "$out" && cd "$out" && borg extract "$(store "$1")::$archive" "${tree#/}/one-file" ;;
        rustic*) rustic --log-level error -r "$(store "$1")" restore "latest:$tree/one-file" "$out" ;;
    esac
}
export -f save restore restore_one store
stamp=0
touch_some() { # one file of a hundred gets a line more
    stamp=$((stamp + 1))
    find "$tree" -type f -size -2048 | sort | awk "NR % 100 == $((stamp % 100))" | tr '\n' '\0' |
        xargs -0 -n 1 sh -c "echo '// $stamp' >>\"\$0\""
}
declare -A values
measure() { # measure FIGURE TOOL FUNCTION
    sync
    if ! /usr/bin/time -o "$work/time" -f '%e %U %S %M' bash -c "set -euo pipefail; $3 $2" >/dev/null 2>"$work/log"; then
        say "${names[$2]:-$2} failed at $1: $(tail -n 1 "$work/log")"
        return 0
    fi
    local seconds user system kib
    read -r seconds user system kib < <(tail -n 1 "$work/time")
    say "$1 $2: $seconds s, processor $user + $system s, peak $((kib >> 10)) MiB"
    values[$1 $2]+=" $seconds"
    [ "$1" != save-first ] || values[save-peak-mib $2]+=" $((kib >> 10))"
}
mebibytes() { find "$1" -type f -printf '%s\n' | awk '{ all += $1 } END { printf "%.0f", all / 1048576 }'; }
part=0
measure_all() { # measure_all TOOL: a round
    local tool=$1
    part=$((part + 1))
    fresh "$tool"
    archive=first-$part measure save-first "$tool" save
    values[stored-size $tool]+=" $(mebibytes "$(store "$tool")")"
    archive=unchanged-$part measure save-unchanged "$tool" save
    touch_some
    archive=touched-$part measure save-touched "$tool" save
    fresh_disk
    archive=touched-$part measure restore-full "$tool" restore
    fresh_disk
    archive=touched-$part measure restore-one "$tool" restore_one
    if [ "$round" -le "$cold_rounds" ] && [ "${tool%-1}" = "$tool" ]; then
        fresh_disk
        drop_caches
        archive=touched-$part measure restore-full-cold "$tool" restore
        fresh_disk
        drop_caches
        archive=touched-$part measure restore-one-cold "$tool" restore_one
        fresh "$tool"
        drop_caches
        archive=cold-$part measure save-first-cold "$tool" save
    fi
    rm -rf "$(store "$tool")"
}
# what is written first is read from the cache by all
cat "$tree"/one-file >/dev/null
find "$tree" -type f -print0 | xargs -0 cat >/dev/null
for round in $(seq "$rounds"); do
    # who comes first goes in turns
    turn=$((round % ${#tools[@]}))
    for tool in "${tools[@]:turn}" "${tools[@]:0:turn}"; do measure_all "$tool"; done
done

# the same first save, of a tree in a box
if seconds=$(COCOONBOX_BENCH_BUILT=${COCOONBOX_BENCH_BUILT:-} benches/save-box.sh "$tree" "$rounds"); then
    values[save-box cocoonbox]=$(tr '\n' ' ' <<<"$seconds")
    for tool in "${tools[@]:1}"; do values[save-box $tool]=${values[save-first $tool]:-}; done
fi

median() { tr ' ' '\n' <<<"$1" | grep . | sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
figure() { # figure NAME UNIT: a line for each peer, less being better
    local tool mine theirs
    [ -n "${values[$1 cocoonbox]:-}" ] || return 0
    mine=$(median "${values[$1 cocoonbox]}")
    for tool in "${tools[@]:1}"; do
        [ -n "${values[$1 $tool]:-}" ] || continue
        theirs=$(median "${values[$1 $tool]}")
        printf '{"figure":"%s","ours":%s,"peer_name":"%s","peer":%s,"ratio":%s,"unit":"%s"}\n' "$1" "$mine" \
            "${names[$tool]}" "$theirs" "$(awk "BEGIN { printf \"%.2f\", $theirs / $mine }")" "$2"
    done
}
for name in save-first save-box save-unchanged save-touched restore-full restore-one save-first-cold restore-full-cold restore-one-cold; do
    figure $name s
done
figure save-peak-mib MiB
figure stored-size MiB
alone() { printf '{"figure":"%s","ours":%s,"peer_name":null,"peer":null,"ratio":null,"unit":"MiB/s"}\n' "$1" "$2"; }
if [ -n "${values[save-first cocoonbox]:-}" ]; then
    alone save-rate "$(awk "BEGIN { printf \"%.0f\", $bytes / 1048576 / $(median "${values[save-first cocoonbox]}") }")"
    alone restore-rate "$(awk "BEGIN { printf \"%.0f\", $bytes / 1048576 / $(median "${values[restore-full cocoonbox]}") }")"
fi
"$stages" "$tree" "$work"
