# The webhook that puts the sidecar into pods.
ARG FILES=localhost/gpushm/files
# From compile.Dockerfile.
FROM ${FILES} AS files

FROM --platform=${TARGETPLATFORM} scratch
COPY --from=files /injector /
USER 65532:65532
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/gpushm-injector"]
ARG VERSION=0
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="gpushm-injector" \
      org.opencontainers.image.description="Webhook that puts the gpushm sidecar into annotated pods" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
