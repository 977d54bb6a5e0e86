#!/usr/bin/env bash
# `./run cluster ...`: a real Kubernetes on this computer, in namespaces; other scripts source this file.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/images.sh"
cluster_packages=(buildah mmdebstrap runc iproute2 iptables containernetworking-plugins openssl)

# Prints the folder with Kubernetes' programs, which are built if necessary. GPUSHM_CLUSTER_MODULES:
# folders of tests/platforms whose versions replace the usual ones.
cluster_programs() {
  local modules
  read -ra modules <<<"${GPUSHM_CLUSTER_MODULES:-}"
  case " ${modules[*]}" in *" runc-"* | *" cri-o-"*) need libseccomp-dev conmon ;; esac
  tests/cluster/build --only-cached "${modules[@]}" || GO=$(go_program) tests/cluster/build "${modules[@]}"
}

# Builds what a cluster needs, and sets `cluster_options`, the arguments with which cluster.py
# starts one. GPUSHM_CLUSTER_IMAGES: a folder with archives of images to use as they are.
prepare_cluster() {
  need_root "a cluster"
  need "${cluster_packages[@]}"
  local programs
  programs=$(cluster_programs)
  compile dev gpushm_driver_sim gpushmctl gpushm-other-plugin gpushm-hostile
  [ -n "${GPUSHM_CLUSTER_IMAGES:-}" ] || images
  cluster_options=(--state "$build/cluster" --programs "$programs"
    --images "${GPUSHM_CLUSTER_IMAGES:-$build/images}" --driver "$dev/driver-sim")
}

cluster() {
  local verb=${1:-try}
  [ $# = 0 ] || shift
  case $verb in
    up)
      prepare_cluster
      python3 tests/cluster/cluster.py "${cluster_options[@]}" up ;;
    try)
      prepare_cluster
      python3 tests/cluster/cluster.py "${cluster_options[@]}" ensure >&2
      python3 tests/cluster/try_it.py --state "$build/cluster" ;;
    prepare | test)  # prepare: only what `test` compiles and keeps
      prepare_cluster
      local former=''
      if [[ $* == *_versions* ]]; then former=$(tests/cluster/former); fi
      need python3-yaml
      tests/monitoring/programs >/dev/null
      if [[ " $* " == *" test_certificates "* || $* == *CertManager* ]]; then
        tests/cluster/cert-manager/build --only-cached >/dev/null ||
          GO=$(go_program) tests/cluster/cert-manager/build >/dev/null
      fi
      [ "$verb" = test ] || return 0
      python3 tests/cluster/suite.py "${cluster_options[@]}" --former "$former" \
        --results "$build/results/cluster.xml" "$@" ;;
    bench | update-bench | scheduler-bench)
      local name=${verb%-bench}
      [ "$verb" != bench ] || name=start
      prepare_cluster
      python3 tests/cluster/cluster.py "${cluster_options[@]}" ensure >&2
      python3 "tests/cluster/${name}_bench.py" --state "$build/cluster" --json "$build/$name.json" "$@" ;;
    help) python3 tests/cluster/cluster.py --help ;;
    *) exec python3 tests/cluster/cluster.py --state "$build/cluster" "$verb" "$@" ;;
  esac
}

[ "${BASH_SOURCE[0]}" != "$0" ] || cluster "$@"
