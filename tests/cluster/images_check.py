"""Goal: images have correct labels, run as the promised user, and list their content.
Method: reads the archives that docker/build made, and their lists.

usage: images_check.py FOLDER VERSION [IMAGE ...]
"""

import json
import pathlib
import sys
import tarfile

# The plugin's device nodes and folders belong to root.
USERS = {"plugin": "0:0", "sidecar": "65532:65532", "injector": "65532:65532",
         "demo": "65532:65532", "python": "65532:65532"}
LABELS = ("title", "description", "version", "revision", "source", "licenses")


def config_of(archive):
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))
        return json.load(tar.extractfile(manifest[0]["Config"]))["config"]


def wrong(folder, image, version):
    config = config_of(folder / f"{image}.tar")
    if config.get("User") != USERS[image]:
        yield f"runs as {config.get('User')!r}, not {USERS[image]}"
    if not config.get("Entrypoint"):
        yield "has no entrypoint"
    labels = {key.removeprefix("org.opencontainers.image."): value
              for key, value in config.get("Labels", {}).items()}
    for name in LABELS:
        if name not in labels or not (labels[name] or name == "source"):  # SOURCE is optional.
            yield f"has no label {name}"
    if labels.get("version") != version:
        yield f"has version {labels.get('version')}, not {version}"
    listed = json.loads((folder / f"{image}.cdx.json").read_text(encoding="utf-8"))
    names = {component["name"] for component in listed["components"]}
    if "libc6" not in names:
        yield f"its list lacks libc6: {sorted(names)}"


def main():
    folder, version, *images = sys.argv[1:]
    failures = [f"{image} {what}" for image in images or USERS
                for what in wrong(pathlib.Path(folder), image, version)]
    for failure in failures:
        print(f"images: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
