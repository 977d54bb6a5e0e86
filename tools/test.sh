#!/usr/bin/env bash
# `./run test [SUITE ...]`. The function test_NAME is the suite NAME; any other name is a label of ctest,
# which CONTRIBUTING.md lists.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/pack.sh"
source "${BASH_SOURCE[0]%/*}/portable.sh"

# commit_number: where tests that kill at each fifth step begin (platform/base/testing.h). A shallow clone
# does not know how many commits there are, and a pack knows of none.
commit_number() {
  case $(git rev-parse --is-shallow-repository 2>/dev/null) in
    false) git rev-list --count HEAD ;;
    true) echo $((0x$(git rev-parse --short=7 HEAD))) ;;
    *) echo 0 ;;
  esac
}

# suite NAME PRESET CTEST-ARGUMENT ...: runs tests that are built and keeps the result for .ci/run.
suite() {
  export GPUSHM_TEST_OFFSET=${GPUSHM_TEST_OFFSET:-$(commit_number)}
  export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
  local name=$1 preset=$2 status=0 xml=$build/results/$1.xml
  shift 2
  mkdir -p "$build/results"
  # Without sanitizers, tests mostly wait.
  local at_once=$((2 * $(nproc) + 1))
  case $preset in asan | tsan) at_once=$(nproc) ;; esac
  ctest --test-dir "$build/$preset" --output-on-failure --no-tests=error -j"$at_once" \
    --test-output-size-passed 1000000 --test-output-size-failed 1000000 \
    --output-junit "$xml" "$@" || status=$?
  # CI fails on this (.ci/run), but a developer may lack root.
  python3 tests/ctest_tools.py skips "$preset" "$xml" >&2 || true
  return $status
}

test_dev() { compile dev; suite dev dev -LE '^(gpu|tree)$'; }
# Texts and the tree's own tools: a part of ./run lint.
test_tree() {
  compile dev documents_tests
  suite tree dev -L '^tree$'
  python3 tests/ctest_tools.py skips dev "$build/results/tree.xml"
}

test_asan() { build asan; suite asan asan -LE '^(gpu|tree|no-asan)$'; }
test_tsan() { build tsan; suite tsan tsan -LE '^(gpu|tree|no-tsan)$'; }
test_asan-ci() { build asan-ci; suite asan-ci asan -R "^($(ci_tests asan | paste -sd '|'))\$"; }
test_tsan-ci() { build tsan-ci; suite tsan-ci tsan -R "^($(ci_tests tsan | paste -sd '|'))\$"; }

test_portable() {
  portable x86_64
  python3 tests/portable_check.py --glibc "$glibc_floor" "$build/portable"
}

test_consumer() {
  compile dev gpushm gpushmctl gpushm_cudaipc gpushm-broker gpushm-mps gpushm-plugin gpushm-injector \
    gpushm_driver_sim
  rm -rf "$build/consumer"
  tests/consumer/check "$dev" "$build/consumer"
}

test_python() {
  compile dev gpushm gpushm-broker gpushm_driver_sim
  local status=0
  runtime/python/tests/run "$dev" || status=$?
  python3 tests/ctest_tools.py skips python "$build/results/python.xml" >&2 || true
  return $status
}

test_formats() {
  compile dev gpushmctl gpushm-broker gpushm_driver_sim
  tests/foreign/safetensors/run "$dev"
}

test_chart() { need openssl; GO=$(go_program) tests/chart/check "$build/chart"; }
test_monitoring() { need python3-yaml; GO=$(go_program) tests/monitoring/run "$build/monitoring"; }
test_page() { tests/page/run; }
test_documents() { python3 tests/documents/commands.py; }
test_cluster() { cluster test; }
test_platforms() { python3 tests/platforms/run.py "$@"; }
test_aarch64() { aarch64; }
test_soak() { tests/soak; }

# ---------------------------------------------------------------- on a GPU, also in a pack

# gpu_build: sets `made` and `source`, the programs and the files of the tree that their tests need.
gpu_build() {
  made=$root source=$root/source
  in_pack && return
  compile dev
  made=$dev source=$root
  python3 tests/ctest_tools.py gpu "$dev" >"$dev/gpu-tests"
}

test_gpu() { gpu_build; gpu_tests; }
test_gpu-mps() { gpu_build; under_mps gpu_tests; }

# gpu_tests: without ctest, so that it also works in a pack. A program whose cases were all skipped does
# not count as passed.
gpu_tests() {
  local name limit command log status passed=0 idle=0 failed=()
  export BUILD=$made SOURCE=$source
  mkdir -p "$BUILD/logs"
  # Some tests become other users, who start programs there.
  if [ "$(id -u)" = 0 ] && ! absent setpriv && ! setpriv --reuid 65534 --clear-groups test -x "$BUILD/tests"; then
    die "other users cannot open $BUILD/tests: move this folder to one that all may open, such as /opt"
  fi
  while read -r name limit command; do
    log=$BUILD/logs/$name.log status=0
    (cd "$BUILD/tests" && timeout "$limit" bash -c "$command") </dev/null >"$log" 2>&1 || status=$?
    if [ $status = 0 ] && grep -q '^\[  PASSED  \] 0 tests' "$log"; then status=$skipped; fi
    if [ $status = 0 ]; then
      passed=$((passed + 1))
      printf '%-32s ok   %s\n' "$name" "$(grep -E '^\[  (PASSED|SKIPPED)' "$log" | tr '\n' ' ')"
    elif [ $status = $skipped ]; then
      idle=$((idle + 1))
      printf '%-32s skipped\n' "$name"
    else
      failed+=("$name")
      # Of each failed case, what it printed. Then the end, as of a program that crashed.
      awk '/^\[ RUN/ { lines = "" } { lines = lines $0 "\n" } /^\[  FAILED  \].*ms\)$/ { printf "%s", lines }' "$log"
      tail -n 30 "$log"
      printf '%-32s FAILED\n' "$name"
    fi
  done <"$BUILD/gpu-tests"
  echo "$passed programs passed, $idle skipped, ${#failed[@]} failed ${failed[*]}"
  [ ${#failed[@]} = 0 ] || return 1
  [ $((passed + idle)) -gt 0 ] || die "$BUILD/gpu-tests names no program"
  [ $passed -gt 0 ] || return $skipped
}

# under_mps COMMAND...: all its processes are clients of an MPS daemon, as in a pod with gpushm.io/mps.
# Without NVIDIA's program it skips.
under_mps() {
  local log=$made/logs/gpushm-mps.log folder daemon status=0
  if absent nvidia-cuda-mps-control; then
    skip "nvidia-cuda-mps-control is missing; it comes with NVIDIA's driver"
    exit $skipped
  fi
  folder=$(mktemp -d)
  mkdir -p "$(dirname "$log")"
  "$made/bin/gpushm-mps" --pipe-folder "$folder" >"$log" 2>&1 &
  daemon=$!
  if "$made/bin/gpushm-mps" wait --pipe-folder "$folder" --timeout 30; then
    (export CUDA_MPS_PIPE_DIRECTORY=$folder && "$@") || status=$?
    echo "MPS at the end: $(cat "$folder/state.json")"
  else
    cat "$log" && status=1
  fi
  if kill "$daemon"; then wait "$daemon" || true; fi
  rm -r "$folder"
  return $status
}

# In a pack from --node it needs only root, python3 and util-linux.
test_gpu-node() {
  local files=$build/gpu-node/files source=$root state=$build/gpu-node/state
  local results=$build/results/gpu-node
  need_root "a node"
  if in_pack; then
    files=$root/node source=$root/source state=$root/gpu-node-state results=$root/gpu-node-results
    [ -d "$files" ] || die "this pack has no node; ./run pack --node makes one that does"
    ! absent python3 || die "python3 is missing (its standard library is enough)"
  else
    assemble_node "$files"
  fi
  # The machine's programs must use the machine's libraries, not a pack's.
  env -u LD_LIBRARY_PATH python3 "$source/tests/gpu_node/main.py" \
    --files "$files" --state "$state" --results "$results" \
    ${GPUSHM_PROGRAMS:+--programs "$GPUSHM_PROGRAMS"}
}

# ---------------------------------------------------------------- several suites

[ $# -gt 0 ] || set -- dev
[ "$*" != all ] || set -- dev asan tsan portable consumer chart monitoring page python documents
if [ "$1" = platforms ]; then
  test_platforms "${@:2}"
elif [ $# -gt 1 ]; then
  status=$skipped
  for name in "$@"; do
    each=0
    "$root/run" test "$name" || each=$?
    case $each in 0) [ $status = 1 ] || status=0 ;; "$skipped") ;; *) status=1 ;; esac
  done
  exit $status
elif in_pack && [[ ! $1 =~ ^gpu(-mps|-node)?$ ]]; then
  die "a pack has only \`./run test gpu\` and gpu-mps; one from \`./run pack --node\` has only gpu-node"
elif declare -F "test_$1" >/dev/null; then
  "test_$1"
else
  compile dev
  suite "$1" dev -L "^$1\$" -LE '^(gpu|tree)$'
fi
