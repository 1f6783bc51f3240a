#!/bin/sh
# Prints what every file under the given folders is: kind, mode, modification time, link target, name, and the SHA-256
# of its content.
set -eu
for folder; do
    cd "$folder"
    find . -printf '%y %m %T@ %l %p\n' | LC_ALL=C sort
    find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum
done
