"""Which commit a release was made from: an in-toto statement with SLSA's provenance.

usage: provenance.py write DIST COMMAND     writes DIST/provenance.intoto.json
       provenance.py check DIST             compares its digests with the files

https://in-toto.io/Statement/v1 and https://slsa.dev/provenance/v1 define the fields. It names no time
and no machine: the same files give the same bytes. Nobody has signed it.
"""

import hashlib
import json
import pathlib
import platform
import subprocess
import sys

NAME = "provenance.intoto.json"
NOT_SUBJECTS = {NAME, "SHA256SUMS"}  # SHA256SUMS is written after it.
ROOT = pathlib.Path(__file__).resolve().parent.parent


def sha256(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def subjects(dist):
    files = sorted(str(path.relative_to(dist)) for path in dist.rglob("*") if path.is_file())
    return [{"name": name, "digest": {"sha256": sha256(dist / name)}}
            for name in files if name not in NOT_SUBJECTS]


def git(*words):
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True,
                          text=True).stdout.strip()


def statement(dist, command):
    system = platform.freedesktop_os_release()
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects(dist),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:gpushm:release:1",
                "externalParameters": {"command": command.strip()},
                "internalParameters": {"changed": bool(git("status", "--porcelain"))},
                "resolvedDependencies": [
                    {"name": "gpushm", "digest": {"gitCommit": git("rev-parse", "HEAD")}}]},
            "runDetails": {"builder": {
                "id": "urn:gpushm:builder:one-computer",
                "version": {"system": f"{system['ID']} {system['VERSION_ID']}",
                            "machine": platform.machine()}}}}}


def differences(dist):
    """Files whose digest is not the recorded one, or that only one side has."""
    recorded = {each["name"]: each["digest"]["sha256"]
                for each in json.loads((dist / NAME).read_text(encoding="utf-8"))["subject"]}
    found = {each["name"]: each["digest"]["sha256"] for each in subjects(dist)}
    return [name for name in sorted(recorded.keys() | found.keys())
            if recorded.get(name) != found.get(name)]


def main():
    match sys.argv[1:]:
        case ["write", dist, command]:
            text = json.dumps(statement(pathlib.Path(dist), command), indent=1) + "\n"
            pathlib.Path(dist, NAME).write_text(text, encoding="utf-8")
        case ["check", dist]:
            found = differences(pathlib.Path(dist))
            for name in found:
                print(f"{NAME} does not describe {name}", file=sys.stderr)
            return 1 if found else 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
