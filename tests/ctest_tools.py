"""What `./run` asks of CTest: which tests there are, and how they went.

gpu BUILD:      tests that run on a real driver, one line each: name, seconds, shell command. Paths
                are $BUILD and $SOURCE, so that the list also serves inside a pack.
files BUILD:    files of the source tree that those commands name (a pack carries them).
fuzz BUILD:     fuzz targets, one line each: name, program, folder of the kept corpus.
tally XML ...:  the numbers of CTest's JUnit files, GoogleTest cases counted one by one.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A test with one of these labels runs on a real driver even if its CMakeLists.txt points it at the
# simulated one.
REAL_DRIVER_LABELS = {"gpu", "real-driver", "conformance"}
# What ctest puts in place of what it leaves out (--test-output-size-passed), and how GoogleTest
# begins.
CUT_OFF = "of the test output was removed since it exceeds the threshold"
GTEST_BEGINS = "[==========] Running "


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


def gpu_tests(build):
    """Yields (name, timeout, words of an env(1) command) of what runs on a real driver."""
    for name, command, labels, timeout, environment in load_tests(build):
        bound_to_simulator = any(e.startswith("GPUSHM_DRIVER=") for e in environment)
        if bound_to_simulator and not labels & REAL_DRIVER_LABELS:
            continue
        environment = [e for e in environment if not e.startswith("GPUSHM_DRIVER=")]
        yield name, timeout, ["env", "-u", "GPUSHM_DRIVER", *environment, *command]


def portable_word(word, build):
    """`word` for a shell, with $BUILD and $SOURCE for this machine's folders."""
    moved = word.replace(str(build), "$BUILD").replace(str(ROOT), "$SOURCE")
    return shlex.quote(word) if moved == word else f'"{moved}"'


def print_gpu_list(build):
    for name, timeout, words in gpu_tests(build):
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
    """(passed, failed, skipped) as GoogleTest closes; None if it did not get there."""
    def closing(line):
        numbers = re.findall(line, output)
        return int(numbers[-1]) if numbers else 0

    numbers = tuple(closing(r"\[  %s *\] (\d+) tests?[.,]" % word)
                    for word in ("PASSED", "FAILED", "SKIPPED"))
    ran = closing(r"\[==========\] (\d+) tests? from \d+ test suites? ran\.")
    return numbers if sum(numbers) == ran > 0 else None


def count(case):
    """(passed, failed, skipped) of one <testcase>: of its GoogleTest cases where it has them. One
    whose cases cannot be counted has failed."""
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
        problem = "GoogleTest ran no case, or did not get to its end"
    if problem and not failed:
        print(f"{case.get('name')}: {problem}", file=sys.stderr)
    return (0, 1, 0) if failed or problem else (1, 0, 0)


def print_tally(files):
    total = [0, 0, 0]
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            total = [a + b for a, b in zip(total, count(case))]
    print(*total)


def main():
    verb, arguments = sys.argv[1], sys.argv[2:]
    if verb == "tally":
        print_tally(arguments)
        return
    verbs = {"gpu": print_gpu_list, "files": print_source_files, "fuzz": print_fuzz_list}
    verbs[verb](pathlib.Path(arguments[0]).resolve())


if __name__ == "__main__":
    main()
