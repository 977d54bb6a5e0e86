#!/usr/bin/env bash
# `./run fuzz [SECONDS]` searches with each target for SECONDS.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/build.sh"
build fuzz
python3 tests/ctest_tools.py fuzz "$build/fuzz" | xargs -P "$(nproc)" -L 1 tests/fuzz "$build/fuzz" "${1:-60}"
