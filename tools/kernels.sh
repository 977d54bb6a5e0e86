#!/usr/bin/env bash
# Compiles the GPU's kernels into the headers from which the library gives them to the driver:
# platform/driver/digest.cu into digest_ptx.h. The build needs no compiler for that; whoever changes a kernel
# runs this. `--check` compares, and also has the kernel assembled for the newer GPUs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ "$#" = 0 ] || [ "$*" = --check ] || die "usage: ./run kernels [--check]"
setup --nvcc
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# A driver takes PTX of its own release and of earlier ones. The compiler writes that of its release, and the
# kernel uses nothing that is newer than 6.3, the first for this target.
"$cuda/bin/nvcc" -std=c++17 --expt-relaxed-constexpr -Werror all-warnings -ptx -arch=compute_75 \
  -I"$root" -I"$cuda/include/cccl" "$root/platform/driver/digest.cu" -o "$made/digest.ptx"
sed -i -e 's/^\.version .*/.version 6.3/' -e '/^\/\//d' -e '/^[[:space:]]*\/\//d' -e '/^[[:space:]]*$/d' \
  "$made/digest.ptx"
for target in sm_75 sm_80 sm_90 sm_100 sm_120; do
  "$cuda/bin/ptxas" -arch=$target "$made/digest.ptx" -o "$made/digest.cubin"
done
{
  cat <<'HEADER'
// Made from digest.cu by `./run kernels`. Do not edit.
#pragma once

namespace gpushm::digest_kernel {

// clang-format off
inline constexpr char kPtx[] = R"ptx(
HEADER
  cat "$made/digest.ptx"
  cat <<'FOOTER'
)ptx";
// clang-format on

}  // namespace gpushm::digest_kernel
FOOTER
} >"$made/digest_ptx.h"
kept=$root/platform/driver/digest_ptx.h
if [ "${1:-}" = --check ]; then
  diff -u "$kept" "$made/digest_ptx.h" || die "platform/driver/digest_ptx.h is not of digest.cu: ./run kernels"
else
  cp "$made/digest_ptx.h" "$kept"
fi
