#!/usr/bin/env bash
# Installs what builds need: packages with apt, the rest from PyPI into build/. `run` sources this
# file. `setup.sh [--nvcc | --portable | --ci]` alone only installs. The compile image runs it that
# way, so that an edit of `run` does not install everything again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build

# Pinned versions of what a build fetches from PyPI into build/.
cuda_packages=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-nvml-dev==13.5.37)
nvcc_packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85)
zig_package=ziglang==0.17.1

build_tools=(cmake ninja-build pkg-config g++ python3 python3-venv libcli11-dev nlohmann-json3-dev
  protobuf-compiler protobuf-compiler-grpc)
build_libraries=(libgtest-dev libgmock-dev libbenchmark-dev libyaml-cpp-dev libgrpc++-dev
  libprotobuf-dev libcpp-httplib-dev libssl-dev prometheus-cpp-dev)

say() { printf '== %s\n' "$*" >&2; }
skip() { printf '== SKIPPED: %s\n' "$*" >&2; }
die() { printf 'run: %s\n' "$*" >&2; exit 1; }
absent() { ! command -v "$1" >/dev/null; }

# need PACKAGE ...: installs missing packages; fails if that is not possible.
need() {
  local package missing=()
  if absent apt-get; then
    say "not Debian or Ubuntu: make sure that the content of these packages is installed: $*"
    return
  fi
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  [ ${#sudo[@]} = 0 ] || ! absent sudo || die "run as root: apt-get install ${missing[*]}"
  say "installing ${missing[*]}"
  # One at a time: CI's steps run in parallel, and an apt-get that runs during another one fails, or
  # loses the packages that it fetched. dpkg's own lock waits for foreign ones.
  (
    flock --timeout 900 9 || die "another ./run has been installing packages for 15 minutes"
    "${sudo[@]}" apt-get update -qq 9<&- || true
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" \
      >&2 9<&-
  ) 9</var/lib/dpkg
}

# have_clang PACKAGE ...: like `need`, but false, with a message, if the distribution has no clang
# 19.
have_clang() {
  if need "$@"; then return 0; fi
  skip "clang 19 is not available here (apt-get install $*)"
  return 1
}

# venv PACKAGE ... (or -r FILE): the Python environment in build/, with these packages
venv() {
  mkdir -p "$build"
  (
    # CI's steps run beside each other, and two pips would write the same files.
    flock --timeout 900 9 || die "another pip has been writing into build/venv for 15 minutes"
    { [ -x "$build/venv/bin/python" ] || python3 -m venv "$build/venv"; } &&
      "$build/venv/bin/pip" install --quiet --disable-pip-version-check "$@" 9>&-
  ) 9>"$build/venv.lock"
}

cuda_is_new_enough() {
  [ -f "$1/include/nvml.h" ] && [ -f "$1/include/cuda.h" ] &&
    awk '/^#define CUDA_VERSION/ { exit !($3 >= 12000) }' "$1/include/cuda.h"
}

# Prints the folder of a CUDA Toolkit: an installed one, otherwise NVIDIA's headers in build/cuda.
cuda_root() {
  local folder
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda "$build/cuda"; do
    [ -n "$folder" ] || continue
    if cuda_is_new_enough "$folder"; then
      echo "$folder"
      return
    fi
  done
  say "no CUDA Toolkit >= 12 found; using NVIDIA's headers from PyPI"
  venv "${cuda_packages[@]}"
  folder=$("$build/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  ln -sfn "$folder/nvidia/cu13" "$build/cuda"
  cuda_is_new_enough "$build/cuda" || die "no usable headers in $build/cuda/include"
  echo "$build/cuda"
}

# GPUSHM_MACHINE=aarch64: compiles for that machine, with Debian's cross compiler and its libraries for
# that machine. They replace this machine's, so this is for the image that compiles, which sets it.
cross() {
  [ "$GPUSHM_MACHINE" != "$(uname -m)" ] || return 0
  [ "$GPUSHM_MACHINE" = aarch64 ] ||
    die "GPUSHM_MACHINE=$GPUSHM_MACHINE: only aarch64 can be compiled for on another machine"
  export CMAKE_TOOLCHAIN_FILE=$root/cmake/aarch64.cmake
  build_tools+=(g++-aarch64-linux-gnu)
  build_libraries=("${build_libraries[@]%:arm64}")  # `prepare` may be called again.
  build_libraries=("${build_libraries[@]/%/:arm64}")
  dpkg --print-foreign-architectures | grep -qx arm64 || dpkg --add-architecture arm64
}

# Installs everything, and sets `cuda`, CC and CXX for the following steps.
prepare() {
  mkdir -p "$build"
  [ -z "${GPUSHM_MACHINE:-}" ] || cross
  need "${build_tools[@]}" "${build_libraries[@]}" || die "packages are missing"
  if [ -z "${CXX:-}" ] && [ "$(g++ -dumpversion | cut -d. -f1)" -lt 12 ]; then
    need g++-12 || die "GCC 12 or newer is required"
    export CC=gcc-12 CXX=g++-12
  fi
  if [ -z "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] && ! absent ccache; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR=${CCACHE_DIR:-$build/ccache}
  fi
  cuda=$(cuda_root)
}

setup() {
  prepare
  case ${1:-} in
    --nvcc) [ -x "$cuda/bin/nvcc" ] || venv "${cuda_packages[@]}" "${nvcc_packages[@]}" ;;
    --portable) venv "$zig_package" ;;
    --ci) need ccache ffmpeg ;;
  esac
}

[ "${BASH_SOURCE[0]}" != "$0" ] || setup "$@"
