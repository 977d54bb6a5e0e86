#!/usr/bin/env bash
# `./run bench [FILTER]` runs every program of bench/, or the one that the filter names (transfer for
# transfer_bench). Writes JSON and a table of ratios to build/bench.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/build.sh"

# bench_video [OPTION ...]: the latency of frames of 16 videos; prints one line of JSON.
bench_video() {
  local folder=$root results=$root/bench-results source=$root/source
  if ! in_pack; then
    (need ffmpeg) || skip "ffmpeg is missing, so frames are synthetic"
    compile dev pipeline_app
    folder=$dev results=$build/bench source=$root
  fi
  mkdir -p "$results"
  python3 "$source/tests/demo/video.py" --build "$folder" "$@" | tee "$results/video.json"
}

# bench_load [OPTION ...]: loaders of safetensors files side by side, by tests/bench/loaders.py.
bench_load() {
  local folder=$root results=$root/bench-results
  if ! in_pack; then
    compile dev gpushm-broker gpushmctl gpushm_driver_sim
    folder=$dev results=$build/bench
  fi
  mkdir -p "$results"
  python3 tests/bench/loaders.py "$folder" --out "$results/loaders.json" "$@" | tee "$results/loaders.md"
}

# handover_report FOLDER: table and chart of methods to hand over tensors, if that was measured.
handover_report() {
  local json=$1/bench_handover.json scripts=tests/bench/handover
  grep -qs '"way"' "$json" || return 0
  python3 "$scripts/table.py" "$json" >"$1/handover.md"
  python3 "$scripts/chart.py" "$json" "$1/handover.svg"
  say "$1/handover.md and handover.svg: methods to hand over a tensor"
}

if [ "${1:-}" = video ]; then
  bench_video "${@:2}"
  exit
fi
if [ "${1:-}" = load ]; then
  bench_load "${@:2}"
  exit
fi
programs=$root/bench results=$root/bench-results filter=${1:-.} status=0
if ! in_pack; then
  compile dev gpushm_benchmarks
  programs=$dev/bench results=$build/bench
fi
mkdir -p "$results"
rm -f "$results"/*.json "$results"/*.log  # From an earlier run.
chosen=("$programs"/*)
if [ -x "$programs/${filter}_bench" ]; then
  chosen=("$programs/${filter}_bench")
  filter=${2:-.}
fi
for program in "${chosen[@]}"; do
  if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
  say "${program##*/}"
  "$program" --benchmark_filter="$filter" --benchmark_out="$results/${program##*/}.json" \
    --benchmark_out_format=json >"$results/${program##*/}.log" 2>&1 ||
    { status=1; cat "$results/${program##*/}.log"; }
done
if absent python3; then
  cat "$results"/*.log
else
  python3 tests/bench/report.py "$results"/*.json | tee "$results/table.txt"
  handover_report "$results"
fi
exit $status
