#!/usr/bin/env bash
# Compiles the GPU's kernel into what is in the tree: platform/driver/digest.cu into digest.ptx. The build needs no
# compiler for that; whoever changes the kernel runs this. `--check` compares.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ "$#" = 0 ] || [ "$*" = --check ] || die "usage: ./run kernels [--check]"
need g++
# These versions alone, whatever is installed: others make another file.
venv "${cuda_packages[@]}" "${nvcc_packages[@]}"
packages=$("$build/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# A driver takes PTX of its own release and of earlier ones. The compiler writes that of its release, and the
# kernel uses nothing that is newer than 6.3, the first for this target.
"$packages/bin/nvcc" -std=c++17 --expt-relaxed-constexpr -Werror all-warnings -ptx -arch=compute_75 \
  -I"$root" -I"$packages/include/cccl" "$root/platform/driver/digest.cu" -o "$made/digest.ptx"
sed -i -e 's/^\.version .*/.version 6.3/' -e '/^\/\//d' -e '/^[[:space:]]*\/\//d' -e '/^[[:space:]]*$/d' \
  "$made/digest.ptx"
kept=$root/platform/driver/digest.ptx
if [ "${1:-}" = --check ]; then
  cmp "$kept" "$made/digest.ptx" || die "platform/driver/digest.ptx is not of digest.cu: ./run kernels"
else
  cp "$made/digest.ptx" "$kept"
fi
