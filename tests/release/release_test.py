"""Goal: `./run release verify` refuses a release in which a file is missing, changed or added, or a list
is wrong; what is made twice is the same; the images get into a registry with their digests.
Method: a made-up release of a few small files, checked without root and without packages of others."""

import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASE = ROOT / "release"
sys.path.insert(0, str(RELEASE))
sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
import contents
import notes
import oci
import provenance
import version

TIMEOUT_S = 60


def run(*command, **environment):
    """Status and text of a command."""
    done = subprocess.run([str(word) for word in command], env=os.environ | environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
    return done.returncode, done.stdout


def tar_of(files):
    """The bytes of a tar with these files: name -> bytes."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def saved_image(name, content, architecture="amd64"):
    """What `docker save` writes for an image with one file."""
    layer = tar_of({"file": content})
    config = {"architecture": architecture, "os": "linux", "container": "left out", "config": {"User": "0:0"},
              "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}
    manifest = [{"Config": "config.json", "RepoTags": [f"registry.invalid/gpushm/{name}:1.2.3"],
                 "Layers": ["layer.tar"]}]
    return tar_of({"layer.tar": layer, "config.json": json.dumps(config).encode(),
                   "manifest.json": json.dumps(manifest).encode()})


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make_tools(self, *names):
        """A folder for PATH, with these programs of this computer."""
        tools = self.folder / "tools"
        tools.mkdir()
        for name in names:
            (tools / name).symlink_to(shutil.which(name))
        return tools


class MadeUpRelease(InFolder):
    def setUp(self):
        super().setUp()
        os.environ["SOURCE_DATE_EPOCH"] = "1000000000"
        self.dist = self.make("dist")

    def make(self, name):
        dist = self.folder / name
        for part in ("images", "chart"):
            (dist / part).mkdir(parents=True)
        lines = []
        for image in ("plugin", "sidecar"):
            saved = self.folder / "saved.tar"
            saved.write_bytes(saved_image(image, image.encode()))
            saved_arm = self.folder / "saved-arm.tar"
            saved_arm.write_bytes(saved_image(image, b"for arm64", "arm64"))
            # One image for two machines, and one for one.
            sources = [saved, saved_arm] if image == "plugin" else [saved]
            digest = oci.from_images(sources, dist / f"images/{image}.oci.tar")
            lines.append(f"gpushm/{image} 1.2.3 {digest}\n")
        (dist / "images.txt").write_text("".join(lines))
        chart, metadata = dist / "chart/gpushm-1.2.3.tgz", self.folder / "chart.json"
        chart.write_bytes(b"a chart")
        metadata.write_text(json.dumps({"name": "gpushm", "version": "1.2.3", "description": "-"}))
        oci.from_chart(chart, metadata, dist / "chart/gpushm-1.2.3.oci.tar")
        (dist / "NOTES.md").write_text("notes\n")
        self.list_contents(dist)
        return dist

    def list_contents(self, dist):
        inside = {path: [] for path in sorted([*dist.glob("images/*"), *dist.glob("chart/*")])}
        (dist / contents.SBOM).write_text(json.dumps(contents.document(dist, inside, "1.2.3")))
        (dist / provenance.NAME).write_text(json.dumps(provenance.statement(dist, "test")))
        self.sum(dist)

    def sum(self, dist):
        (dist / "SHA256SUMS").unlink(missing_ok=True)
        names = sorted(str(path.relative_to(dist)) for path in dist.rglob("*") if path.is_file())
        (dist / "SHA256SUMS").write_text("".join(
            f"{provenance.sha256(dist / name)}  {name}\n" for name in names))

    def verify(self):
        return run(RELEASE / "verify", self.dist, "--files")

    def assert_refused(self, *words):
        status, text = self.verify()
        self.assertEqual(status, 1, text)
        for word in words:
            self.assertIn(word, text)


class VerifyTest(MadeUpRelease):
    def test_accepts_what_was_made(self):
        status, text = self.verify()
        self.assertEqual(status, 0, text)
        self.assertIn("6 passed, 0 failed, 0 not checked", text)

    def test_refuses_a_changed_file_and_checks_nothing_else(self):
        (self.dist / "NOTES.md").write_text("other notes\n")
        self.assert_refused("NOTES.md: FAILED", "the rest is not checked", "0 passed, 1 failed")

    def test_refuses_a_missing_file(self):
        (self.dist / "images/sidecar.oci.tar").unlink()
        self.assert_refused("images/sidecar.oci.tar: FAILED")

    def test_refuses_a_missing_list(self):
        (self.dist / "SHA256SUMS").unlink()
        self.assert_refused("SHA256SUMS: No such file")

    def test_refuses_a_file_that_is_not_listed(self):
        (self.dist / "more").write_text("")
        self.assert_refused("SHA256SUMS does not list:\n    more")

    def test_refuses_a_wrong_digest_of_an_image(self):
        listed = self.dist / "images.txt"
        listed.write_text(listed.read_text().replace("sha256:", "sha256:0", 1))
        self.list_contents(self.dist)
        self.assert_refused("its digest is sha256:", "5 passed, 1 failed")

    def test_refuses_an_image_with_another_layer(self):
        path = self.dist / "images/plugin.oci.tar"
        with tarfile.open(path) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar}
        layer = max((name for name in files if name.startswith("blobs/")),
                    key=lambda name: files[name][:2] == b"\x1f\x8b")
        path.write_bytes(tar_of(files | {layer: files[layer] + b"more"}))
        self.list_contents(self.dist)
        self.assert_refused(f"{layer} has the content of sha256:")

    def test_refuses_a_layout_of_another_chart(self):
        (self.dist / "chart/gpushm-1.2.3.tgz").write_bytes(b"another chart")
        self.list_contents(self.dist)
        self.assert_refused("it has another chart than gpushm-1.2.3.tgz")

    def test_refuses_lists_of_other_files(self):
        (self.dist / "NOTES.md").write_text("other notes\n")
        (self.dist / "chart/new.tgz").write_text("")
        self.sum(self.dist)
        self.assert_refused("provenance.intoto.json does not describe NOTES.md",
                            "sbom.spdx.json does not name chart/new.tgz")


class ChecksTest(InFolder):
    """Single functions of verify."""

    def one(self, *words, **environment):
        return run(RELEASE / "verify", "--one", *words, work=str(self.folder), **environment)

    def test_strict_fails_for_what_this_computer_lacks(self):
        elsewhere = "check a true; check b elsewhere 'for aarch64'; finish"
        lacks = "check a true; check b cannot 'Helm is missing'; finish"
        for commands, strict, wanted in [(elsewhere, "", 0), (elsewhere, "--strict", 0), (lacks, "", 0),
                                         (lacks, "--strict", 1)]:
            with self.subTest(commands, strict=strict):
                status, text = self.one("eval", commands, strict=strict)
                self.assertEqual(status, wanted, text)
                self.assertRegex(text, r"b +not checked: (for aarch64|Helm is missing)\n"
                                       r"1 passed, 0 failed, 1 not checked\n")
                self.assertEqual("--strict: this computer lacks what 1 checks need" in text, wanted == 1)

    def test_takes_the_pythons_that_it_is_given(self):
        for tag in ("cp310", "cp313"):
            python = self.folder / tag
            python.write_text(f"#!/bin/sh\necho {tag}\n")
            python.chmod(0o755)
        pythons = f"{self.folder}/missing {self.folder}/cp310 {self.folder}/cp313"
        for tag, abi, wanted in [("cp310", "cp310", "cp310"), ("cp312", "abi3", "cp313"), ("cp313", "cp313", "cp313")]:
            status, text = self.one("python_for", tag, abi, PYTHONS=pythons)
            self.assertEqual((status, text.splitlines()[-1]), (0, f"{self.folder}/{wanted}"))
        status, text = self.one("python_for", "cp312", "cp312", PYTHONS=pythons)
        self.assertEqual(status, 77)
        self.assertIn("PYTHONS has no Python 3.12: ", text)

    def test_says_which_glibc_is_allowed(self):
        library = self.folder / "library"
        library.write_text("GLIBC_2.4 GLIBC_2.36")
        self.assertEqual(self.one("new_symbols", "2.28", library),
                         (1, "needs GLIBC_2.36, and the limit is GLIBC_2.28\n"))
        self.assertEqual(self.one("new_symbols", "2.36", library)[0], 0)


class CompareTest(MadeUpRelease):
    def test_a_second_release_is_the_same(self):
        self.assertEqual(run(RELEASE / "compare", self.dist, self.make("again")),
                         (0, "9 files are the same\n"))

    def test_lists_files_that_differ(self):
        other = self.make("other")
        (other / "NOTES.md").write_text("other notes\n")
        (other / "more").write_text("")
        (other / "images.txt").unlink()
        status, text = run(RELEASE / "compare", self.dist, other)
        self.assertEqual(status, 1)
        self.assertEqual(text, "differs: NOTES.md\n"
                         f"only in {self.dist}: images.txt\nonly in {other}: more\n7 files are the same\n")


class AssetsTest(MadeUpRelease):
    def test_has_one_archive_and_files_with_their_own_licences(self):
        for name in ("deploy/manifests.tar.gz", "debian/gpushm-tools_1.2.3-rc.4_amd64.deb", "linux/gpushm.tar.gz",
                     "linux/gpushmctl", "node/node.tar.xz", "LICENSES/deb/libc6/copyright", "mirror-images"):
            (self.dist / name).parent.mkdir(parents=True, exist_ok=True)
            (self.dist / name).write_text(name)
        (self.dist / "linux/gpushmctl").chmod(0o755)
        self.sum(self.dist)
        out = self.folder / "assets"
        self.assertEqual(run(RELEASE / "assets", self.dist, out), (0, ""))
        self.assertEqual({path.name for path in out.iterdir()},
                         {"gpushm-1.2.3.tar", "gpushm-1.2.3.tgz", "manifests.tar.gz", "gpushm.tar.gz",
                          "gpushm-tools_1.2.3-rc.4_amd64.deb"})
        self.assertEqual(run("tar", "-C", self.folder, "-xf", out / "gpushm-1.2.3.tar"), (0, ""))
        unpacked = self.folder / "gpushm-1.2.3"
        self.assertEqual(run("sh", "-c", 'cd "$0" && sha256sum --check --strict --quiet --ignore-missing SHA256SUMS',
                             unpacked), (0, ""))
        lacks = ("images/", "mirror-images")
        self.assertEqual({str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()},
                         {name for name in map(str, (path.relative_to(self.dist) for path in self.dist.rglob("*")
                                                     if path.is_file())) if not name.startswith(lacks)})
        self.assertTrue(os.access(unpacked / "linux/gpushmctl", os.X_OK))

    def test_wants_a_release(self):
        status, text = run(RELEASE / "assets", self.folder, self.folder / "assets")
        self.assertEqual(status, 2)
        self.assertIn("usage: ", text)


class MirrorTest(MadeUpRelease):
    def mirror(self, tool, digest):
        """Runs it from the release, with a stand-in for a tool that says `digest` of each image."""
        tools = self.make_tools("bash", "cat", "dirname", "grep", "mktemp", "rm", "tar")
        script = shutil.copyfile(RELEASE / "mirror-images", self.dist / "mirror-images")
        if tool:
            (tools / tool).write_text(f"#!/bin/bash\necho \"{tool} $*\" >>{self.folder}/calls\n"
                                      f"case $1 in digest | inspect) {digest} ;; esac\n")
            (tools / tool).chmod(0o755)
        return run(tools / "bash", script, "registry.example/team/", PATH=str(tools))

    def calls(self):
        return (self.folder / "calls").read_text()

    def digest_from_list(self):
        return (f"while read -r name tag digest; do [[ \"$*\" != *\"$name:\"* ]] || echo \"$digest\"; done "
                f"<<<'{self.listed()}'")

    def listed(self):
        """The lines of images.txt, and one for the chart."""
        index = run("tar", "-xOf", self.dist / "chart/gpushm-1.2.3.oci.tar", "index.json")[1]
        return ((self.dist / "images.txt").read_text()
                + f"charts/gpushm 1.2.3 {json.loads(index)['manifests'][0]['digest']}")

    def test_copies_with_skopeo(self):
        status, text = self.mirror("skopeo", self.digest_from_list())
        self.assertEqual(status, 0, text)
        self.assertIn("helm install gpushm oci://registry.example/team/charts/gpushm --version 1.2.3 "
                      "--set global.imageRegistry=registry.example/team ", text)
        self.assertIn(f"skopeo copy --all --preserve-digests oci-archive:{self.dist}/chart/gpushm-1.2.3.oci.tar "
                      "docker://registry.example/team/charts/gpushm:1.2.3\n", self.calls())
        self.assertIn(f"skopeo copy --all --preserve-digests oci-archive:{self.dist}/images/plugin.oci.tar "
                      "docker://registry.example/team/gpushm/plugin:1.2.3\n", self.calls())

    def test_copies_with_crane(self):
        status, text = self.mirror("crane", self.digest_from_list())
        self.assertEqual(status, 0, text)
        self.assertRegex(self.calls(), r"crane push \S+ registry.example/team/gpushm/sidecar:1.2.3\n")

    def test_says_that_the_registry_has_something_else(self):
        status, text = self.mirror("crane", "echo sha256:0")
        self.assertEqual(status, 1)
        self.assertIn("registry.example/team/gpushm/plugin:1.2.3 has digest sha256:0, not sha256:", text)

    def test_says_what_to_install(self):
        self.assertEqual(self.mirror(None, ""),
                         (1, "mirror-images: found neither skopeo nor crane: install one of them\n"))


class PublishTest(MadeUpRelease):
    listed = MirrorTest.listed

    def publish(self, *arguments, says=None, lacks="", log=subprocess.PIPE):
        """Runs it with stand-ins for the tools that talk to a registry, which note how they are called."""
        tools = self.make_tools("bash", "cat", "dirname", "grep", "tar", "tee")
        shutil.copyfile(RELEASE / "mirror-images", self.dist / "mirror-images")
        for name, answer in [("skopeo", says or MirrorTest.digest_from_list(self)), ("cosign", "")]:
            if name != lacks:
                (tools / name).write_text(f"#!/bin/bash\necho \"{name} $*\" >>{self.folder}/calls\n{answer}\n")
                (tools / name).chmod(0o755)
        done = subprocess.run([tools / "bash", RELEASE / "publish", *arguments], env={"PATH": str(tools)}, text=True,
                              stdout=subprocess.PIPE, stderr=log, timeout=TIMEOUT_S, check=False)
        calls = self.folder / "calls"
        return done.returncode, done.stdout, done.stderr, calls.read_text() if calls.exists() else ""

    def digests(self):
        return dict(line.split()[::2] for line in self.listed().splitlines())

    def test_prints_what_an_attestation_needs(self):
        status, text, errors, calls = self.publish(self.dist, "registry.example:5000/team/")
        self.assertEqual(status, 0, errors)
        wanted = [f"{digest[7:]}  registry.example:5000/team/{name}" for name, digest in self.digests().items()]
        self.assertEqual(text.splitlines(), wanted)
        self.assertNotIn("cosign", calls)

    def test_keeps_what_its_log_has(self):
        with (self.folder / "log").open("w+") as log:
            log.write("before\n")
            log.flush()
            self.publish(self.dist, "registry.example", log=log)
            log.seek(0)
            lines = log.read().splitlines()
        self.assertEqual(lines[0], "before")
        self.assertIn(f"registry.example/charts/gpushm:1.2.3 {self.digests()['charts/gpushm']}", lines)

    def test_signs_by_digest(self):
        status, _, errors, calls = self.publish(self.dist, "registry.example/team", "--sign")
        self.assertEqual(status, 0, errors)
        for name, digest in self.digests().items():
            self.assertIn(f"cosign sign --yes registry.example/team/{name}@{digest}\n", calls)

    def test_signs_nothing_if_the_registry_has_something_else(self):
        status, text, errors, calls = self.publish(self.dist, "registry.example", "--sign", says="echo sha256:0")
        self.assertEqual((status, text), (1, ""))
        self.assertIn("has digest sha256:0, not sha256:", errors)
        self.assertNotIn("cosign", calls)

    def test_says_what_is_missing_before_it_pushes(self):
        for arguments, lacks, words in [
                ([], "", "usage: ./run release publish FOLDER REGISTRY [--sign], for example dist ghcr.io/team"),
                ([self.dist, "registry.example", "--force"], "", "usage: "),
                ([self.folder, "registry.example"], "", f"{self.folder} has no images.txt: name the folder"),
                ([self.dist, "registry.example", "--sign"], "cosign", "cosign is missing: install it, or leave out")]:
            with self.subTest(words=words):
                shutil.rmtree(self.folder / "tools", ignore_errors=True)
                (self.dist / "mirror-images").unlink(missing_ok=True)
                status, text, errors, calls = self.publish(*arguments, lacks=lacks)
                self.assertEqual((status, text, calls), (1, "", ""))
                self.assertIn(words, errors)


class RegistryTest(MadeUpRelease):
    def get(self, path):
        """What a registry with this release answers."""
        read = "import sys, urllib.request as u; print(u.urlopen('http://' + sys.argv[1]).read().decode())"
        return run(sys.executable, RELEASE / "registry.py", self.dist, sys.executable, "-c", read, "{}" + path)

    def test_serves_an_image_of_two_machines(self):
        text = self.get("/v2/gpushm/plugin/manifests/1.2.3")[1]
        images = json.loads(text)["manifests"]
        self.assertEqual([each["platform"]["architecture"] for each in images], ["amd64", "arm64"])
        for each in images:
            status, text = self.get(f"/v2/gpushm/plugin/manifests/{each['digest']}")
            self.assertEqual(status, 0, text)
            self.assertEqual(len(json.loads(text)["layers"]), 1)

    def test_serves_images_and_chart(self):
        for name in ("gpushm/sidecar", "gpushm"):
            status, text = self.get(f"/v2/{name}/manifests/1.2.3")
            self.assertEqual(status, 0, text)
            layer = json.loads(text)["layers"][0]["digest"]
        self.assertEqual(self.get(f"/v2/gpushm/blobs/{layer}"), (0, "a chart\n"))

    def test_has_nothing_else(self):
        status, text = self.get("/v2/gpushm/other/manifests/1.2.3")
        self.assertEqual(status, 1)
        self.assertIn("404", text)


class UnpackTest(MadeUpRelease):
    def unpack(self, image, architecture):
        folder = self.folder / architecture
        folder.mkdir()
        status, text = run(sys.executable, RELEASE / "oci.py", "unpack",
                           self.dist / f"images/{image}.oci.tar", architecture, folder)
        return (folder / "file").read_text() if status == 0 else text

    def test_gives_the_files_of_one_machine(self):
        self.assertEqual(self.unpack("plugin", "arm64"), "for arm64")
        self.assertEqual(self.unpack("plugin", "amd64"), "plugin")

    def test_says_that_there_is_no_image_for_the_machine(self):
        self.assertIn("it has no image for arm64", self.unpack("sidecar", "arm64"))


@unittest.skipUnless(shutil.which("dpkg-deb"), "dpkg-deb is missing")
class DebianTest(unittest.TestCase):
    def test_the_version_sorts_a_candidate_first_and_file_names_have_no_tilde(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix, out = pathlib.Path(folder, "prefix"), pathlib.Path(folder, "out")
            for name in ("LICENSE", "include/gpushm.h", "lib/libgpushm.so", "lib/libgpushm.so.0",
                         "lib/libgpushm.so.1.2.3", "lib/libgpushm-cudaipc.so", "lib/cmake/a", "lib/pkgconfig/a",
                         "bin/gpushmctl"):
                (prefix / name).parent.mkdir(parents=True, exist_ok=True)
                (prefix / name).write_text("")
            status, text = run(RELEASE / "debian", prefix, "1.2.3-rc.4", "2.28", "aarch64", f"{folder}/work", out)
            self.assertEqual(status, 0, text)
            self.assertEqual({path.name: run("dpkg-deb", "--field", path, "Version")[1] for path in out.iterdir()},
                             {f"{name}_1.2.3-rc.4_arm64.deb": "1.2.3~rc.4\n"
                              for name in ("gpushm-tools", "libgpushm-dev", "libgpushm0")})


class PackagesTest(InFolder):
    """The list of the distribution's packages that may be inside a release."""

    PARTS = [contents.Component("pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12", {}),
             contents.Component("pkg:pypi/numpy@2.0", {})]

    def test_names_each_difference_until_it_is_recorded(self):
        path = self.folder / "packages.txt"
        path.write_text("libc6 2.36-8 amd64\n")
        self.assertEqual([*contents.drift(self.PARTS, path, False)],
                         ["packages.txt does not have: libc6 2.36-9 amd64",
                          "not inside, but in packages.txt: libc6 2.36-8 amd64"])
        self.assertEqual([*contents.drift(self.PARTS, path, True)], [])
        self.assertEqual([*contents.drift(self.PARTS, path, False)], [])
        self.assertEqual(path.read_text(), "libc6 2.36-9 amd64\n")


class NotesTest(unittest.TestCase):
    CHANGELOG = ("# Changelog\n\n## [Unreleased]\n\n- new\n\n"
                 "## [1.2.3] - 2026-11-27\n\n### Added\n\n- old\n\n## [1.2.2]\n\n"
                 "- [`a`](docs/a.md#b) and ([the page](../c.md)), as [others](https://example.org/d.md) do\n")

    def test_has_the_section_of_the_version(self):
        self.assertEqual(notes.notes(self.CHANGELOG, "files\n", "1.2.3"),
                         "# gpushm 1.2.3\n\nfiles\n\n### Added\n\n- old\n")

    def test_has_no_links_into_the_tree(self):
        self.assertIn("- `a` and (the page), as [others](https://example.org/d.md) do\n",
                      notes.notes(self.CHANGELOG, "files\n", "1.2.2"))

    def test_a_trial_says_that_there_is_none_yet(self):
        self.assertIn("This is not a release: CHANGELOG.md has no section for 2.0.0.\n\nfiles\n\n- new\n",
                      notes.notes(self.CHANGELOG, "files\n", "2.0.0", trial=True))

    def test_refuses_a_version_without_a_section(self):
        self.assertEqual(run(sys.executable, RELEASE / "notes.py", "0.0.1"),
                         (1, "notes.py: CHANGELOG.md has no section [0.0.1]: write it, or try with --dirty\n"))


class VersionTest(unittest.TestCase):
    def version(self, *words, root=ROOT):
        return run(sys.executable, root / "release/version.py", *words)

    def copy(self):
        """The files that name the version, and all documents, in a repository of their own."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        declared = {path for path, _, _ in version.DECLARED}
        for path in {*version.tracked(*version.NAMED_IN, "*.md"), *declared, "release/version.py"}:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, root / path)
        self.assertEqual(run("git", "-C", root, "init", "--quiet")[0], 0)
        self.assertEqual(run("git", "-C", root, "add", ".")[0], 0)
        return root

    def test_all_files_name_the_same(self):
        self.assertEqual(self.version("check"), (0, ""))

    def test_refuses_what_is_no_version(self):
        status, text = self.version("set", "1.0-rc1")
        self.assertEqual(status, 1)
        self.assertIn("'1.0-rc1' is not a version: write 1.2.3 or 1.2.3-rc.1", text)

    def test_set_leaves_no_other_version(self):
        root = self.copy()
        for wanted, *rows in [
                ("7.8.9-rc.10", "| 7, 8, 9 |", "| 70809 |", "| 7.8.9 |", "| 7.8.9rc10 |", "| 7.8.9~rc.10 |"),
                ("7.9.0", "| 7, 9, 0 |", "| 70900 |", "| 7.9.0 |")]:
            with self.subTest(wanted):
                self.assertEqual(self.version("set", wanted, root=root), (0, ""))
                self.assertEqual(self.version("check", root=root), (0, ""))
                read = (root / "docs/reference/compatibility.md").read_text()
                for row in (f"This is version {wanted}.", *rows):
                    self.assertIn(row, read)
                for path in ("docs/guides/from-dynamo.md", "docs/guides/from-nvidia-sharing.md", "deploy/gpushm.yaml"):
                    self.assertIn(wanted, (root / path).read_text())
                self.assertIn(f'prerelease: "{"true" if "rc" in wanted else "false"}"',
                              (root / "helm/gpushm/Chart.yaml").read_text())

    def test_finds_a_candidate_that_a_document_still_names(self):
        root = self.copy()
        self.version("set", "7.8.9", root=root)
        names = ("1.2.3-rc.1", "1.2.3rc1", "1.2.3~rc.1", "-rc.1", "rc1")
        (root / "CONTRIBUTING.md").write_text(f"src1 {' '.join(names)}.\n")
        self.assertEqual(self.version("check", root=root), (1, "".join(
            f"CONTRIBUTING.md names {name}, and the version is 7.8.9\n" for name in names)))

    def test_refuses_the_tag_of_another_version(self):
        self.assertEqual(self.version("tag", f"v{version.current()}"), (0, ""))
        for tag in (version.current(), "v0.0.1", f"v{version.current()}.1"):
            status, text = self.version("tag", tag)
            self.assertEqual(status, 1)
            self.assertIn(f"the tag is {tag}, and the version is {version.current()}: ", text)


class MakeTest(unittest.TestCase):
    def test_refuses_a_tree_with_changes_and_names_them(self):
        with tempfile.TemporaryDirectory() as folder:
            run("git", "init", "--quiet", folder)
            source = (f"cd {folder} && . {RELEASE.parent}/tools/release.sh && refuse_changes")
            self.assertEqual(run("bash", "-c", source), (0, ""))
            pathlib.Path(folder, "changed.cc").write_text("")
            status, text = run("bash", "-c", source)
            self.assertEqual(status, 1)
            self.assertIn("?? changed.cc\n", text)


if __name__ == "__main__":
    unittest.main()
