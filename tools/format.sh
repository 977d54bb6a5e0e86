#!/usr/bin/env bash
# `./run format [--check]`: clang-format.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/setup.sh"
need_clang clang-format-19
mode=-i
[ "${1:-}" != --check ] || mode='--dry-run -Werror'
# shellcheck disable=SC2086 # it may be two words
git ls-files -co --exclude-standard -z -- '*.cc' '*.h' '*.hpp' '*.c' '*.cu' '*.cuh' | xargs -0 clang-format-19 $mode
