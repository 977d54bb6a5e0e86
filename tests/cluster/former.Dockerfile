# Plugin and sidecar of an earlier commit, compiled in the same image as the tree's own.
FROM localhost/gpushm/compile AS compile
RUN find /src /out -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
COPY . .
RUN --mount=type=cache,id=gpushm-ccache,target=/src/build/ccache \
    --mount=type=cache,id=gpushm-zig,target=/src/build/zig-cache \
    docker/stage /out former

FROM scratch AS sidecar
COPY --from=compile /out/sidecar /
USER 65532:65532
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/gpushm-broker"]

FROM scratch AS plugin
COPY --from=compile /out/plugin /
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/gpushm-plugin"]
