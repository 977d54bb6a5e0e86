"""A registry for checks: it serves the images and the chart of a release, read-only, to this computer.

usage: registry.py DIST COMMAND ...     runs the command while it serves; {} in the command is its
                                        address, 127.0.0.1:PORT

It serves DIST/images/NAME.oci.tar as gpushm/NAME, and DIST/chart/NAME-VERSION.oci.tar as NAME.
https://github.com/opencontainers/distribution-spec has the paths.
"""

import http.server
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import threading

import oci


def read(path):
    """Digest -> content of an archive, and the name and the tag of its manifest."""
    with tarfile.open(path) as tar:
        blobs = {oci.digest_of(data): data for data in
                 (tar.extractfile(member).read() for member in tar if member.name.startswith("blobs/"))}
        manifest, = json.load(tar.extractfile("index.json"))["manifests"]
    tag = manifest["annotations"]["org.opencontainers.image.ref.name"]
    return blobs, tag, manifest["digest"]


def repositories(dist):
    """Name -> reference (digest or tag) -> content."""
    served = {}
    for path in sorted([*dist.glob("images/*.oci.tar"), *dist.glob("chart/*.oci.tar")]):
        blobs, tag, digest = read(path)
        name = path.name.removesuffix(".oci.tar")
        name = f"gpushm/{name}" if path.parent.name == "images" else name.removesuffix(f"-{tag}")
        served[name] = blobs | {tag: blobs[digest]}
    return served


def handler(served):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # pylint: disable=invalid-name
            found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", self.path)
            data = b"{}" if self.path == "/v2/" else None
            if found:
                data = served.get(found[1], {}).get(found[3])
            self.send_response(200 if data is not None else 404)
            self.send_header("Content-Length", str(len(data or b"")))
            if data and found:
                self.send_header("Docker-Content-Digest", oci.digest_of(data))
                self.send_header("Content-Type", json.loads(data)["mediaType"]
                                 if found[2] == "manifests" else "application/octet-stream")
            self.end_headers()
            if data and self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, *words):  # pylint: disable=arguments-differ
            pass
    return Handler


def serve(dist, host, port=0):
    """Starts to serve, and returns the address. It ends with this process."""
    server = http.server.ThreadingHTTPServer((host, port), handler(repositories(pathlib.Path(dist))))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"{host}:{server.server_port}"


def main():
    dist, *command = sys.argv[1:]
    address = serve(dist, "127.0.0.1")
    return subprocess.run([word.replace("{}", address) for word in command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
