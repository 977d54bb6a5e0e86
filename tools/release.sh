#!/usr/bin/env bash
# `./run release`: everything that a publication needs, in dist/. docs/design/release.md says what is
# in there, why, and what repeats byte for byte.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/pack.sh"
source "${BASH_SOURCE[0]%/*}/portable.sh"

release_images=(plugin sidecar injector demo python)
release_suites=(bullseye bookworm trixie)  # glibc 2.31, 2.36 and 2.41.
release_kubernetes=1.36.0  # Helm renders for a version; this one has all that the chart may use.

# release [--dirty] [--reuse] [--packages] | verify FOLDER | compare FOLDER FOLDER | assets FOLDER OUT | publish FOLDER REGISTRY
release() {
  local arguments=("$@") option dirty='' reuse='' record='' version notes stage dist=$root/dist
  case ${1:-} in
    verify) release_verify "${@:2}"; return ;;
    compare) exec release/compare "${@:2}" ;;
    assets) exec release/assets "${@:2}" ;;
    publish) exec release/publish "${@:2}" ;;
  esac
  for option in "$@"; do
    case $option in
      --dirty) dirty=1 ;;
      --reuse) dirty=1 reuse=1 ;;
      --packages) dirty=1 record=1 ;;
      *) die "unknown option $option: ./run release knows --dirty, --reuse, --packages, verify, compare, assets and publish" ;;
    esac
  done
  [ "$(uname -m)" = x86_64 ] || die "a release is made on x86_64; this is $(uname -m)"
  [ "$(id -u)" = 0 ] || die "a release is made as root, because it makes the base systems of images"
  [ -n "$dirty" ] || refuse_changes
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH
  version=$(python3 release/version.py)
  notes=$(python3 release/notes.py "$version" ${dirty:+--trial})

  local programs
  programs=$(cluster_programs)
  if [ -z "$reuse" ]; then
    export GPUSHM_FRESH=1  # Images get the distribution's packages of today.
    part "library for old systems" portable x86_64
    part "images" images
    part "images for aarch64" release_foreign_images
    part "wheels" runtime/python/build
    part "node pack" pack --node
  fi

  # A folder that is half full must not look like a release.
  stage=$build/release
  rm -rf "$stage" "$dist"
  mkdir -p "$stage/dist"
  part "library packages" release_library "$stage"
  part "chart" release_chart "$stage" "$programs/helm"
  part "manifests" release_manifests "$stage"
  part "image archives" release_archives "$stage/dist"
  install -D -m 644 -t "$stage/dist/python" "$build"/wheels-dist/*
  install -D -m 644 -t "$stage/dist/node" "$build/gpushm-node-$version-x86_64.tar.xz"
  printf '%s\n' "$notes" >"$stage/dist/NOTES.md"
  part "licences and lists of contents" release_contents "$stage/dist" "$programs"
  python3 release/provenance.py write "$stage/dist" "./run release ${arguments[*]}"
  (cd "$stage/dist" && find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum) \
    >"$stage/sums"
  mv "$stage/sums" "$stage/dist/SHA256SUMS"
  mv "$stage/dist" "$dist"
  rm -rf "$stage"
  say "dist/: $(du -sm "$dist" | cut -f1) MiB; next: ./run release verify dist"
}

# part WHAT COMMAND ...: says how long it took. In a process of its own, because the settings of one
# compiler must not reach the next part.
part() {
  local start=$SECONDS
  ("${@:2}")
  say "$1: $((SECONDS - start)) s"
}

# refuse_changes: what is published must be what the commit has.
refuse_changes() {
  local changes
  changes=$(git status --porcelain)
  [ -n "$changes" ] || return 0
  printf '%s\n' "$changes" >&2
  die "the tree differs from its commit in these files: commit them, or try with --dirty"
}

# archive_folder FOLDER NAME FILE.tar.gz: FOLDER/NAME; the same files give the same bytes.
archive_folder() {
  mkdir -p "$(dirname "$3")"
  tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    --mode=u+w,go-w,a+rX --format=gnu -c "$2" | gzip -n -9 >"$3"
}

# ---------------------------------------------------------------- the library and gpushmctl

release_library() {  # STAGE
  local machine component folder prefix
  for machine in x86_64 aarch64; do
    folder=$(portable_folder "$machine")
    prefix=$1/$machine/gpushm-$version
    for component in library cudaipc gpushmctl; do
      cmake --install "$folder" --component $component --prefix "$prefix" >/dev/null
    done
    release/copyright "$build" >"$prefix/LICENSE"
    archive_folder "$1/$machine" "gpushm-$version" \
      "$1/dist/linux/gpushm-$version-linux-$machine-glibc$glibc_floor.tar.gz"
    install -m 755 "$prefix/bin/gpushmctl" "$1/dist/linux/gpushmctl-$version-linux-$machine"
    release/debian "$prefix" "$version" "$glibc_floor" "$machine" "$1/debian" "$1/dist/debian"
  done
}

# ---------------------------------------------------------------- the chart

# As an archive for a repository of Helm's, and as an OCI layout, what `helm push` would send.
release_chart() {  # STAGE HELM
  local folder=$1/chart file=$1/dist/chart/gpushm-$version.tgz
  mkdir -p "$folder/bare/templates"
  "$2" package helm/gpushm --destination "$folder" >/dev/null
  tar -C "$folder" --touch -xzf "$folder/gpushm-$version.tgz"
  # Helm writes the time of day into its archive.
  archive_folder "$folder" gpushm "$file"
  # Helm itself prints Chart.yaml as JSON, from a chart that has nothing else.
  cp helm/gpushm/Chart.yaml "$folder/bare/"
  echo '{{ toJson .Chart }}' >"$folder/bare/templates/chart.yaml"
  "$2" template "$folder/bare" --kube-version "$release_kubernetes" | grep '^{' >"$folder/chart.json"
  python3 release/oci.py chart "$file" "$folder/chart.json" "${file%.tgz}.oci.tar" >/dev/null
}

# Of deploy/, what users apply or start.
release_manifests() {  # STAGE
  local folder=$1/manifests name=gpushm-manifests-$version
  mkdir -p "$folder/$name"
  git ls-files -z -- deploy/{examples,examples-overlay,grafana,prometheus,support-bundle} 'deploy/*.yaml' |
    tar --null -T - --dereference -c | tar -C "$folder/$name" -x
  archive_folder "$folder" "$name" "$1/dist/deploy/$name.tar.gz"
}

# ---------------------------------------------------------------- images

# Cross-compiled; the base of those with a distribution runs its scripts in an emulator.
release_foreign_images() {
  need qemu-user-static arch-test buildah mmdebstrap
  MACHINE=aarch64 tests/aarch64/emulate tests/cluster/images "$build/images/aarch64" '' \
    "${release_images[@]}"
}

# release_archives DIST: images.txt has a line for each: name, tag, digest.
release_archives() {
  local image digest
  mkdir -p "$1/images"
  for image in "${release_images[@]}"; do
    digest=$(python3 release/oci.py image "$build/images/$image.tar" "$build/images/aarch64/$image.tar" \
      "$1/images/$image.oci.tar")
    printf 'gpushm/%s %s %s\n' "$image" "$version" "$digest" >>"$1/images.txt"
  done
  install -m 755 release/mirror-images "$1/"
}

# ---------------------------------------------------------------- what is inside

release_contents() {  # DIST PROGRAMS
  python3 release/contents.py "$1" --version "$version" --lists "$build/images" "$build/images/aarch64" \
    --venv "$build/venv" --programs "$2" --go "$(go_program)" --packages release/packages.txt \
    ${record:+--record} ${dirty:+--trial}
}

# ---------------------------------------------------------------- trying it

# release_verify FOLDER [--files | --strict]
release_verify() {
  local BASES='' HELM='' KUBECTL='' suite
  [ $# -gt 0 ] || die "usage: ./run release verify FOLDER [--files | --strict]"
  if [ "$(id -u)" != 0 ] || [ "${2:-}" = --files ]; then
    export BASES HELM KUBERNETES=$release_kubernetes
    exec release/verify "$@"
  fi
  need qemu-user-static arch-test xz-utils "${cluster_packages[@]}"
  for suite in "${release_suites[@]}"; do
    BASES+=" $suite=$(SUITE=$suite tests/cluster/base g++)" ||
      die "an empty Debian \"$suite\" cannot be made"
  done
  HELM=$(command -v helm || echo "$(cluster_programs)/helm")
  KUBECTL=$(command -v kubectl || echo "$(cluster_programs)/kubectl")
  PYTHONS=$(runtime/python/build --pythons) || true  # verify says which wheels lack theirs.
  export BASES HELM KUBECTL PYTHONS KUBERNETES=$release_kubernetes
  release/verify "$@"
  part "in a cluster" release_in_cluster "$1"
}

# release_in_cluster FOLDER: chart and images of a release, from a registry, in a real Kubernetes. It is
# installed, upgraded from the former release under running pods, and rolled back, if
# tests/cluster/former.commit names one.
release_in_cluster() {
  local programs base former='' images=$build/release-cases cases=(test_helm_test ExamplesTest)
  programs=$(cluster_programs)
  compile dev gpushm_driver_sim
  base=$(tests/cluster/base)
  tests/cluster/images "$images" "$base" none
  if [ -e tests/cluster/former.commit ]; then
    former=$(tests/cluster/former)
    cases+=(test_versions test_mixed_versions)
  else
    say "not run: the upgrade, because tests/cluster/former.commit names no former release"
  fi
  python3 tests/cluster/suite.py --state "$build/cluster" --programs "$programs" --images "$images" \
    --driver "$dev/driver-sim" --former "$former" --release "$1" \
    --results "$build/results/release.xml" "${cases[@]}"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || release "$@"
