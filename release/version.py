"""The project's version, such as 1.2.3 or 1.2.3-rc.1. platform/base/version.h has it; other files that
have to name it must agree.

usage: version.py                  prints it
       version.py set VERSION      writes it into all files that name it
       version.py check            lists places that name another one; fails if there is one
       version.py tag TAG          fails if a tag of git is not the version's
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = r"\d+\.\d+\.\d+(?:-rc\.\d+)?"
PYTHON_VERSION = r"\d+\.\d+\.\d+(?:rc\d+)?"  # https://peps.python.org/pep-0440/
# In documents each of these is this project's.
CANDIDATE = re.compile(r"[\d.]*[-~]?(?<![a-zA-Z])rc\.?\d+")
SOURCE = ("platform/base/version.h", rf'kVersion\[\] = "({VERSION})"')
# What declares it, as (file, pattern, form): a key of what forms() returns.
DECLARED = [
    (*SOURCE, "full"),
    ("helm/gpushm/Chart.yaml", rf"(?m)^version: ({VERSION})", "full"),
    ("helm/gpushm/Chart.yaml", rf"(?m)^appVersion: ({VERSION})", "full"),
    ("helm/gpushm/Chart.yaml", r'artifacthub\.io/prerelease: "(true|false)"', "prerelease"),
    ("runtime/include/gpushm/gpushm.h", r"#define GPUSHM_VERSION_MAJOR (\d+)", "major"),
    ("runtime/include/gpushm/gpushm.h", r"#define GPUSHM_VERSION_MINOR (\d+)", "minor"),
    ("runtime/include/gpushm/gpushm.h", r"#define GPUSHM_VERSION_PATCH (\d+)", "patch"),
    ("runtime/python/gpushm/__init__.py", rf'__version__ = "({PYTHON_VERSION})"', "python"),
    ("runtime/python/pyproject.toml", rf'(?m)^version = "({PYTHON_VERSION})"', "python"),
    ("runtime/python/pyproject.toml", rf'"gpushm-sim==({PYTHON_VERSION})"', "python"),
    ("runtime/python/sim/pyproject.toml", rf'(?m)^version = "({PYTHON_VERSION})"', "python"),
]
# Manifests, examples and documents name images, and files of a release.
NAMED_IN = ["README.md", "deploy", "docs/guides", "docs/reference", "docs/start", "helm/gpushm", ".github"]
HISTORY = {"CHANGELOG.md", "docs/reference/platforms.md"}  # What was so on which day.
NAMED = [
    (rf"registry\.(?:invalid|example)/(?:team/)?gpushm/[\w$]+:({VERSION})", "full"),
    (rf"\bgpushm(?:-manifests|ctl)?-({VERSION})(?:\.tgz|\.oci\.tar|\.tar\.gz|-linux|$)", "full"),
    (rf"\b(?:libgpushm0|libgpushm-dev|gpushm-tools)_({VERSION})_", "full"),
    (rf"--version ({VERSION})", "full"),
    (rf"\b(?:Version|This is version) ({VERSION})[;:.,]", "full"),
    (rf"\| ({VERSION}) \| (?:one number for|the chart's own)", "full"),
    (r"\| (\d+, \d+, \d+) \| the project's version when the header", "listed"),
    (r"\| (\d+) \| the project's version when the library", "number"),
    (r"\| (\d+\.\d+\.\d+) \| the project's version, without", "numbers"),
    (rf"\| ({PYTHON_VERSION}) \| the project's version, as Python", "python"),
    (r"\| (\d+\.\d+\.\d+(?:~rc\.\d+)?) \| the project's version with `~`", "debian"),
    (r"\bthis tree is (\d+\.\d+\.\d+)", "numbers"),
    (rf"^\| state \|.*\| ({VERSION}) ", "full"),
    (rf"\bChart ({VERSION}),", "full"),
    (rf"/mine:({VERSION})", "full"),
    (rf"\bnewTag: ({VERSION})", "full"),
    (rf"^  tag: ({VERSION})$", "full"),
    (rf"\?ref=v({VERSION})", "full"),
    (rf'app\.kubernetes\.io/version: "?({VERSION})"?', "full"),
]


def forms(version):
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    major, minor, patch = map(int, numbers.groups())
    return {"full": version, "python": version.replace("-rc.", "rc"), "debian": version.replace("-", "~"),
            "numbers": numbers[0], "listed": f"{major}, {minor}, {patch}",
            "number": str(major * 10000 + minor * 100 + patch), "major": str(major), "minor": str(minor),
            "patch": str(patch), "prerelease": "true" if "-" in version else "false"}


def current():
    path, pattern = SOURCE
    return re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))[1]


def tracked(*words):
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--", *words], check=True,
                            capture_output=True, text=True).stdout.splitlines()
    return [path for path in listed if (ROOT / path).is_file()]


def places():
    """(file, pattern, form) of everything that names the version."""
    yield from DECLARED
    for path in tracked(*NAMED_IN):
        if path not in HISTORY and pathlib.Path(path).suffix in (".md", ".yaml", ".yml", ".txt", ".json", ""):
            for pattern, form in NAMED:
                yield path, f"(?m){pattern}", form


def write(version):
    if not re.fullmatch(VERSION, version):
        sys.exit(f"version.py: {version!r} is not a version: write 1.2.3 or 1.2.3-rc.1")
    for path, pattern, form in places():
        file = ROOT / path
        text = file.read_text(encoding="utf-8")
        new = re.sub(pattern, lambda found, to=forms(version)[form]: (
            found[0][:found.start(1) - found.start()] + to + found[0][found.end(1) - found.start():]), text)
        if new != text:
            file.write_text(new, encoding="utf-8")


def differences():
    wanted = forms(current())
    for path, pattern, form in places():
        found = [*re.finditer(pattern, (ROOT / path).read_text(encoding="utf-8"))]
        if not found and (path, pattern, form) in DECLARED:
            yield f"{path}: there is no version as {pattern}"
        for each in found:
            if each[1] != wanted[form]:
                yield f"{path}: {each[0]!r} names {each[1]}, and the version is {wanted[form]}"
    for path in tracked("*.md"):
        if path not in HISTORY:
            for each in CANDIDATE.findall((ROOT / path).read_text(encoding="utf-8")):
                if each not in wanted.values():
                    yield f"{path} names {each}, and the version is {wanted['full']}"


def main():
    match sys.argv[1:]:
        case []:
            print(current())
        case ["set", version]:
            write(version)
        case ["check"]:
            found = [*differences()]
            for line in found:
                print(line, file=sys.stderr)
            return 1 if found else 0
        case ["tag", tag]:
            if tag != f"v{current()}":
                print(f"version.py: the tag is {tag}, and the version is {current()}: `version.py set` it, "
                      f"and tag the commit as v{current()}", file=sys.stderr)
                return 1
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
