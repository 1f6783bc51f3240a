#!/bin/sh
# Prints what every file under the given folders is: kind, mode, modification time, link target, name, and the SHA-256
# of its content; caches, which no save holds, are left out.
set -eu
for folder; do
    cd "$folder"
    find . -path ./.cache -prune -o -printf '%y %m %T@ %l %p\n' | LC_ALL=C sort
    find . -path ./.cache -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum
done
