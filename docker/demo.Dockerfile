# An application that attaches a buffer by name. As with any application, library and driver come
# from the device plugin. The base is a distribution, for its shell.
ARG FILES=localhost/gpushm/files
ARG BASE=docker.io/library/debian:bookworm-slim
# From compile.Dockerfile.
FROM ${FILES} AS files

FROM --platform=${TARGETPLATFORM} ${BASE}
COPY --from=files /demo /
USER 65532:65532
ENTRYPOINT ["/usr/bin/gpushm-demo-app"]
ARG VERSION=0
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="gpushm-demo" \
      org.opencontainers.image.description="Application that attaches a GPU buffer by name and prints what it sees" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
