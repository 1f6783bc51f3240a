#!/bin/sh
# A browser for programs that take no more than its path: our person allows what it is opened with.
exec python3 "$(dirname "$0")/person.py" allow "$1"
