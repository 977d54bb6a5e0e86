# shellcheck shell=bash
# Sourced: sets up buildah with a store of its own, and nobody else in it, below the folder
# GPUSHM_CLUSTER_CACHE. Sets `cache` and `store`.
cache=${GPUSHM_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpushm}
store=$cache/containers
mkdir -p "$store/tmp"
exec 9>"$store/lock"
flock 9
printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' \
  "$store/images" "$store/run" >"$store/storage.conf"
export CONTAINERS_STORAGE_CONF=$store/storage.conf BUILDER=buildah BUILDAH_ISOLATION=chroot
export TMPDIR=$store/tmp  # Also for the cache mounts of RUN.
# Where the disk is an overlay itself, there can be no other on it.
buildah info >/dev/null 2>&1 || export STORAGE_DRIVER=vfs
