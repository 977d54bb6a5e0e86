"""Packs what was built as container images, without a registry or a container: one archive in
OCI's layout, which `ctr images import` takes. Images share layers, and a layer is packed again only
when what is in it changed.

usage: images.py BUILD BASE.tar OUT.tar     BUILD: a build of CMake's; OUT is made anew if need be
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

import settings

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Users of the images: nobody in particular, as restricted pods must be.
NOBODY = "65532:65532"

# image: (its files, as {path in the image: path in BUILD}, its entry point, its user). What a file
# of another image's would need is not here: the plugin brings gpushmctl and the library to pods.
IMAGES = {
    "pause": ({"pause": "pause"}, ["/pause"], "65535:65535"),
    "plugin": ({"usr/bin/gpushm-plugin": "bin/gpushm-plugin",
                "usr/lib/gpushm/gpushmctl": "bin/gpushmctl",
                "usr/lib/gpushm/libgpushm.so.0": "lib/libgpushm.so.0"},
               ["/usr/bin/gpushm-plugin"], "0:0"),
    "sidecar": ({"usr/bin/gpushm-broker": "bin/gpushm-broker",
                 "usr/bin/gpushmctl": "bin/gpushmctl"}, ["/usr/bin/gpushm-broker"], NOBODY),
    "app": ({}, [], NOBODY),
}
WITHOUT_BASE = {"pause"}


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(
            hashlib, "file_digest") else hashlib.sha256(file.read()).hexdigest()


class Layers:
    """Tars named by their digests in a folder; `index.json` says of which inputs each was made."""

    def __init__(self, folder):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._index_path = folder / "index.json"
        self._index = (json.loads(self._index_path.read_text())
                       if self._index_path.exists() else {})
        self._used = set()

    def of_file(self, path):
        """A tar that there is."""
        status = path.stat()
        key = f"{path} {status.st_size} {status.st_mtime_ns}"
        if key not in self._index:
            self._index[key] = digest_of(path)
        self._used.add(key)
        return self._index[key], path

    def of_files(self, files):
        """A tar of {path in the image: path here}, programs stripped."""
        key = " ".join(f"{name}={path}:{path.stat().st_size}:{path.stat().st_mtime_ns}"
                       for name, path in sorted(files.items()))
        path = self._folder / f"{self._index.get(key)}.tar"
        if not path.exists():
            part = self._folder / "part"
            self._pack(files, part)
            self._index[key] = digest_of(part)
            path = self._folder / f"{self._index[key]}.tar"
            part.rename(path)
        self._used.add(key)
        return self._index[key], path

    def _pack(self, files, out):
        with tarfile.open(out, "w") as tar, tempfile.TemporaryDirectory() as scratch:
            for name, source in sorted(files.items()):
                stripped = pathlib.Path(scratch, "file")
                subprocess.run(["strip", "--strip-debug", "-o", stripped, source], check=True)
                info = tar.gettarinfo(stripped, name)
                info.mode, info.mtime = 0o755, 0
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                with open(stripped, "rb") as data:
                    tar.addfile(info, data)

    def forget_others(self):
        self._index = {k: v for k, v in self._index.items() if k in self._used}
        self._index_path.write_text(json.dumps(self._index))
        for path in self._folder.glob("*.tar"):
            if path.stem not in self._index.values():
                path.unlink()


def libraries_of(programs, base_files):
    """What the programs load and the base lacks, but the driver: {path in the image: path here}."""
    found = {}
    listing = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    for name, path in re.findall(r"^\s+(\S+) => (/\S+) ", listing, re.MULTILINE):
        if name not in base_files and not re.match(r"lib(cuda|nvidia-ml|gpushm)\.", name):
            found[f"usr/lib/{name}"] = pathlib.Path(os.path.realpath(path))
    return found


def names_in(tar_path):
    with tarfile.open(tar_path) as tar:
        return {pathlib.PurePath(name).name for name in tar.getnames()}


def compile_pause(build):
    source, program = HERE / "pause.c", build / "pause"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-static", "-Os", "-Wall", "-o", program, source], check=True)


def image(layers, build, base, base_files, name):
    """(configuration, [(digest, path) of a layer]), or None if it was not built."""
    files, entry_point, user = IMAGES[name]
    files = {inside: build / path for inside, path in files.items()}
    if not all(path.exists() for path in files.values()):
        print(f"images: no {name}: it is not built", file=sys.stderr)
        return None
    parts = [] if name in WITHOUT_BASE else [layers.of_file(base)]
    if parts and files:
        libraries = libraries_of(files.values(), base_files)
        # Apart from the programs: they change with each build, their libraries hardly.
        parts += [layers.of_files(libraries)] if libraries else []
    if files:
        parts.append(layers.of_files({n: pathlib.Path(os.path.realpath(p))
                                      for n, p in files.items()}))
    configuration = {
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": entry_point, "User": user,
                   "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest, _ in parts]}}
    return configuration, parts


class Archive:
    """Writes OCI's layout as a tar, each blob once."""

    def __init__(self, path):
        self._tar = tarfile.open(path, "w")
        self._blobs = set()
        self._manifests = []
        self._add("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())

    def _add(self, name, data):
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            self._tar.addfile(info, file)

    def _json_blob(self, kind, value):
        data = json.dumps(value).encode()
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._blobs:
            self._blobs.add(digest)
            self._add(f"blobs/sha256/{digest}", data)
        return {"mediaType": f"application/vnd.oci.image.{kind}.v1+json", "size": len(data),
                "digest": f"sha256:{digest}"}

    def add(self, name, configuration, layers):
        for digest, path in layers:
            if digest not in self._blobs:
                self._blobs.add(digest)
                self._tar.add(path, f"blobs/sha256/{digest}")
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "config": self._json_blob("config", configuration),
                    "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar",
                                "size": path.stat().st_size, "digest": f"sha256:{digest}"}
                               for digest, path in layers]}
        self._manifests.append({**self._json_blob("manifest", manifest), "annotations": {
            "io.containerd.image.name": settings.image(name),
            "org.opencontainers.image.ref.name": settings.IMAGE_TAG}})

    def close(self):
        self._add("index.json", json.dumps({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": self._manifests}).encode())
        self._tar.close()


def main():
    build, base, out = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    layers = Layers(out.parent / "layers")
    compile_pause(build)
    base_names = out.parent / "base-files.json"
    if not base_names.exists() or base_names.stat().st_mtime < base.stat().st_mtime:
        base_names.write_text(json.dumps(sorted(names_in(base))))
    base_files = set(json.loads(base_names.read_text()))
    images = {name: image(layers, build, base, base_files, name) for name in IMAGES}
    images = {name: value for name, value in images.items() if value}
    layers.forget_others()
    stamp, wanted = out.with_suffix(".stamp"), json.dumps([v[0] for v in images.values()])
    if out.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    part = out.with_suffix(".part")
    archive = Archive(part)
    for name, (configuration, parts) in images.items():
        archive.add(name, configuration, parts)
    archive.close()
    part.rename(out)
    stamp.write_text(wanted)


if __name__ == "__main__":
    main()
