"""Runs platforms and writes a row for each into docs/platforms.

usage: ./run test platforms [--again] [--list] [NAME ...]
NAME: one of platforms.py; none: all. A platform whose row is of this commit is not run again, so
the same command continues what was interrupted; --again runs it in any case. Fails if a result is
another one than platforms.py expects.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

from platforms import PLATFORMS

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = ROOT / "docs/platforms"
LOGS = ROOT / "build/results/platforms"
LIMIT_S = 30 * 60
PREPARE_S = 120 * 60  # For what is compiled once and kept.
END_S = 120  # For the end of a platform that is out of time, which also ends its cluster.
SKIPPED = 77
# What a row changes; a commit of nothing else is the same tree.
OF_ROWS = (":(exclude)docs/platforms", ":(exclude)docs/reference/platforms.md", ":(exclude)README.md")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True,
                          text=True).stdout.strip()


def commit_of_tree():
    """The last commit that changed more than rows, with "-dirty" if there are other changes."""
    commit = git("log", "-1", "--format=%h", "--abbrev=10", "--", ".", *OF_ROWS)
    return commit + ("-dirty" if git("status", "--porcelain", "--", ".", *OF_ROWS) else "")


def is_done(row, commit):
    return bool(row) and row["commit"] == commit and not commit.endswith("-dirty")


def row_of(name):
    path = ROWS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def read_results(path):
    """(versions, passed, skipped, {name: first line} of the failed) of a JUnit file"""
    root = ElementTree.parse(path).getroot()
    suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
    versions = {p.get("name"): p.get("value") for suite in suites
                for p in suite.findall("properties/property")}
    passed, skipped, failed = 0, 0, {}
    for case in (case for suite in suites for case in suite.findall("testcase")):
        failure = next((case.find(tag) for tag in ("failure", "error")
                        if case.find(tag) is not None), None)
        if failure is not None or case.get("status") == "fail":
            failed[case.get("name")] = reason(failure.text or "" if failure is not None else "")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return versions, passed, skipped, failed


def reason(text):
    """The line of a failure that says most: Python's last one before the events, else the last."""
    lines = [line for line in text.partition("\nevents:\n")[0].splitlines() if line.strip()]
    found = [line for line in lines if re.match(r"[\w.]*(Error|Failure|Refused|Exception)\b", line)]
    return (found or lines or [""])[-1].strip()[:300]


def execute(words, environment, log, limit):
    """Exit status, None if it took too long. Everything that it starts ends with it."""
    with open(log, "a") as output, subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:  # Also after Ctrl-C.
            end_group(process)


def end_group(process):
    """Ends what is left of its process group, of which the process itself may have ended first."""
    with contextlib.suppress(ProcessLookupError):  # Nothing is left.
        for number, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, 10)):
            os.killpg(process.pid, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.05)


def run(platform, commit):
    """The row, or None if this computer cannot run the platform."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log, results = LOGS / f"{platform.name}.log", ROOT / platform.results
    log.unlink(missing_ok=True)
    results.unlink(missing_ok=True)
    words, limit, status, start = platform.prepare, PREPARE_S, 0, time.monotonic()
    if words:
        status = execute(words, platform.environment, log, limit)
    if status == 0:
        words, limit, start = platform.command, LIMIT_S, time.monotonic()
        status = execute(words, platform.environment, log, limit)
    if status == SKIPPED:
        return None
    versions, passed, skipped, failed = (
        read_results(results) if results.exists() else ({}, None, None, {}))
    row = {"name": platform.name, "versions": versions,
           "command": f"./run test platforms {platform.name}", "commit": commit,
           "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
           "result": "yes" if status == 0 and passed and not failed else "no",
           "passed": passed, "skipped": skipped, "failed": sorted(failed),
           "seconds": round(time.monotonic() - start)}
    if row["result"] == "no":
        command = " ".join([*(f"{k}='{v}'" for k, v in platform.environment.items() if v), *words])
        row["why"] = why(command, limit, status, failed, log.read_text(errors="replace"))
    return row


def why(command, limit, status, failed, output):
    if status == 0 and not failed:
        return f"no case passed in {command}"
    if failed:
        text = "; ".join(f"{name}: {line}" for name, line in failed.items())
        return f"failed in {command}: {text}"
    if status is None:
        return f"took more than {limit // 60} minutes: {command}"
    lines = [COLOUR.sub("", line) for line in output.splitlines() if line.strip()]
    return f"exit status {status} of {command}: " + " | ".join(lines[-3:])[:600]


def write(row):
    ROWS.mkdir(parents=True, exist_ok=True)
    path = ROWS / f"{row['name']}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(row, indent=1) + "\n")
    part.rename(path)


def main():
    parser = argparse.ArgumentParser(prog="./run test platforms", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true", help="only says what is done")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    known = {platform.name: platform for platform in PLATFORMS}
    for name in set(arguments.names) - set(known):
        sys.exit(f"there is no platform \"{name}\": write some of {', '.join(known)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commit, bad, ran = commit_of_tree(), 0, 0
    for name in arguments.names or known:
        row = row_of(name)
        done = is_done(row, commit)
        if arguments.list:
            print(f"{name:24} {'not run' if row is None else row['result'] + ', ' + row['commit']}"
                  f"{'' if done or row is None else ', not this commit'}")
            continue
        if not done or arguments.again:
            print(f"{name}: runs, see {LOGS / name}.log", flush=True)
            row = run(known[name], commit)
            if row is None:
                print(f"{name}: skipped, this computer cannot run it", flush=True)
                continue
            write(row)
        ran += 1
        bad += row["result"] != known[name].expected
        print(f"{name}: {row['result']}, {row['passed']} cases passed, {row['seconds']} s, "
              f"{row['date']}, {row['commit']}{': ' + row['why'] if 'why' in row else ''}", flush=True)
    if arguments.list:
        return 0
    return 1 if bad else 0 if ran else SKIPPED


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # Ctrl-C or SIGTERM.
        sys.exit("platforms: interrupted; the same command begins again with the platform that did not end")
