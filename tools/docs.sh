#!/usr/bin/env bash
# `./run docs [--check]` writes the code's tables into the documents of docs/; the rest is tests/site/run.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/build.sh"

made=$build/documents
case ${1:-} in
  '' | --check) ;;
  site) exec tests/site/run build ;;
  serve | check) exec tests/site/run "$@" ;;
  *) die "unknown verb \"docs $1\": write ./run docs [--check | site | serve | check]" ;;
esac
compile dev gpushm-documents
python3 tests/platforms/page.py "$@"
if [ "${1:-}" != --check ]; then
  "$dev/documents/gpushm-documents" docs
  python3 tests/rooms_check.py --write
  exec python3 tests/documents/promise.py
fi
python3 tests/documents/promise.py --check
rm -rf "$made"
mkdir -p "$made"
cp -r docs "$made/"
"$dev/documents/gpushm-documents" "$made/docs"
diff -ru docs "$made/docs" ||
  { echo 'docs/ differs from the tables of the code: edit the table in the code, then run ./run docs'; exit 1; }
