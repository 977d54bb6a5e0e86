# The device plugin, one on each node: gpushm-plugin, and the files that it mounts into containers.
ARG FILES=localhost/gpushm/files
# From compile.Dockerfile.
FROM ${FILES} AS files

FROM --platform=${TARGETPLATFORM} scratch
COPY --from=files /plugin /
# The GPUs' device nodes and the kubelet's folders belong to root.
USER 0:0
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/gpushm-plugin"]
ARG VERSION=0
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="gpushm-plugin" \
      org.opencontainers.image.description="Device plugin that allocates shareable GPU memory" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
