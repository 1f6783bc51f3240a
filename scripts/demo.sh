#!/usr/bin/env bash
# The main job, on a temporary data directory, with each claim proven: exits 0 only if all of it held.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_cargo
need_to_run
cd "$root"
here=$root/scripts/demo

scripts/agent.sh
cargo build -p cocoonbox
cocoonbox=$(realpath "${CARGO_TARGET_DIR:-target}/debug/cocoonbox")
export COCOONBOX_AGENT=$root/target/agent/cocoonbox-agent
unset COCOONBOX_ENDPOINT COCOONBOX_TOKEN

started=$SECONDS
work=$(mktemp -d "${TMPDIR:-/tmp}/cocoonbox-demo.XXXXXX")
server= listener= net_namespace= step=0
export COCOONBOX_CONFIG_DIR=$work/cli

step() {
    step=$((step + 1))
    printf '\n\033[1m%d. %s\033[0m\n' "$step" "$*"
}
told() { printf '   %s\n' "$*"; }
shown() { sed 's/^/   | /'; }
fail() {
    printf '\nFAILED: %s\n' "$*" >&2
    exit 1
}
# same WHAT ONE OTHER: fails and shows what differs.
same() {
    [ "$2" = "$3" ] && return
    diff <(printf '%s\n' "$2") <(printf '%s\n' "$3") | head -n 20 >&2
    fail "$1"
}
rsh() { "$cocoonbox" rsh --box main -- "$@"; }
json() { "$cocoonbox" --json "$@" | tr -d ' \n'; }

# Processes in nested pid namespaces: their pid and start time.
nested() {
    local status pid
    for status in /proc/[0-9]*/status; do
        pid=${status#/proc/} pid=${pid%/status}
        [ "$(awk '/^NSpid:/ { print (NF > 2) } /^State:\tZ/ { exit }' "$status" 2>/dev/null)" = 1 ] || continue
        printf '%s:%s\n' "$pid" "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)"
    done
}
# The box's processes as the machine sees them: those in its network namespace, and nested ones newer than this demo
# that hide their namespace from us.
box_processes() {
    local entry pid link
    for entry in $(nested); do
        pid=${entry%%:*}
        if link=$(readlink "/proc/$pid/ns/net" 2>/dev/null); then
            [ "$link" != "$net_namespace" ] || printf '%s\n' "$pid"
        elif ! grep -qxF "$entry" "$work/nested-before" && [ -e "/proc/$pid" ]; then
            printf '%s\n' "$pid"
        fi
    done
}

clean_up() {
    local status=$? pid
    trap - EXIT
    trap '' INT TERM
    if [ $status != 0 ] && [ -s "$work/up.log" ]; then
        say "the server said:"
        grep -v -i 'link\|token' "$work/up.log" | tail -n 15 >&2 || true
    fi
    if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
        timeout 20 "$cocoonbox" box rm main --yes >/dev/null 2>&1 || true
        kill -INT "$server" 2>/dev/null || true
        for _ in $(seq 100); do kill -0 "$server" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$server" 2>/dev/null || true
    fi
    if [ -n "$net_namespace" ]; then
        for pid in $(box_processes); do kill -KILL "$pid" 2>/dev/null || true; done
    fi
    [ -z "$listener" ] || kill "$listener" 2>/dev/null || true
    rm -rf "$work" || say "could not remove $work"
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
nested > "$work/nested-before"

step "Edge and node start in one process, on a temporary data directory"
port=$(perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0); bind(S, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die;
    print((unpack_sockaddr_in(getsockname(S)))[0])')
endpoint=http://127.0.0.1:$port
# its own settings, so that signing in below is a real one
start_server() {
    COCOONBOX_CONFIG_DIR=$work/server-cli "$cocoonbox" up --data "$work/data" --listen "127.0.0.1:$port" >> "$work/up.log" 2>&1 &
    server=$!
    for _ in $(seq 150); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
        kill -0 "$server" 2>/dev/null || fail "cocoonbox up ended"
        sleep 0.1
    done
    fail "cocoonbox up does not answer"
}
stop_server() {
    kill -INT "$server"
    wait "$server" || fail "the server did not stop cleanly"
    server=
}
start_server
for _ in $(seq 150); do
    link=$(grep -o 'http[^ ]*/[^ ]*link[^ ]*' "$work/up.log" | head -n 1) && break
    kill -0 "$server" 2>/dev/null || fail "cocoonbox up ended"
    sleep 0.1
done
[ -n "$link" ] || fail "no sign-in link was printed"
told "$endpoint answers; it printed a one-time sign-in link"

step "Signs in with the link, read from standard input"
printf '%s\n' "$link" | "$cocoonbox" login --endpoint "$endpoint" --link | shown
[ "$(stat -c %a "$COCOONBOX_CONFIG_DIR/cli.json")" = 600 ] || fail "the token is readable by others"
if printf '%s\n' "$link" | "$cocoonbox" login --endpoint "$endpoint" --link >/dev/null 2>&1; then
    fail "the link worked twice"
fi
told "the same link a second time is refused"

step "Ensures box main"
"$cocoonbox" box ensure | shown
json box show main | grep -q '"state":"running"' || fail "the box does not run"
net_namespace=$(rsh readlink /proc/self/ns/net)
[ "$net_namespace" != "$(readlink /proc/self/ns/net)" ] || fail "the box shares the machine's network namespace"

step "Sends this git repository into it: rsync over cocoonbox rsh"
git -c safe.directory='*' clone --quiet --no-hardlinks "$root" "$work/repository" 2>"$work/clone.log" \
    || fail "this is no git repository: $(cat "$work/clone.log")"
# times to the nanosecond: the clone is younger than a second
rsync -a --delete --modify-window=-1 -e "$cocoonbox rsh --box main" "$work/repository/" box:/workspace/repository/
sent=$("$here/manifest.sh" "$work/repository")
there=$(rsh sh -s /workspace/repository < "$here/manifest.sh")
same "what arrived is not what was sent" "$sent" "$there"
told "$(printf '%s\n' "$sent" | wc -l) lines of names, modes, times and hashes are equal on both sides"

step "Works in it: git log, a build and its test"
rsh git -C /workspace/repository log --oneline -n 3 | shown
[ "$(rsh git -C /workspace/repository rev-parse HEAD)" = "$(git -C "$work/repository" rev-parse HEAD)" ] \
    || fail "another commit is checked out there"
[ -z "$(rsh git -C /workspace/repository status --porcelain)" ] || fail "git sees changes there"
rsh make -C /workspace/repository/scripts/demo check | shown
if rsh false; then fail "a failing command's exit code was lost"; fi

step "Looks for a way out"
[ "$(rsh cat /proc/net/dev | awk 'NR > 2 { print $1 }')" = lo: ] || fail "the box has an interface beside lo"
told "the box has no interface but lo"
perl "$here/way.pl" listen "cocoonbox-demo-$$" > "$work/port" &
listener=$!
for _ in $(seq 50); do [ -s "$work/port" ] && break; sleep 0.1; done
for way in "tcp $(cat "$work/port")" "abstract cocoonbox-demo-$$"; do
    # shellcheck disable=SC2086
    outside=$(perl "$here/way.pl" dial $way) || fail "the listener does not answer outside the box"
    # shellcheck disable=SC2086
    if inside=$(rsh perl - dial $way < "$here/way.pl"); then fail "$way answers inside the box"; fi
    [ -n "$inside" ] || fail "the dialler did not run inside the box"
    told "${way% *}: outside \"$outside\", inside \"$inside\""
done

step "Hibernates it to disk"
rsh tmux new-session -d -s work 'sleep 86400'
before=$(rsh sh -s /home/user /workspace < "$here/manifest.sh")
processes=$(box_processes)
[ -n "$processes" ] || fail "no process of the box was found while it ran"
told "running: $(printf '%s\n' "$processes" | wc -l) processes of the box on the machine"
json box hibernate main --to-disk | grep -q '"memory":"lost"' || fail "hibernating did not say that memory is lost"
for _ in $(seq 10); do
    processes=$(box_processes)
    [ -z "$processes" ] && break
    sleep 0.1
done
[ -z "$processes" ] || fail "processes of the box are left: $processes"
for words in /proc/[0-9]*/cmdline; do
    case $words in "/proc/$server/cmdline") continue ;; esac
    case $({ tr '\0' ' ' < "$words"; } 2>/dev/null) in *"$work/data"*) fail "$words names the data directory" ;; esac
done
told "hibernated: none"

step "Wakes it: every file is what it was"
"$cocoonbox" box ensure main | shown
net_namespace=$(rsh readlink /proc/self/ns/net)
after=$(rsh sh -s /home/user /workspace < "$here/manifest.sh")
same "files changed" "$before" "$after"
told "sha256 of all names, modes, times, links and contents: $(printf '%s\n' "$after" | sha256sum | cut -c1-16)…, both times"

step "Freezes it while a program counts"
rsh tmux new-session -d -s ticks '/workspace/repository/scripts/demo/ticks /tmp/ticks'
sleep 1
json box hibernate main | grep -q '"memory":"kept"' || fail "the box could not be frozen"
last=$(date +%s%3N)
sleep 2
waking=$(date +%s%3N)
"$cocoonbox" box ensure main >/dev/null
sleep 1
rsh cat /tmp/ticks > "$work/ticks"
awk -v from="$last" -v to="$waking" '
    NR == 1 { pid = $1 }
    $1 != pid || $2 != NR { print "the program was started anew"; exit 1 }
    $3 > from && $3 < to { print "it counted " $2 " while frozen"; exit 1 }
    $3 <= from { before = $2 }
    $3 >= to { after++ }
    END {
        if (!before || !after) { print "it did not count on both sides"; exit 1 }
        printf "process %d counted to %d, stood still for %.1f s, and went on to %d\n", pid, before, (to - from) / 1000, NR
    }' "$work/ticks" > "$work/verdict" || fail "$(cat "$work/verdict")"
told "$(cat "$work/verdict")"

step "Saves the box, and loses its sandbox with all that is in it"
before=$(rsh sh -s /home/user /workspace < "$here/manifest.sh")
"$cocoonbox" save main 2>&1 | shown
hash() { json saves main | sed 's/.*"saves":\[{[^}]*"root_hash":"\([0-9a-f]*\)".*/\1/'; }
saved=$(hash)
[ ${#saved} = 64 ] || fail "the save has no root hash"
if grep -rqaF manifest.sh "$work/data/state"; then fail "the state store holds a name in plain"; fi
"$cocoonbox" box hibernate main --to-disk >/dev/null 2>&1
stop_server
rm -rf "$work"/data/node/claims/*
start_server
json box show main | grep -q '"state":"failed"' || fail "the loss was not noticed"
told "lost: $("$cocoonbox" box show main | sed -n 's/^failure *//p')"

step "Restores it into a new sandbox, by hash"
"$cocoonbox" box ensure main 2>&1 | shown
net_namespace=$(rsh readlink /proc/self/ns/net)
after=$(rsh sh -s /home/user /workspace < "$here/manifest.sh")
same "files changed" "$before" "$after"
"$cocoonbox" save main >/dev/null 2>&1
[ "$(hash)" = "$saved" ] || fail "what was restored has another root hash"
told "root hash ${saved:0:16}… before and after"

step "Removes the box and stops the server"
"$cocoonbox" box rm main --yes | shown
stop_server
[ -z "$(box_processes)" ] || fail "processes of the box are left"

printf '\nAll of it held, in %d s.\n' $((SECONDS - started))
