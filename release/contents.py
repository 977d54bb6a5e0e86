"""What is inside a release: DIST/sbom.spdx.json (SPDX 2.3), and the licences in DIST/LICENSES.

usage: contents.py DIST --version V --lists FOLDER ... --venv FOLDER --programs FOLDER --go GO
                   [--packages FILE [--record]] [--trial]
       contents.py --check DIST

FOLDERs of --lists have docker/build's IMAGE.cdx.json and IMAGE.tar, one for each machine; of --venv the
Python environment of the build; of --programs what tests/cluster/build made, for the node pack. FILE of
--packages is the list of the distribution's packages that may be inside (--record writes it). A component
without a licence's text is an error, because it may not be published, and so is a package of another
version than the list's; with --trial they are only named.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from urllib.parse import quote, unquote

import provenance

ROOT = pathlib.Path(__file__).resolve().parent.parent
SBOM = "sbom.spdx.json"
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|copyright)[^/]*$", re.IGNORECASE)
DOCUMENTS = pathlib.Path("/usr/share/doc")  # Of the packages of this computer.
# Headers that are compiled into the library and gpushmctl.
LIBRARY = ["libcli11-dev", "nlohmann-json3-dev"]
# Programs of this computer that are in the node pack, also in its images (tests/gpu_node/base), and what
# they load.
NODE = ["runc", "libseccomp2", "coreutils", "dash", "diffutils", "libc6", "libgcc-s1", "libpcre2-8-0",
        "libselinux1", "libstdc++6"]
NODE_PROGRAMS = ["containerd", "containerd-shim-runc-v2", "ctr", "kubelet-alone"]

Component = collections.namedtuple("Component", "url texts")  # texts: name -> bytes


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def parse(url):
    """Kind, name and version of a package URL: deb, libc6, 2.36."""
    path, _, version = url.removeprefix("pkg:").partition("?")[0].partition("@")
    kind, _, name = path.partition("/")
    return kind, unquote(name if kind == "golang" else name.rpartition("/")[2]), unquote(version)


def debian(package):
    """The component of a package that is installed on this computer."""
    version, architecture = output_of(
        "dpkg-query", "-W", "-f", "${Version} ${Architecture}\\n", package).split()
    system = platform.freedesktop_os_release()
    return Component(f"pkg:deb/{system['ID']}/{quote(package)}@{quote(version)}?arch={architecture}"
                     f"&distro={system['ID']}-{system['VERSION_ID']}", debian_texts(package))


def debian_texts(name):
    path = DOCUMENTS / name / "copyright"
    return {"copyright": path.read_bytes()} if path.exists() else {}


class Image:
    """A saved image: what its list names, with the licences in its layers."""

    def __init__(self, folder, name):
        listed = json.loads((folder / f"{name}.cdx.json").read_text(encoding="utf-8"))
        self._urls = [each["purl"] for each in listed["components"]]
        self._texts = {}
        with tarfile.open(folder / f"{name}.tar") as saved:
            for layer in json.load(saved.extractfile("manifest.json"))[0]["Layers"]:
                with tarfile.open(fileobj=saved.extractfile(layer)) as tar:
                    self._read(tar)

    def _read(self, tar):
        for member in tar:
            found = re.search(r"(?:usr/share/doc/([^/]+)/copyright|/([^/]+)-[^/-]+\.dist-info/"
                              r"(licenses/)?(.*))$", member.name)
            if member.isfile() and found and (found[1] or found[3] or LICENCE_FILE.search(found[4])):
                name = found[1] or re.sub(r"[-_.]+", "-", found[2]).lower()
                text = tar.extractfile(member).read()
                self._texts.setdefault(name, {})[(found[4] or "copyright").replace("/", "-")] = text

    def components(self, venv):
        for url in self._urls:
            kind, name, _ = parse(url)
            texts = self._texts.get(name) or {}
            if kind == "deb":
                texts = texts or debian_texts(name)
            elif name == "ziglang":
                texts = zig_texts(venv)
            elif name == "gpushm":
                # Its other licences are of what was compiled in, as in a wheel.
                yield from (Component(f"pkg:generic/{part}", {"LICENSE": text})
                            for part, text in texts.items() if part != "LICENSE")
                texts = {"LICENSE": (ROOT / "LICENSE").read_bytes()}
            yield Component(url, texts)


def zig_texts(venv):
    folder, = venv.glob("lib/python3*/site-packages/ziglang")
    names = ("LICENSE", "lib/libcxx/LICENSE.TXT", "lib/libunwind/LICENSE.TXT")
    return {name.replace("/", "-"): (folder / name).read_bytes() for name in names}


def zig(venv):
    folder, = venv.glob("lib/python3*/site-packages/ziglang-*.dist-info")
    version = folder.name.removeprefix("ziglang-").removesuffix(".dist-info")
    return Component(f"pkg:pypi/ziglang@{version}", zig_texts(venv))


def wheel(path, venv):
    """What a wheel consists of besides gpushm: its licences name it. The library is zig's."""
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            part = name.rpartition("/")[2]
            if ".dist-info/licenses/" in name and part != "LICENSE":
                yield Component(f"pkg:generic/{part}", {"LICENSE": file.read(name)})
    if not path.name.startswith("gpushm_sim"):
        yield zig(venv)


def modules(programs, go):
    """The Go modules of the programs in the node pack, as these programs say themselves."""
    cache = pathlib.Path(output_of(go, "env", "GOMODCACHE").strip())
    found = []
    paths = [str(programs / name) for name in NODE_PROGRAMS]
    for line in output_of(go, "version", "-m", *paths).splitlines():
        match line.split():
            case ["dep" | "mod", name, version, *_] if version.startswith("v"):
                found.append((name, version))
            case ["=>", name, version, *_]:  # It replaces the one of the line before.
                found[-1] = (name, version)
    for name, version in sorted(set(found)):
        escaped = re.sub("[A-Z]", lambda letter: "!" + letter[0].lower(), f"{name}@{version}")
        folder = cache / escaped
        texts = {path.name: path.read_bytes() for path in sorted(folder.glob("*"))
                 if path.is_file() and LICENCE_FILE.match(path.name)}
        yield Component(f"pkg:golang/{name}@{version}", texts)
    # The programs also contain Go's own library.
    root = pathlib.Path(output_of(go, "env", "GOROOT").strip())
    version = output_of(go, "version", paths[0]).split()[-1].removeprefix("go")
    yield Component(f"pkg:golang/std@{version}", {"LICENSE": (root / "LICENSE").read_bytes()})


def inventory(arguments):
    """File of the release -> its components."""
    dist, venv = arguments.dist, arguments.venv
    inside = {}
    for path in sorted(dist.glob("images/*.oci.tar")):
        name = path.name.removesuffix(".oci.tar")
        inside[path] = [each for folder in arguments.lists if (folder / f"{name}.tar").exists()
                        for each in Image(folder, name).components(venv)]
    library = [debian(name) for name in LIBRARY] + [zig(venv)]
    for path in sorted([*dist.glob("linux/*"), *dist.glob("debian/*")]):
        inside[path] = [] if "-dev_" in path.name else library
    for path in sorted(dist.glob("python/*")):
        inside[path] = [*wheel(path, venv)] if path.suffix == ".whl" else []
    parts = [*inside[dist / "images/plugin.oci.tar"], *inside[dist / "images/sidecar.oci.tar"]]
    for path in sorted(dist.glob("node/*")):
        inside[path] = [*parts, *map(debian, NODE), *modules(arguments.programs, arguments.go)]
    for path in sorted([*dist.glob("chart/*"), *dist.glob("deploy/*")]):
        inside[path] = []
    return inside


def write_licences(folder, components):
    """LICENSES/KIND/NAME/...; returns the URLs that have no text."""
    missing = []
    for component in components:
        kind, package_name, _ = parse(component.url)
        if not component.texts:
            missing.append(component.url)
        for name, text in component.texts.items():
            path = folder / kind / package_name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    (folder / "gpushm").mkdir(parents=True, exist_ok=True)
    (folder / "gpushm/LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
    return missing


def drift(components, path, record):
    """What the components have that the list of packages does not say, and the reverse."""
    found = set()
    for component in components:
        kind, name, version = parse(component.url)
        if kind == "deb":
            found.add(f"{name} {version} {re.search('arch=([^&]+)', component.url)[1]}")
    if record:
        path.write_text("".join(f"{line}\n" for line in sorted(found)), encoding="utf-8")
    recorded = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    yield from (f"{path.name} does not have: {line}" for line in sorted(found - recorded))
    yield from (f"not inside, but in {path.name}: {line}" for line in sorted(recorded - found))


def package(identity, name, **more):
    return {"SPDXID": identity, "name": name, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION", **more}


def relation(whole, what, part):
    return {"spdxElementId": whole, "relationshipType": what, "relatedSpdxElement": part}


def document(dist, inside, version):
    commit = provenance.git("rev-parse", "HEAD")
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    urls = sorted({each.url for parts in inside.values() for each in parts})
    identities = {url: f"SPDXRef-component-{number}" for number, url in enumerate(urls, 1)}
    packages = [package("SPDXRef-gpushm", "gpushm", versionInfo=version, licenseDeclared="Apache-2.0")]
    relations = [relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-gpushm")]
    for number, (path, parts) in enumerate(inside.items(), 1):
        name, identity = str(path.relative_to(dist)), f"SPDXRef-file-{number}"
        checksum = {"algorithm": "SHA256", "checksumValue": provenance.sha256(path)}
        packages.append(package(identity, name, versionInfo=version, packageFileName=name,
                                checksums=[checksum]))
        relations.append(relation("SPDXRef-gpushm", "CONTAINS", identity))
        relations += [relation(identity, "CONTAINS", identities[url])
                      for url in sorted({each.url for each in parts})]
    for url in urls:
        _, name, number = parse(url)
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                     "referenceLocator": url}
        packages.append(package(identities[url], name, versionInfo=number or "NOASSERTION",
                                externalRefs=[reference]))
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"gpushm-{version}", "documentNamespace": f"urn:gpushm:sbom:{version}:{commit}",
            "creationInfo": {"created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
                             "creators": ["Tool: gpushm-release"]},
            "packages": packages, "relationships": relations}


def breaches(dist):
    """What an SBOM says about files that is not so, and files that it does not name."""
    packages = json.loads((dist / SBOM).read_text(encoding="utf-8"))["packages"]
    named = {each["packageFileName"]: each["checksums"][0]["checksumValue"]
             for each in packages if "packageFileName" in each}
    for name, checksum in named.items():
        if not (dist / name).is_file():
            yield f"names {name}, which is missing"
        elif provenance.sha256(dist / name) != checksum:
            yield f"has another checksum of {name}"
    for folder in ("images", "chart", "deploy", "python", "debian", "linux", "node"):
        for path in sorted(dist.glob(f"{folder}/*")):
            if str(path.relative_to(dist)) not in named:
                yield f"does not name {path.relative_to(dist)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist", type=pathlib.Path)
    for name in ("--check", "--trial", "--record"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--version")
    parser.add_argument("--go")
    for name in ("--venv", "--programs", "--packages"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--lists", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.check:
        found = [f"{SBOM} {what}" for what in breaches(arguments.dist)]
    else:
        inside = inventory(arguments)
        components = {each.url: each for parts in inside.values() for each in parts}
        missing = write_licences(arguments.dist / "LICENSES", components.values())
        found = [f"found no licence of {url}" for url in missing]
        if arguments.packages:
            found += drift(components.values(), arguments.packages, arguments.record)
        text = json.dumps(document(arguments.dist, inside, arguments.version), indent=1) + "\n"
        (arguments.dist / SBOM).write_text(text, encoding="utf-8")
    for line in found:
        print(f"contents: {line}", file=sys.stderr)
    return 1 if found and not arguments.trial else 0


if __name__ == "__main__":
    sys.exit(main())
