"""OCI image layouts in one tar file, as skopeo, crane, podman, ctr and oras read them.

usage: oci.py image DOCKER-ARCHIVE ... OUT       an image that docker/build saved, for each machine
       oci.py chart CHART.tgz CHART.json OUT     what `helm push` would send
       oci.py check FILE [DIGEST]                that every blob is what its name says
       oci.py unpack FILE ARCHITECTURE FOLDER    the files of the image for amd64 or arm64

The first two print the manifest's digest. The same input gives the same bytes: no time of day, and
files in one order. SOURCE_DATE_EPOCH is the time of the files and of a chart.
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
# What OCI's image configuration has; Docker's has more.
CONFIG_KEYS = ("created", "author", "architecture", "os", "config", "rootfs", "history")
CHUNK = 1 << 20


def epoch():
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def encode(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Layout:
    """Blobs in memory: the largest image has 100 MB compressed."""

    def __init__(self):
        self._blobs = {}

    def add(self, media_type, data):
        """Adds a blob, and returns its descriptor."""
        digest = digest_of(data)
        self._blobs[digest] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def add_json(self, media_type, content):
        return self.add(media_type, encode({"schemaVersion": 2, "mediaType": media_type, **content}))

    def write(self, path, described, names):
        """Writes the archive, and returns the digest of what it is: `described`, a manifest or an index of
        them. `names`: annotations."""
        index = {"schemaVersion": 2, "mediaType": INDEX,
                 "manifests": [{**described, "annotations": names}]}
        files = {"oci-layout": encode({"imageLayoutVersion": "1.0.0"}), "index.json": encode(index)}
        files |= {"blobs/" + digest.replace(":", "/"): data for digest, data in self._blobs.items()}
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, data in sorted(files.items()):
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.mode = len(data), epoch(), 0o644
                tar.addfile(member, io.BytesIO(data))
        return described["digest"]


def add_image(layout, source):
    """Adds a saved image; returns the descriptor of its manifest, and the image's name."""
    with tarfile.open(source) as tar:
        saved = json.load(tar.extractfile("manifest.json"))[0]
        config = json.load(tar.extractfile(saved["Config"]))
        layers = [layout.add("application/vnd.oci.image.layer.v1.tar+gzip",
                             gzip.compress(tar.extractfile(name).read(), 6, mtime=0))
                  for name in saved["Layers"]]
    config = {key: config[key] for key in CONFIG_KEYS if key in config}
    described = layout.add_json(MANIFEST, {
        "config": layout.add("application/vnd.oci.image.config.v1+json", encode(config)), "layers": layers})
    platform = {key: config[key] for key in ("architecture", "os")}
    return {**described, "platform": platform}, saved["RepoTags"][0]


def from_images(sources, out):
    """The same image for several machines is an index; its name is that of the first source."""
    layout = Layout()
    added = [add_image(layout, source) for source in sources]
    (described, name), *others = added
    if others:
        described = layout.add_json(INDEX, {"manifests": [each for each, _ in added]})
    # containerd reads the first, others the second.
    return layout.write(out, described, {"io.containerd.image.name": name,
                                         "org.opencontainers.image.ref.name": name.rpartition(":")[2]})


def from_chart(source, metadata, out):
    with open(metadata, encoding="utf-8") as file:
        chart = json.load(file)
    chart.pop("IsRoot", None)  # Helm's, while it renders.
    layout = Layout()
    with open(source, "rb") as file:
        content = layout.add("application/vnd.cncf.helm.chart.content.v1.tar+gzip", file.read())
    created = datetime.datetime.fromtimestamp(epoch(), datetime.timezone.utc)
    manifest = {"config": layout.add("application/vnd.cncf.helm.config.v1+json", encode(chart)),
                "layers": [content],
                "annotations": {"org.opencontainers.image.created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
                                "org.opencontainers.image.description": chart["description"],
                                "org.opencontainers.image.title": chart["name"],
                                "org.opencontainers.image.version": chart["version"]}}
    return layout.write(out, layout.add_json(MANIFEST, manifest),
                        {"org.opencontainers.image.ref.name": chart["version"]})


def blob(tar, digest):
    return tar.extractfile("blobs/" + digest.replace(":", "/")).read()


def uncompressed_digest(data):
    sha = hashlib.sha256()
    with gzip.open(io.BytesIO(data)) as stream:
        while chunk := stream.read(CHUNK):
            sha.update(chunk)
    return "sha256:" + sha.hexdigest()


def changed_blobs(tar):
    for member in tar.getmembers():
        if member.name.startswith("blobs/"):
            found = digest_of(tar.extractfile(member).read())
            if member.name != "blobs/" + found.replace(":", "/"):
                yield f"{member.name} has the content of {found}"


def breaches(path, wanted=None):
    """What is wrong with an archive, a line each."""
    with tarfile.open(path) as tar:
        changed = [*changed_blobs(tar)]
        yield from changed
        if changed:
            return
        described, = json.load(tar.extractfile("index.json"))["manifests"]
        if wanted and described["digest"] != wanted:
            yield f"its digest is {described['digest']}, not {wanted}"
        try:
            for each in manifests(tar, described):
                yield from image_breaches(tar, each)
        except KeyError as error:
            yield f"it lacks a blob: {error.args[0]}"


def manifests(tar, described):
    """All of them that the descriptor leads to."""
    content = json.loads(blob(tar, described["digest"]))
    if content["mediaType"] != INDEX:
        return [content]
    return [each for part in content["manifests"] for each in manifests(tar, part)]


def image_breaches(tar, manifest):
    config = json.loads(blob(tar, manifest["config"]["digest"]))
    layers = [blob(tar, layer["digest"]) for layer in manifest["layers"]]
    if "rootfs" in config and [*map(uncompressed_digest, layers)] != config["rootfs"]["diff_ids"]:
        yield "its layers are not those of its configuration"


def unpack(path, architecture, folder):
    with tarfile.open(path) as tar:
        described, = json.load(tar.extractfile("index.json"))["manifests"]
        for manifest in manifests(tar, described):
            if json.loads(blob(tar, manifest["config"]["digest"]))["architecture"] != architecture:
                continue
            for layer in manifest["layers"]:
                subprocess.run(["tar", "-xzC", folder], input=blob(tar, layer["digest"]), check=True)
            return
    sys.exit(f"{path}: it has no image for {architecture}")


def main():
    match sys.argv[1:]:
        case ["image", *sources, out] if sources:
            print(from_images(sources, out))
        case ["chart", source, metadata, out]:
            print(from_chart(source, metadata, out))
        case ["unpack", path, architecture, folder]:
            unpack(path, architecture, folder)
        case ["check", path, *wanted]:
            found = [*breaches(path, *wanted)]
            for line in found:
                print(f"{path}: {line}", file=sys.stderr)
            return 1 if found else 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
