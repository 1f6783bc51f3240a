#!/usr/bin/env bash
# A browser for programs that take no more than its path: our person allows what it is opened with.
set -euo pipefail
exec python3 "$(dirname "$0")/person.py" allow "$1"
