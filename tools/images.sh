#!/usr/bin/env bash
# `./run images`: container images, without a registry; docker/README.md describes other ways.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/build.sh"

images() {
  need_root "building images"
  need buildah mmdebstrap
  local base
  base=$(tests/cluster/base)
  tests/cluster/images "$build/images" "$base"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || images
