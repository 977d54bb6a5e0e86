# The first stage of all images: compiles everything once and puts the content of each image into a
# folder. docker/build builds it, and the other Dockerfiles copy from it. It is not meant to run.

# The base of the demo's image; only its list of packages is used here.
ARG BASE=docker.io/library/debian:bookworm-slim
# A Debian or Ubuntu with apt sources, for the machine that compiles. Its C and C++ libraries go into the
# images; for another machine (MACHINE=aarch64) it must be a Debian, and these are Debian's for that one.
ARG COMPILE_BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS base

# All that compiling needs. .devcontainer/ stops here.
FROM --platform=${BUILDPLATFORM} ${COMPILE_BASE} AS packages
ARG MACHINE=
ENV GPUSHM_MACHINE=${MACHINE}
WORKDIR /src
# A separate step, so that an edit elsewhere does not install everything again.
COPY tools/setup.sh tools/
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ccache && \
    bash tools/setup.sh --portable && rm -rf /var/lib/apt/lists/* /root/.cache

FROM packages AS compile
COPY --from=base /var/lib/dpkg/status /base/status
COPY . .
ARG VERSION=0
RUN --mount=type=cache,id=gpushm-ccache,target=/src/build/ccache \
    --mount=type=cache,id=gpushm-zig,target=/src/build/zig-cache \
    docker/stage /out "${VERSION}"

FROM scratch AS sbom
COPY --from=compile /out/sbom /

# Small, because the others copy from it.
FROM scratch AS files
COPY --from=compile /out /
