#!/usr/bin/env bash
# `./run lint`: what checks the tree without running it. GPUSHM_LINT_FILES=N: clang-tidy only of the N files
# that changed last.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/build.sh"

shell() {
  need shellcheck
  {
    git ls-files -co --exclude-standard '*.sh'
    git grep --untracked -lIE '^#!/(usr/bin/env |bin/)(ba)?sh' -- ':!*.md' ':!*.py' ':!*.yaml'
  } | sort -u | xargs shellcheck
}

tidy() {
  need_clang clang-19 clang-tidy-19
  local database=$build/database
  prepare
  # Each file by itself, with the generated headers of build/dev.
  configure database --preset dev -B "$database" -DGPUSHM_UNITY=OFF
  sed -i "s|$database/|$dev/|g" "$database/compile_commands.json"
  { git ls-files -mo --exclude-standard -- '*.cc'; git log --format= --name-only -- '*.cc'; git ls-files '*.cc'; } |
    awk '!seen[$0]++' | while read -r file; do
      if grep -q "\"file\": \"$root/$file\"" "$database/compile_commands.json"; then echo "$file"; fi
    done | awk -v most="${GPUSHM_LINT_FILES:-1000000}" 'NR <= most
      END { if (NR > most) print "== clang-tidy: left out " NR - most " of " NR " files" >"/dev/stderr" }' |
    xargs -r -P "$(nproc)" -n 1 clang-tidy-19 --quiet -p "$database" --extra-arg=-Wno-unknown-warning-option \
      --extra-arg=-Wno-unused-command-line-argument 2>"$build/tidy.log"
}

# check COMMAND ...: the others still run if it fails, or cannot run here.
status=0 lacking=0
check() {
  local each=0
  ("$@") || each=$?
  case $each in 0) ;; "$skipped") lacking=$skipped ;; *) status=1 ;; esac
}

check python3 tests/repo_check.py
check ./run kernels --check
check ./run docs --check
check ./run docs check
check shell
check ./run test tree
check ./run build bench  # Nothing else compiles them in CI.
# It finds the workflows from its folder upwards, and gives their commands to shellcheck.
check "$(go_program)" -C tests/workflows tool actionlint
check tidy
[ $status = 0 ] || exit $status
exit "$lacking"
