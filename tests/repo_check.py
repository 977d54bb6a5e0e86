"""Rules for the tree that no compiler or formatter checks; run by `./run lint`.

Prints one line for each breach, with the remedy, and fails if there is one.
"""

import pathlib
import re
import subprocess
import sys

import events_check
import measured_check
import rooms_check
import words_check
import workflows_check

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".hpp", ".cc", ".c", ".cu", ".py", ".sh", ".cmake", ""}
# Inputs that are kept byte for byte: corpora of fuzz targets, pictures.
BINARY_IS_FINE = re.compile(r"(^|/)corpus/|\.(png|jpg)$")

FORBIDDEN = [
    (re.compile(r"(?<![\w.$}/-])/(home|work|Users|root|mnt/data)/\w"), "a path of one machine",
     "name it relative to the tree, or take it from an argument"),
    (re.compile(r"\b(pythonhosted\.org|pypi\.org|deb\.debian\.org|proxy\.golang\.org)\b"),
     "the host of a package registry", "name the package; the user's configuration names the host"),
    (re.compile(r"^(<{7}|>{7}) "), "a conflict marker", "resolve it"),
]
# A poll of nothing for less than 10 ms is the step of a loop that checks a condition.
SLEEP = re.compile(r"\b((sleep|usleep|nanosleep|sleep_for|sleep_until)\s*\("
                   r"|poll\((nullptr|NULL), 0, (?!\d\)))")
# If waiting itself is the purpose (a GPU's latency, a poll of a growing step), the line must say
# so.
SLEEP_IS_MEANT = "// sleep:"


def tree_files():
    """Tracked files and new ones that git does not ignore."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                           check=True, capture_output=True).stdout.decode().split("\0")
    return sorted(name for name in set(names) if name and (ROOT / name).is_file())


def check_text(name, lines):
    for number, line in enumerate(lines, 1):
        if name == "tests/repo_check.py":
            break
        for pattern, what, remedy in FORBIDDEN:
            if pattern.search(line):
                yield f"{name}:{number}: {what}: {remedy}"
        if line != line.rstrip() and pathlib.Path(name).suffix in CODE - {""}:
            yield f"{name}:{number}: space at the end of the line: remove it"


def check_header(name, lines):
    if not name.endswith((".h", ".hpp")):
        return
    text = "\n".join(lines)
    if "#pragma once" not in text and not re.search(r"^#ifndef \w+_H\w*_$", text, re.MULTILINE):
        yield f"{name}: no #pragma once"
    if lines and not lines[0].startswith(("//", "/*")):
        yield f"{name}:1: a header must begin with a comment: say what it promises"


def check_public_header(name, lines):
    if name != "runtime/include/gpushm/gpushm.h":
        return
    for number, line in enumerate(lines, 1):
        if line.startswith("GPUSHM_API") and not lines[number - 2].rstrip().endswith("*/"):
            yield f"{name}:{number}: a public function lacks a comment: write its contract"


C_HEADER = re.compile(r"runtime/include/gpushm/\w+\.h")
# Members of options that can only be 0 so far, and the size, which detail::Sized sets.
RESERVED = re.compile(r"struct_size|reserved\d*|gpu|type")


def lacking_in_cpp(c_header, cpp_headers):
    """Functions and members of options of a C header that the C++ headers do not use."""
    text = re.sub(r"/\*.*?\*/", "", c_header, flags=re.DOTALL)
    for function in re.findall(r"^GPUSHM_API\b[^;(]*\b(gpushm_\w+)\(", text, re.MULTILINE):
        if not re.search(rf"\b{function}\b", cpp_headers):
            yield function
    for members, options in re.findall(r"^typedef struct \w+ \{([^}]*)\} (\w+_options);", text,
                                       re.MULTILINE):
        for member in re.findall(r"(\w+)(?:\[\w+\])?;", members):
            if not RESERVED.fullmatch(member) and not re.search(rf"\.{member} = ", cpp_headers):
                yield f"{options}.{member}"


def check_cpp_headers(name, lines):
    if not C_HEADER.fullmatch(name):
        return
    cpp = "\n".join(path.read_text() for path in (ROOT / name).parent.glob("*.hpp"))
    for lacking in lacking_in_cpp("\n".join(lines), cpp):
        yield f"{name}: the C++ headers lack {lacking}: add it there"


def check_sleep(name, lines):
    if not name.endswith("_test.cc") and not re.match(r"tests/(?!demo/|bench/).*\.(cc|c|h)$", name):
        return
    for number, line in enumerate(lines, 1):
        if SLEEP.search(line.split("//")[0]) and SLEEP_IS_MEANT not in line:
            yield (f"{name}:{number}: a test sleeps: wait for an event with a deadline, or say "
                   f"why in the line, after '{SLEEP_IS_MEANT}'")


def check_tree_in_program(name, lines):
    """A test with the tree's path compiled in fails in a pack, on a machine without the tree."""
    if not name.endswith("CMakeLists.txt"):
        return
    for command in re.finditer(r"compile_(definitions|options)\([^)]*SOURCE_DIR", "\n".join(lines)):
        number = command.string.count("\n", 0, command.end()) + 1
        yield (f"{name}:{number}: the path of the tree in a program: give it to the test in ENV or "
               "COMMAND, where a pack finds it, or label the test `tree`")


CHECKS = [check_text, check_header, check_public_header, check_cpp_headers, check_sleep,
          check_tree_in_program]


def check_file(name):
    data = (ROOT / name).read_bytes()
    if BINARY_IS_FINE.search(name):
        return
    if b"\0" in data:
        yield f"{name}: a binary file: generate it in build/ instead"
        return
    lines = data.decode(errors="replace").splitlines()
    for check in CHECKS:
        yield from check(name, lines)


def main():
    names = tree_files()
    breaches = [breach for name in names for breach in check_file(name)]
    breaches += rooms_check.check(names)
    breaches += words_check.check(names)
    breaches += events_check.check()
    breaches += measured_check.check()
    breaches += workflows_check.check()
    print("\n".join(breaches + [f"repo_check: {len(names)} files, {len(breaches)} breaches"]))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
