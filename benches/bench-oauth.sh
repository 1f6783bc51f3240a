#!/usr/bin/env bash
# Measures sign-in beside npm's oidc-provider; see benches/README.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

at_once=${COCOONBOX_BENCH_AT_ONCE:-32}
servers=
ours() { # ours NAME FLAGS...: starts one and adds it to the plan
    local name=$1 link
    shift
    server "$name" --warm 0 "$@"
    # it listens before it has anything to say
    for _ in $(seq 150); do
        link=$(grep -o 'http://[^ ]*#link=cbl_[0-9a-f]*' "$work/$name.log" | head -n 1) && break
        sleep 0.1
    done
    [ -n "$link" ] || die "no link was printed: $(cat "$work/$name.log")"
    servers+="${servers:+,}{\"name\":\"$name\",\"address\":\"127.0.0.1:$port\",\"link\":\"$link\",\"process\":$server_pid}"
}
ours sqlite
postgres=${COCOONBOX_BENCH_POSTGRES:-${COCOONBOX_TEST_POSTGRES:-skip}}
if [ "$postgres" != skip ]; then
    (umask 077 && printf '%s\n' "$postgres" >"$work/postgres-url")
    ours postgres --database-url-file "$work/postgres-url"
else
    say "no figure of PostgreSQL: scripts/postgres.sh run target/postgres -- make bench-oauth starts one"
fi

peer=null
provider=oidc-provider@9.13.3
at=$root/target/bench-oauth
if [ "$(cat "$at/version" 2>/dev/null)" != "$provider" ]; then
    need npm=npm
    say "installing $provider into target/bench-oauth"
    mkdir -p "$at"
    npm install --silent --no-audit --no-fund --prefix "$at" "$provider" && printf '%s\n' "$provider" >"$at/version"
fi
if [ -e "$at/version" ]; then
    peer_port=$(free_port)
    NODE_ENV=production node benches/peers/oidc.mjs "$at" "$peer_port" "$at_once" >"$work/tokens" 2>"$work/peer.log" &
    started+=("$!")
    for _ in $(seq 100); do [ ! -s "$work/tokens" ] || break; sleep 0.1; done
    if [ -s "$work/tokens" ]; then
        peer="{\"name\":\"oidc-provider, in memory\",\"address\":\"127.0.0.1:$peer_port\",\"path\":\"/token\",\"client\":\"bench\",\"tokens\":$(cat "$work/tokens")}"
    else
        say "no peer here: $(tail -n 1 "$work/peer.log")"
    fi
fi
"$programs/bench-oauth" <<PLAN
{"servers":[$servers],"peer":$peer,"seconds":${COCOONBOX_BENCH_SECONDS:-5},"at_once":$at_once,"sessions":500}
PLAN
