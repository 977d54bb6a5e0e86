"""What `./run` asks of CTest: which tests there are, and how they went.

gpu BUILD:      tests that run on a real driver, one line each: name, seconds, shell command. Paths
                are $BUILD and $SOURCE, so that the list also serves inside a pack.
                Those of the labels `tree` and `no-gpu` are not among them.
gpu-simulated BUILD: the same, with the driver that they have in ctest.
files BUILD:    files of the source tree that those commands name (a pack carries them).
fuzz BUILD:     fuzz targets, one line each: name, program, folder of the kept corpus.
tally XML ...:  the numbers of CTest's JUnit files, GoogleTest cases counted one by one.
failed SUITE XML: the names of the failed cases, each with the end of what it printed.
skips SUITE [XML]: fails where a case was skipped that expected_skips.json does not name for the
                suite, and says which; without a file, where the whole suite was ("*"). What was to
                be skipped and ran is a note.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A test with one of these labels runs on a real driver even if its CMakeLists.txt selects the
# simulated one.
REAL_DRIVER_LABELS = {"gpu", "real-driver", "conformance"}
EXPECTED_SKIPS = ROOT / "tests/expected_skips.json"
# The text that ctest writes for omitted output (--test-output-size-passed), and GoogleTest's first
# line.
CUT_OFF = "of the test output was removed since it exceeds the threshold"
GTEST_BEGINS = "[==========] Running "
FAILED_LINES = 15


def load_tests(build):
    """Yields (name, command, labels, timeout in seconds, environment) of every test in `build`."""
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True,
                             capture_output=True, text=True).stdout
    for test in json.loads(listing)["tests"]:
        if "command" not in test:
            continue  # Not built.
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        yield (test["name"], test["command"], set(properties.get("LABELS", [])),
               int(properties.get("TIMEOUT", 120)), properties.get("ENVIRONMENT", []))


def gpu_tests(build, simulated=False):
    """Yields (name, timeout, words of an env(1) command) of the tests for a real driver;
    `simulated`: as ctest runs them."""
    for name, command, labels, timeout, environment in load_tests(build):
        if labels & {"tree", "no-gpu"}:
            continue
        bound_to_simulator = any(e.startswith("GPUSHM_DRIVER=") for e in environment)
        if bound_to_simulator and not labels & REAL_DRIVER_LABELS:
            continue
        if simulated:
            yield name, timeout, ["env", *environment, *command]
            continue
        environment = [e for e in environment if not e.startswith("GPUSHM_DRIVER=")]
        yield name, timeout, ["env", "-u", "GPUSHM_DRIVER", *environment, *command]


def portable_word(word, build):
    """`word` for a shell, with $BUILD and $SOURCE for this machine's folders."""
    moved = word.replace(str(build), "$BUILD").replace(str(ROOT), "$SOURCE")
    return shlex.quote(word) if moved == word else f'"{moved}"'


def print_gpu_list(build, simulated=False):
    for name, timeout, words in gpu_tests(build, simulated):
        print(name, timeout, " ".join(portable_word(word, build) for word in words))


def print_source_files(build):
    found = set()
    for _, _, words in gpu_tests(build):
        for path in re.findall(re.escape(str(ROOT)) + r"/[^\s:;,'\"]+", " ".join(words)):
            if not path.startswith(str(build)) and pathlib.Path(path).exists():
                found.add(pathlib.Path(path).relative_to(ROOT))
    for path in sorted(found):
        print(path)


def print_fuzz_list(build):
    for name, command, labels, _, _ in load_tests(build):
        if "fuzz" in labels:
            print(name, command[0], command[-1])


def gtest_numbers(output):
    """(passed, failed, skipped) from GoogleTest's last lines; None if they are missing."""
    def closing(line):
        numbers = re.findall(line, output)
        return int(numbers[-1]) if numbers else 0

    numbers = tuple(closing(r"\[  %s *\] (\d+) tests?[.,]" % word)
                    for word in ("PASSED", "FAILED", "SKIPPED"))
    ran = closing(r"\[==========\] (\d+) tests? from \d+ test suites? ran\.")
    return numbers if sum(numbers) == ran > 0 else None


def count(case):
    """(passed, failed, skipped) of one <testcase>: its GoogleTest cases if it has them. One whose
    cases cannot be counted has failed."""
    output = case.findtext("system-out") or ""
    failed = case.get("status") == "fail" or case.find("failure") is not None
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return 0, 0, 1
    problem = None
    if CUT_OFF in output:
        problem = "its output is too long for ctest and was cut off: print less"
    elif GTEST_BEGINS in output:
        numbers = gtest_numbers(output)
        if numbers and bool(numbers[1]) == failed:
            return numbers
        problem = "GoogleTest ran no case, or did not finish"
    if problem and not failed:
        print(f"{case.get('name')}: {problem}", file=sys.stderr)
    return (0, 1, 0) if failed or problem else (1, 0, 0)


def print_tally(files):
    total = [0, 0, 0]
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            total = [a + b for a, b in zip(total, count(case))]
    print(*total)


def print_failed(suite, file):
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        if not count(case)[1]:
            continue
        output = case.findtext("failure") or case.findtext("system-out") or ""
        names = sorted(set(re.findall(r"^\[  FAILED  \] (\S+\.\S+)", output, re.MULTILINE)))
        print(f"{suite}: {case.get('name')} failed" + (f": {', '.join(names)}" if names else ""))
        for line in output.rstrip().splitlines()[-FAILED_LINES:]:
            print(f"    {line}")


def outcomes(file):
    """(names of the skipped cases, names of the passed ones) in a JUnit file: GoogleTest's cases,
    and programs that have none."""
    skipped, passed = set(), set()
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        if count(case) == (0, 0, 1):
            skipped.add(case.get("name"))
        elif count(case) == (1, 0, 0):
            passed.add(case.get("name"))
        output = case.findtext("system-out") or ""
        skipped.update(re.findall(r"^\[  SKIPPED \] (\S+\.\S+)", output, re.MULTILINE))
        passed.update(re.findall(r"^\[       OK \] (\S+\.\S+)", output, re.MULTILINE))
    return skipped, passed


def check_skips(suite, file, expected_file=EXPECTED_SKIPS):
    """Prints the differences between expected_skips.json and a suite's result. False: a case was
    skipped that must not be."""
    expected = {name for entry in json.loads(expected_file.read_text(encoding="utf-8"))
                if suite in entry["suites"] for name in entry["cases"]}
    skipped, passed = outcomes(file) if file else ({"*"}, set())
    for name in sorted(skipped - expected):
        what = "the whole suite" if name == "*" else name
        print(f"{suite}: {what} was skipped: make it run here, or add it, with the reason, to "
              f"tests/{expected_file.name}")
    for name in sorted(expected & passed - skipped):
        print(f"{suite}: note: {name} ran: remove it from tests/{expected_file.name}")
    return skipped <= expected


def main():
    verb, arguments = sys.argv[1], sys.argv[2:]
    if verb == "skips":
        sys.exit(0 if check_skips(arguments[0], arguments[1] if arguments[1:] else None) else 1)
    if verb == "tally":
        print_tally(arguments)
        return
    if verb == "failed":
        print_failed(*arguments)
        return
    verbs = {"gpu": print_gpu_list,
             "gpu-simulated": lambda build: print_gpu_list(build, simulated=True),
             "files": print_source_files, "fuzz": print_fuzz_list}
    verbs[verb](pathlib.Path(arguments[0]).resolve())


if __name__ == "__main__":
    main()
