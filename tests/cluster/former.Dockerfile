# The images of the former release, compiled in the same image as the tree's own.
ARG BASE
FROM localhost/gpushm/compile AS compile
RUN find /src /out -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
COPY . .
RUN --mount=type=cache,id=gpushm-ccache,target=/src/build/ccache \
    --mount=type=cache,id=gpushm-zig,target=/src/build/zig-cache \
    docker/stage /out former

FROM scratch AS plugin
COPY --from=compile /out/plugin /
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/gpushm-plugin"]

FROM scratch AS sidecar
COPY --from=compile /out/sidecar /
USER 65532:65532
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/gpushm-broker"]

FROM scratch AS injector
COPY --from=compile /out/injector /
USER 65532:65532
ENTRYPOINT ["/usr/bin/gpushm-injector"]

FROM ${BASE} AS demo
COPY --from=compile /out/demo /
USER 65532:65532
ENTRYPOINT ["/usr/bin/gpushm-demo-app"]
