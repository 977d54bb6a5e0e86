#!/usr/bin/env bash
# libgpushm.so, libgpushm-cudaipc.so and gpushmctl for old systems, and the compilers that make them:
# zig's clang, with glibc's symbols of the oldest supported version and with its own C++ library,
# which it links in.
# `./run portable` makes them for x86_64; other scripts source this file.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/build.sh"

glibc_floor=2.28

# portable_folder MACHINE: where they are: build/portable for x86_64, build/portable-MACHINE for another.
portable_folder() {
  local folder=$build/portable
  [ "$1" = x86_64 ] || folder+=-$1
  echo "$folder"
}

# portable MACHINE: builds them for x86_64 or aarch64. The folder bin/ there has the compilers.
portable() {
  prepare
  venv "$zig_package" "$ptxas_package"
  find_ptxas
  local machine=$1 tool folder
  folder=$(portable_folder "$machine")
  mkdir -p "$folder/bin" "$folder/include"
  ln -sfn -t "$folder/include" /usr/include/{CLI,nlohmann}  # Only these: zig has its own libc.
  for tool in cc c++ ar ranlib; do
    local target=''
    case $tool in c*) target="-target $machine-linux-gnu.$glibc_floor" ;; esac
    # ccache identifies the compiler by this text, so it must not depend on the place of this tree.
    # shellcheck disable=SC2016 # Expanded when the script runs.
    printf '#!/bin/sh\n# %s\nexec "${0%%/*}/../../venv/bin/python" -m ziglang %s %s "$@"\n' \
      "$zig_package" "$tool" "$target" >"$folder/bin/$tool"
    chmod +x "$folder/bin/$tool"
  done
  export CCACHE_COMPILERTYPE=clang CCACHE_COMPILERCHECK=content
  export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$build/zig-cache}
  export ZIG_LOCAL_CACHE_DIR=$ZIG_GLOBAL_CACHE_DIR
  say "building for $machine with glibc >= $glibc_floor (the first time zig compiles its C++ library)"
  (
    unset CC CXX
    configure portable -S "$root" -B "$folder" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$root/cmake/portable.cmake" \
      -DCMAKE_BUILD_TYPE=Release -DGPUSHM_LIBRARY_ONLY=ON -DGPUSHM_WERROR=ON
  )
  make_targets "$folder" gpushm gpushm_cudaipc gpushmctl
}

[ "${BASH_SOURCE[0]}" != "$0" ] || portable x86_64
