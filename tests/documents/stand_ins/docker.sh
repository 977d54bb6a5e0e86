# shellcheck shell=bash
# Sourced by commands.py before the blocks of docs/start/docker.md, in the root of the clone: what a
# machine without Docker and without a GPU has in place of what the reader makes in blocks that do
# not run there. It needs what ./run demo has built and fetched, and libgpushm and gpushmctl.
GPUSHM_STAND_IN=$PWD/build/docker-stand-in
export GPUSHM_STAND_IN
PATH=$PWD/tests/documents/stand_ins:$PATH
rm -rf "$GPUSHM_STAND_IN" build/docker
mkdir -p "$GPUSHM_STAND_IN"/{apps,gpu,volumes,containers} build/docker
chmod 1777 "$GPUSHM_STAND_IN/gpu"  # The containers' users share the GPU.
# In place of ./run portable: the same files for this system.
cp -L build/dev/lib/libgpushm.so.0 build/dev/bin/gpushmctl build/docker/
# The reader's own file.
cp build/models/all-minilm-l6-v2.safetensors build/docker/model.safetensors
# The application of the image "demo".
gcc -std=gnu11 -O2 docker/demo.c -o "$GPUSHM_STAND_IN/apps/gpushm-demo-app" -Iruntime/include \
  -I"$(sed -n 's/^GPUSHM_CUDA_ROOT:.*=//p' build/dev/CMakeCache.txt)/include" \
  -Lbuild/dev/lib -lgpushm -ldl
