#!/bin/sh
# A PostgreSQL of one's own for the tests: on a temporary folder, over a unix socket, as an ordinary user.
#
#   scripts/postgres.sh start DIR            starts one; DIR (made if missing) remembers where it is
#   scripts/postgres.sh url DIR              prints its administrator's URL
#   scripts/postgres.sh stop DIR             stops it and deletes its data
#   scripts/postgres.sh run [DIR] -- CMD...  starts it, runs CMD with COCOONBOX_TEST_POSTGRES set, stops it
#
# Nothing listens on the network, and only the account it runs as (and root) can reach the socket. fsync stays on.
set -eu

say() { echo "postgres.sh: $*" >&2; }
die() { say "$*"; exit 1; }

# The newest server programs on this machine.
find_bin() {
    for dir in $(ls -d /usr/lib/postgresql/*/bin /usr/pgsql-*/bin 2>/dev/null | sort -rV); do
        if [ -x "$dir/initdb" ]; then echo "$dir"; return; fi
    done
    found=$(command -v initdb 2>/dev/null) && dirname "$found" && return
    die "no PostgreSQL server programs here; on Debian: apt-get install postgresql"
}

# PostgreSQL refuses to run as root; take an account that exists.
account() {
    for name in postgres nobody; do
        if id "$name" >/dev/null 2>&1; then echo "$name"; return; fi
    done
    die "no account 'postgres' or 'nobody' to run the server as"
}

# Runs a command as the server's account, from a folder it can read.
as_server() {
    if [ "$(id -u)" -eq 0 ]; then
        who=$(account)
        (cd / && exec setpriv --reuid="$(id -u "$who")" --regid="$(id -g "$who")" --clear-groups \
            env -i PATH="$PATH" LC_ALL=C.UTF-8 HOME="$home" "$@")
    else
        (cd / && exec env -i PATH="$PATH" LC_ALL=C.UTF-8 HOME="$home" "$@")
    fi
}

start() {
    mkdir -p "$dir"
    if [ -e "$dir/home" ]; then
        home=$(cat "$dir/home")
        if as_server "$bin/pg_ctl" -D "$home/data" status >/dev/null 2>&1; then return; fi
        rm -rf "$home"
        rm -f "$dir/home"
    fi
    # short, because a socket's path has 108 bytes at most; /tmp, because the account must reach it
    home=$(mktemp -d /tmp/cocoonbox-pg.XXXXXX)
    if [ "$(id -u)" -eq 0 ]; then chown "$(account)" "$home"; fi
    echo "$home" >"$dir/home"
    as_server "$bin/initdb" -D "$home/data" -U postgres -A trust -E UTF8 --no-locale >"$dir/initdb.log" 2>&1 \
        || { cat "$dir/initdb.log" >&2; die "initdb failed"; }
    as_server "$bin/pg_ctl" -D "$home/data" -l "$home/log" -w -t 60 \
        -o "-c listen_addresses= -c unix_socket_directories=$home -c max_connections=200 -c fsync=on" \
        start >"$dir/start.log" 2>&1 || { cat "$dir/start.log" "$home/log" >&2; die "the server did not start"; }
}

stop() {
    [ -e "$dir/home" ] || return 0
    home=$(cat "$dir/home")
    case $home in /tmp/cocoonbox-pg.*) ;; *) die "$dir/home does not name a folder of this script" ;; esac
    if [ -d "$home/data" ]; then
        as_server "$bin/pg_ctl" -D "$home/data" -m fast -w -t 60 stop >/dev/null 2>&1 \
            || as_server "$bin/pg_ctl" -D "$home/data" -m immediate -w -t 60 stop >/dev/null 2>&1 || true
        if as_server "$bin/pg_ctl" -D "$home/data" status >/dev/null 2>&1; then die "the server does not stop"; fi
    fi
    rm -rf "$home"
    rm -f "$dir/home" "$dir/initdb.log" "$dir/start.log"
}

url() {
    [ -e "$dir/home" ] || die "nothing was started in $dir"
    echo "postgres://postgres@localhost/postgres?host=$(cat "$dir/home")"
}

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }

[ $# -ge 2 ] || usage
verb=$1 dir=$2
home=
if [ "$verb" = run ] && [ "$dir" = -- ]; then
    # no folder given: one that goes away with the server
    shift 1
    dir=$(mktemp -d)
    trap 'rmdir "$dir"' EXIT
    drop='rmdir "$dir"'
else
    shift 2
    drop=:
fi
case $verb in
start) bin=$(find_bin); start ;;
stop) bin=$(find_bin); stop ;;
url) url ;;
run)
    [ "${1:-}" = -- ] && [ $# -ge 2 ] || usage
    shift
    bin=$(find_bin)
    trap 'stop; eval "$drop"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    start
    COCOONBOX_TEST_POSTGRES=$(url)
    export COCOONBOX_TEST_POSTGRES
    status=0
    "$@" || status=$?
    exit "$status"
    ;;
*) usage ;;
esac
