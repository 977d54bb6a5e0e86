#!/usr/bin/env bash
# Archives that run on a machine without a network or a compiler, and a check that an archive needs
# nothing from this tree.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/cluster.sh"

# pack: all programs of build/dev, with the libraries that another distribution lacks. With --node,
# only what `./run test gpu-node` needs, because one archive with both would be too large.
pack() {
  local version name folder
  need xz-utils
  version=$(python3 release/version.py)
  case ${1:-} in
    '') name=gpushm-pack-$version-$(uname -m) ;;
    --node) name=gpushm-node-$version-$(uname -m) ;;
    *) die "unknown option $1: pack knows only --node" ;;
  esac
  folder=$build/pack/$name
  rm -rf "$folder"
  begin_pack "$folder" "$version"
  if [ "${1:-}" = --node ]; then pack_node "$folder"; else pack_all "$folder"; fi

  local packed=()
  [ "$(uname -m)" != x86_64 ] || packed=(--x86)  # An eighth smaller: it is mostly programs.
  # The same files make the same archive.
  tar -C "$build/pack" --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@$(git log -1 --format=%ct 2>/dev/null || echo 0)" -c "$name" | xz -T0 "${packed[@]}" --lzma2=preset=6 >"$build/$name.tar.xz"
  local mib=$(($(stat -c %s "$build/$name.tar.xz") >> 20))
  say "build/$name.tar.xz, $mib MiB"
  [ "$mib" -lt 60 ] || die "the pack must stay below 60 MiB"
}

begin_pack() {  # FOLDER VERSION
  mkdir -p "$1/source"
  cp -r run tools LICENSE "$1/"
  git describe --always --dirty >"$1/PACK" 2>/dev/null || echo "$2" >"$1/PACK"
}

pack_all() {  # FOLDER
  compile dev all gpushm_benchmarks
  local folder=$1 file model=$build/models/silero-vad.safetensors
  wheel_file silero-vad==6.2.3 silero_vad/data/silero_vad_16k.safetensors "$model"
  mkdir -p "$folder/lib" "$folder/models"
  for file in bin tests bench driver-sim fake-cufile; do
    [ -d "$dev/$file" ] || continue
    mkdir -p "$folder/$file"
    find "$dev/$file" -maxdepth 1 -type f ! -name '*.cmake' -exec cp -t "$folder/$file" {} +
  done
  # Programs can be compiled against a pack, too: it is a prefix.
  for file in library cudaipc; do
    cmake --install "$dev" --component $file --prefix "$folder" --strip >/dev/null
  done
  python3 tests/ctest_tools.py gpu "$dev" >"$folder/gpu-tests"
  python3 tests/ctest_tools.py files "$dev" | xargs -r cp -a --parents -t "$folder/source"
  cp "$model" "$folder/models/"
  cp -a --parents -t "$folder" tests/bench/report.py tests/bench/loaders.py tests/bench/handover/*.py
  # Not every executable file is ELF; strip reports the others and continues.
  find "$folder" -type f -perm -u+x -exec strip --strip-debug {} + 2>/dev/null || true
  bundle_libraries "$folder"
}

# assemble_node FOLDER: builds what a kubelet without a cluster needs, and puts it into FOLDER.
assemble_node() {
  need_root "building images"
  need buildah mmdebstrap runc
  compile dev gpushm_driver_sim gpushm-gpu-probe gpushm-injector
  local programs
  programs=$(cluster_programs)
  tests/gpu_node/assemble "$dev" "$programs" "$1"
}

pack_node() {  # FOLDER
  assemble_node "$1/node"
  cp -a --parents -t "$1/source" platform/base/version.h tests/cluster/*.py tests/gpu_node/*.py tests/gpu_node/pairs
}

# test_pack: runs `./run test gpu` from a pack, on the simulated driver, in a mount namespace
# without this tree. So every file of the tree that a program opens must be in the pack.
test_pack() {
  need_root "hiding the tree"
  local folder
  folder=$(mktemp -d "${TMPDIR:-/tmp}/gpushm-pack.XXXXXX")
  # shellcheck disable=SC2064 # Expanded now, because it is local.
  trap "rm -rf '$folder'" EXIT
  chmod 755 "$folder"  # Tests become other users, who start programs there.
  begin_pack "$folder" test
  pack_all "$folder"
  python3 tests/ctest_tools.py gpu-simulated "$dev" >"$folder/gpu-tests"
  # shellcheck disable=SC2016 # Expanded inside the namespace.
  unshare --mount --propagation private bash -c '
    mount -t tmpfs none "$1" && cd "$2" && exec ./run test gpu' - "$root" "$folder"
}

# bundle_libraries FOLDER: the libraries of the programs, except glibc and the driver, which must be
# the machine's own.
bundle_libraries() {
  { find "$1" -type f -perm -u+x -exec ldd {} + 2>/dev/null || true; } |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(ld-linux|lib(c|m|dl|rt|pthread|resolv|cuda|nvidia-ml|gpushm))[-.]' |
    xargs -r cp -Lt "$1/lib"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || pack "$@"
