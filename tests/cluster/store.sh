# shellcheck shell=bash
# To be sourced: sets up buildah with its own store below the folder GPUSHM_CLUSTER_CACHE, which
# nobody else uses. Sets `cache` and `store`, base_image and prune_images.
cache=${GPUSHM_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpushm}
store=$cache/containers
mkdir -p "$store/tmp"
exec 9>"$store/lock"
flock --nonblock 9 || {
  echo "images: another build uses $store; waiting for its end, at most an hour" >&2
  flock --timeout 3600 9 ||
    { echo "images: a build has used $store for an hour: end it (fuser $store/lock names it)" >&2; exit 1; }
}
printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' \
  "$store/images" "$store/run" >"$store/storage.conf"
export CONTAINERS_STORAGE_CONF=$store/storage.conf BUILDER=buildah BUILDAH_ISOLATION=chroot
export TMPDIR=$store/tmp  # Also for the cache mounts of RUN.
# If the disk is itself an overlay, it cannot carry another one.
buildah info >/dev/null 2>&1 || export STORAGE_DRIVER=vfs

# Removes images without a name. One that a container still uses stays, as of a test for aarch64 that runs.
prune_images() {
  local output
  output=$(buildah rmi --prune 2>&1) || [[ $output == *"in use by a container"* ]] ||
    printf 'images: those without a name were not removed: %s\n' "$output" >&2
}

# base_image FILE: the image of a base; a base that is made anew has another one.
base_image() { echo "localhost/gpushm/base:$(basename "$1" .tar)-$(stat -c %Y "$1")"; }
