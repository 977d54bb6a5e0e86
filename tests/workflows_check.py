"""Rules for .github/ that actionlint does not know; `repo_check.py` runs it, and `./run lint` runs that.

`./run` and `.ci/run` say what is tested and how. The workflows call them, so each call must exist, and
each suite of .ci/run must be in a workflow. Actions (`uses:`) are pinned, and have no right that they do
not need. The images of `container:` are not pinned, because only a registry knows their digests.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CALL = re.compile(r"\./run ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
USES = re.compile(r"\buses: (\S+)(.*)")
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40}")
JOB = re.compile(r"  [\w-]+:$")


def known(tools):
    """The verbs of `./run`, and the suites of `./run test`."""
    text = "\n".join(path.read_text() for path in tools.glob("*.sh"))
    return {path.stem for path in tools.glob("*.sh")}, set(re.findall(r"^test_([\w-]+)\(\)", text, re.MULTILINE))


def calls(text):
    """(line, verb, word after it or "")"""
    for number, line in enumerate(text.splitlines(), 1):
        for verb, word in CALL.findall(line.split("#")[0]):
            yield number, verb, word


def check_calls(name, text, verbs, suites):
    for number, verb, word in calls(text):
        if verb not in verbs:
            yield f"{name}:{number}: `./run {verb}` does not exist: see `./run help`"
        elif verb == "test" and word and word not in suites:
            yield f"{name}:{number}: `./run test {word}` does not exist: see `./run help`"


def check_suites(ci, workflows):
    """What .ci/run runs and no workflow does."""
    done = {(verb, word) for text in workflows for _, verb, word in calls(text)}
    for number, verb, word in calls(ci):
        # To build early is a matter of .ci/run, which has one machine for all.
        if verb != "build" and (verb, word) not in done:
            yield (f".ci/run:{number}: no workflow runs `./run {verb} {word}".rstrip()
                   + "`: add it to .github/workflows/test.yml")


def check_pins(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        found = USES.search(line.split(" #")[0] if line.lstrip().startswith("#") else line)
        if not found or found[1].startswith("./"):
            continue
        if not PINNED.fullmatch(found[1]) or not re.fullmatch(r" # v\d+(\.\d+)+", found[2]):
            yield (f"{name}:{number}: {found[1]} can change under its name: write the commit of a release, "
                   "and the release after it, as in `owner/name@<40 digits> # v1.2.3`")


def jobs(text):
    """(line, name, text) of each job."""
    lines = text.splitlines()
    start = lines.index("jobs:") + 1
    begins = [at for at in range(start, len(lines)) if JOB.match(lines[at])] + [len(lines)]
    for at, end in zip(begins, begins[1:]):
        yield at + 1, lines[at].strip(" :"), "\n".join(lines[at:end])


def check_rights(name, text):
    if "pull_request_target" in text or "workflow_run" in text:
        yield f"{name}: runs code of a pull request with the rights of this project: use pull_request"
    rights = re.search(r"^permissions:(.*)((?:\n  .*)*)", text, re.MULTILINE)
    if not rights or "write" in rights[0]:
        yield f"{name}: every job may write: begin with `permissions: {{contents: read}}`, and give more to a job"
    if "\nconcurrency:" not in text:
        yield f"{name}: no `concurrency`: a second push runs beside the first one"
    for number, job, body in jobs(text):
        if not re.search(r"^    timeout-minutes: ", body, re.MULTILINE):  # A step's is further in.
            yield f"{name}:{number}: job {job} has no timeout-minutes: it may hang for six hours"
        if "actions/checkout@" in body and "persist-credentials: false" not in body:
            yield f"{name}:{number}: job {job} leaves its token in .git: write persist-credentials: false"


def check(root=ROOT):
    verbs, suites = known(root / "tools")
    workflows = {str(path.relative_to(root)): path.read_text()
                 for path in sorted((root / ".github/workflows").glob("*.yml"))}
    actions = {str(path.relative_to(root)): path.read_text()
               for path in sorted((root / ".github/actions").glob("*/action.yml"))}
    for name, text in (workflows | actions).items():
        yield from check_calls(name, text, verbs, suites)
        yield from check_pins(name, text)
    for name, text in workflows.items():
        yield from check_rights(name, text)
    yield from check_suites((root / ".ci/run").read_text(), (workflows | actions).values())


if __name__ == "__main__":
    found = list(check())
    print("\n".join(found))
    sys.exit(1 if found else 0)
