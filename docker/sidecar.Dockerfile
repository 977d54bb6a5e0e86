# The sidecar of each pod that shares GPU memory: gpushm-broker, and gpushmctl for its hooks.
ARG FILES=localhost/gpushm/files
# From compile.Dockerfile.
FROM ${FILES} AS files

FROM --platform=${TARGETPLATFORM} scratch
COPY --from=files /sidecar /
USER 65532:65532
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/gpushm-broker"]
ARG VERSION=0
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="gpushm-sidecar" \
      org.opencontainers.image.description="Broker that owns a pod's GPU buffers" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
