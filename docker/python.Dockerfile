# Applications in Python: the package gpushm, the examples of runtime/python/examples, a model, and what they need.
# As with any application, the driver comes from the device plugin.
ARG FILES=localhost/gpushm/files
ARG PYTHON_FILES=localhost/gpushm/python-files
ARG PYTHON_BASE=docker.io/library/python:3.11-slim-bookworm
# From compile.Dockerfile and python-compile.Dockerfile.
FROM ${FILES} AS files
FROM ${PYTHON_FILES} AS python-files

FROM --platform=${TARGETPLATFORM} ${PYTHON_BASE}
COPY --from=python-files / /
# For use without Kubernetes. In a pod, the device plugin's library is used.
COPY --from=files /plugin/usr/lib/gpushm/libgpushm.so.0 /opt/python/gpushm/lib/
ENV PYTHONPATH=/opt/python PYTHONDONTWRITEBYTECODE=1
# Fails if the base's Python has another version than the one that compiled.
RUN ["python3", "-c", "import gpushm, numpy"]
WORKDIR /examples
USER 65532:65532
ENTRYPOINT ["python3"]
ARG VERSION=0
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="gpushm-python" \
      org.opencontainers.image.description="Applications in Python that share GPU memory by name" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
