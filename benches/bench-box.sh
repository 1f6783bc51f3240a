#!/usr/bin/env bash
# Measures a box's start and a remote command beside their peers; see benches/README.md.
set -euo pipefail
. "$(dirname "$0")/../scripts/lib.sh"
need_cargo
need_to_run
cd "$root"

scripts/agent.sh
cargo build --release -p cocoonbox -p cocoonbox-benches
programs=$(realpath "${CARGO_TARGET_DIR:-target}/release")
export COCOONBOX_AGENT=$root/target/agent/cocoonbox-agent
unset COCOONBOX_ENDPOINT COCOONBOX_TOKEN

work=$(mktemp -d "${TMPDIR:-/tmp}/cocoonbox-bench.XXXXXX")
export COCOONBOX_CONFIG_DIR=$work/cli
started=()
clean_up() {
    local status=$? pid box
    trap - EXIT
    # boxes outlive the server by design
    "$programs/cocoonbox" --json box ls 2>/dev/null | grep -o 'cb-[a-z2-7]\{10\}' | sort -u | while read -r box; do
        "$programs/cocoonbox" box rm "$box" --yes >/dev/null 2>&1 || true
    done
    [ ! -S "$work/ssh-control" ] || ssh -o ControlPath="$work/ssh-control" -O exit localhost 2>/dev/null || true
    for pid in "${started[@]}"; do
        kill -TERM "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
free_port() {
    perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0); bind(S, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die;
        print((unpack_sockaddr_in(getsockname(S)))[0])'
}
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
words() { # prints its arguments as a JSON array; none of them holds a quote
    local out= word
    for word; do out+=",\"$word\""; done
    printf '[%s]' "${out:1}"
}
peers=
peer() { # peer NAME COMMAND...: adds one that works here
    local name=$1
    shift
    if "$@" >/dev/null 2>"$work/peer.log" </dev/null; then
        peers+="${peers:+,}{\"name\":\"$name\",\"argv\":$(words "$@")}"
    else
        say "no peer $name here: $(tail -n 1 "$work/peer.log")"
    fi
}

port=$(free_port)
"$programs/cocoonbox" up --data "$work/data" --listen "127.0.0.1:$port" >"$work/up.log" 2>&1 &
started+=($!)
for _ in $(seq 150); do answers "$port" && break; sleep 0.1; done

# bare bwrap: what a start costs before anything of ours
peer 'bare bwrap' bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp -- echo here

# podman: an image of the machine's busybox, no network, as it starts on this machine
(need podman=podman runc=runc /bin/busybox=busybox-static) || say "podman could not be installed"
if command -v podman >/dev/null; then
    mkdir -p "$work/root/bin"
    cp /bin/busybox "$work/root/bin/"
    ln -s busybox "$work/root/bin/echo"
    tar -C "$work/root" -c . | podman --root "$work/podman" --runroot "$work/podman-run" import - bench:1 >/dev/null 2>&1 || true
    podman=(podman --root "$work/podman" --runroot "$work/podman-run" --runtime runc)
    peer 'podman run --rm' "${podman[@]}" run --rm --network=none --ulimit nofile=4096:4096 \
        --ulimit nproc=4096:4096 bench:1 echo here
fi
start_peers=$peers

# ssh to this machine over a warm control master: a server of our own, from the unpacked package, so that nothing is
# installed that listens
peers=
need ssh=openssh-client
mkdir -p "$work/sshd"
sshd=/usr/sbin/sshd
if [ ! -x "$sshd" ]; then
    (cd "$work/sshd" && apt-get download -q openssh-server libwrap0 >/dev/null 2>&1 && for package in *.deb; do
        dpkg -x "$package" .
    done) || true
    sshd=$work/sshd/usr/sbin/sshd
fi
if [ -x "$sshd" ]; then
    ssh_port=$(free_port)
    wrap=$(find "$work/sshd" -name 'libwrap.so.0' | head -n 1)
    [ -z "$wrap" ] || export LD_LIBRARY_PATH="${wrap%/*}"
    ssh-keygen -q -t ed25519 -N '' -f "$work/host-key"
    ssh-keygen -q -t ed25519 -N '' -f "$work/user-key"
    cp "$work/user-key.pub" "$work/authorized"
    cat >"$work/sshd.conf" <<CONFIG
Port $ssh_port
ListenAddress 127.0.0.1
HostKey $work/host-key
AuthorizedKeysFile $work/authorized
StrictModes no
PidFile none
UsePAM no
PermitRootLogin yes
CONFIG
    if [ "$(id -u)" = 0 ]; then
        # its separation account and folder exist in a mount namespace of its own
        { cat /etc/passwd; grep -q '^sshd:' /etc/passwd || echo 'sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin'; } >"$work/passwd"
        unshare --mount sh -c "mount --bind '$work/passwd' /etc/passwd && mkdir -p /run/sshd && exec '$sshd' -D -e -f '$work/sshd.conf'" \
            >"$work/sshd.log" 2>&1 &
    else
        "$sshd" -D -e -f "$work/sshd.conf" >"$work/sshd.log" 2>&1 &
    fi
    started+=($!)
    unset LD_LIBRARY_PATH
    for _ in $(seq 50); do answers "$ssh_port" && break; sleep 0.1; done
    ssh=(ssh -F /dev/null -p "$ssh_port" -i "$work/user-key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null
        -o LogLevel=ERROR -o "ControlPath=$work/ssh-control")
    "${ssh[@]}" -o ControlMaster=yes -o ControlPersist=yes -f -N localhost 2>"$work/peer.log" || true
    peer 'ssh, warm control master' "${ssh[@]}" localhost true
fi

"$programs/bench-box" <<PLAN
{"endpoint":"http://127.0.0.1:$port","token_file":"$work/data/admin-token.txt","rounds":${COCOONBOX_BENCH_ROUNDS:-21},
 "rsh":$(words "$programs/cocoonbox" rsh -- true),"start_peers":[$start_peers],"rsh_peers":[$peers]}
PLAN
