#!/usr/bin/env python3
"""Writes docs/design/conformance.md from two reports of driver_conformance.

  driver_conformance --report real.json                       (on a machine with a GPU)
  GPUSHM_DRIVER=build/dev/driver-sim driver_conformance --report sim.json
  report.py real.json sim.json > docs/design/conformance.md

Exits with 1 when a case passes on one driver and fails on the other.
"""

import json
import re
import sys

RESULT_WORDS = {"pass": "as stated", "fail": "**differs**", "skip": "not run"}


def load(path):
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    return report, {case["name"]: case for case in report["cases"]}


def words(name):
    """ImportAndMapNeedNoContext -> Import and map need no context."""
    text = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|\d+", name))
    return text[:1] + text[1:].lower()


def cell(case):
    if case is None:
        return "absent"
    note = "; ".join(line for line in case["note"].split("\n") if line).replace("|", "\\|")
    return RESULT_WORDS[case["result"]] + (f": {note}" if note else "")


def describe(report):
    return f"{report['device']}, CUDA {report['version'] // 1000}.{report['version'] % 1000 // 10}"


def main(arguments):
    if len(arguments) != 3:
        sys.exit(__doc__)
    real, real_cases = load(arguments[1])
    simulated, simulated_cases = load(arguments[2])
    names = list(real_cases) + [name for name in simulated_cases if name not in real_cases]
    print("# GPU driver behaviour that gpushm relies on\n")
    print("`tests/conformance/report.py` generates this document from two runs of "
          "`driver_conformance`. Each row is a test case. \"As stated\" means that the driver "
          "behaves as the case's name says; what follows is what the driver answered.\n")
    print(f"- real: {describe(real)}, {real['devices']} device(s)")
    print(f"- simulated: {describe(simulated)}, {simulated['devices']} device(s)\n")
    print("| case | real | simulated |\n|---|---|---|")
    differing = 0
    for name in names:
        pair = real_cases.get(name), simulated_cases.get(name)
        results = {case["result"] for case in pair if case is not None}
        differing += results == {"pass", "fail"}
        left, right = cell(pair[0]), cell(pair[1])
        print(f"| {words(name)} | {left} | {'the same' if left == right else right} |")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
