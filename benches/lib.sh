#!/usr/bin/env bash
# Shared by the benches, which source it after setting `bench` to their program. Builds, starts servers, cleans up.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
need_cargo
need_to_run
cd "$root"

programs=${COCOONBOX_BENCH_BUILT:-}
if [ -z "$programs" ]; then
    scripts/agent.sh
    cargo build --release -p cocoonbox -p cocoonbox-benches
    programs=${CARGO_TARGET_DIR:-target}/release
fi
programs=$(realpath "$programs")
export COCOONBOX_AGENT=${COCOONBOX_AGENT:-$root/target/agent/cocoonbox-agent}
unset COCOONBOX_ENDPOINT COCOONBOX_TOKEN COCOONBOX_WARM

work=$(mktemp -d "${TMPDIR:-/tmp}/cocoonbox-bench.XXXXXX")
disk=
started=()
config_dirs=()
clean_up() {
    local status=$? pid directory box
    trap - EXIT
    # everything is tried, whatever of it fails
    set +e
    # boxes outlive the server by design
    for directory in "${config_dirs[@]}"; do
        COCOONBOX_CONFIG_DIR=$directory "$programs/cocoonbox" --json box ls 2>/dev/null |
            grep -o 'cb-[a-z2-7]\{10\}' | sort -u | while read -r box; do
            COCOONBOX_CONFIG_DIR=$directory "$programs/cocoonbox" box rm "$box" --yes >/dev/null 2>&1 || true
        done
    done
    [ ! -S "$work/ssh-control" ] || ssh -o ControlPath="$work/ssh-control" -O exit localhost 2>/dev/null || true
    for pid in "${started[@]}"; do
        kill -TERM "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true
    done
    [ -z "$disk" ] || umount -l "$work" 2>/dev/null
    rm -rf "$work" ${disk:+"$disk"}
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# puts all that follows on a new file system, where whoever runs this may make one: what the machine's own has been
# through decides how fast it makes files
fresh_disk() {
    [ "$(id -u)" = 0 ] || return 0
    need /usr/sbin/mkfs.ext4=e2fsprogs
    disk=$work.ext4
    truncate -s 8G "$disk"
    if ! { /usr/sbin/mkfs.ext4 -q -E nodiscard "$disk" && mount -o loop "$disk" "$work"; } 2>/dev/null; then
        rm -f "$disk"
        disk=
        say "no file system of its own here: rsync-tree depends on what was removed before"
    fi
}

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

# server NAME FLAGS...: starts one on a data directory of its own; sets port, token_file, server_pid and config_dir
server() {
    local name=$1
    shift
    port=$(free_port)
    config_dir=$work/$name-cli
    token_file=$work/$name/admin-token.txt
    COCOONBOX_CONFIG_DIR=$config_dir "$programs/cocoonbox" up --data "$work/$name" --listen "127.0.0.1:$port" \
        "$@" >"$work/$name.log" 2>&1 &
    server_pid=$!
    started+=("$server_pid")
    config_dirs+=("$config_dir")
    for _ in $(seq 150); do answers "$port" && break; sleep 0.1; done
    answers "$port" || die "the server does not answer: $(cat "$work/$name.log")"
    say "server $name: process $server_pid, port $port"
}

# a server of OpenSSH that is our own, on a port of its own: no accounts' files, no login banner, no look-up of names
ssh=()
ssh_server() {
    need ssh=openssh-client
    mkdir -p "$work/sshd"
    local sshd=/usr/sbin/sshd wrap ssh_port
    if [ ! -x "$sshd" ]; then
        # from the unpacked package, so that nothing is installed that listens
        (cd "$work/sshd" && apt-get download -q openssh-server libwrap0 >/dev/null 2>&1 && for package in *.deb; do
            dpkg -x "$package" .
        done) || true
        sshd=$work/sshd/usr/sbin/sshd
    fi
    [ -x "$sshd" ] || { say "no sshd could be had"; return 0; }
    ssh_port=$(free_port)
    wrap=$(find "$work/sshd" -name 'libwrap.so.0' | head -n 1)
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
UseDNS no
PrintMotd no
PrintLastLog no
PermitRootLogin yes
PermitUserRC no
CONFIG
    if [ "$(id -u)" = 0 ]; then
        # its separation account, its folder and a shell without a profile exist in a mount namespace of its own
        { cat /etc/passwd; grep -q '^sshd:' /etc/passwd || echo 'sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin'; } |
            sed 's|^\(root:.*:\)[^:]*:[^:]*$|\1'"$work"':/bin/sh|' >"$work/passwd"
        LD_LIBRARY_PATH=${wrap%/*} unshare --mount sh -c "mount --bind '$work/passwd' /etc/passwd && mkdir -p /run/sshd &&
            exec '$sshd' -D -e -f '$work/sshd.conf'" >"$work/sshd.log" 2>&1 &
    else
        LD_LIBRARY_PATH=${wrap%/*} "$sshd" -D -e -f "$work/sshd.conf" >"$work/sshd.log" 2>&1 &
    fi
    started+=($!)
    for _ in $(seq 50); do answers "$ssh_port" && break; sleep 0.1; done
    local options=(-F /dev/null -p "$ssh_port" -i "$work/user-key" -o StrictHostKeyChecking=no
        -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o IdentitiesOnly=yes -o "ControlPath=$work/ssh-control")
    ssh=(ssh "${options[@]}" "$(id -un)@127.0.0.1")
    if ! ssh "${options[@]}" -o ControlMaster=yes -o ControlPersist=yes -f -N "$(id -un)@127.0.0.1" 2>"$work/peer.log" ||
        ! "${ssh[@]}" true 2>>"$work/peer.log"; then
        say "no ssh to this machine: $(tail -n 2 "$work/peer.log" "$work/sshd.log")"
        ssh=()
    fi
}
