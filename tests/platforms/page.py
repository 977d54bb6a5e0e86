"""Writes the tables of platforms from their rows; `./run docs` runs it. --check: only compares."""

import re
import sys

from platforms import PLATFORMS
from run import ROOT, row_of

TABLE = re.compile(r"(<!-- platforms -->\n).*?(<!-- end of platforms -->)", re.DOTALL)


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def versions(row):
    known = row["versions"]
    return cell(", ".join(f"{name} {value}" for name, value in known.items()
                          if not (name == "kubelet" and value == known.get("Kubernetes"))))


def short_table():
    """What README shows."""
    yield "| platform | tried | cases | date |\n|---|---|---|---|\n"
    for platform in PLATFORMS:
        row = row_of(platform.name) or {}
        yield (f"| {cell(platform.what)} (`{platform.name}`) | {row.get('result', 'not yet')} "
               f"| {row.get('passed') or ''} | {row.get('date', '')} |\n")


def long_table():
    yield ("| `./run test platforms ..` | what | versions | tried | passed | minutes | date "
           "| commit |\n|---|---|---|---|---|---|---|---|\n")
    for platform in PLATFORMS:
        row = row_of(platform.name)
        if row is None:
            yield f"| `{platform.name}` | {cell(platform.what)} | | not yet | | | | |\n"
            continue
        yield (f"| `{row['name']}` | {cell(platform.what)} | {versions(row)} | {row['result']} "
               f"| {row['passed'] if row['passed'] is not None else ''} "
               f"| {-(-row['seconds'] // 60)} | {row['date']} | {row['commit']} |\n")
    for platform in PLATFORMS:
        row = row_of(platform.name) or {}
        if "why" in row:
            yield f"\n`{platform.name}` is a no: `{row['why'].replace('`', chr(39))}`\n"


def filled(text, table):
    new, number = TABLE.subn(lambda found: found[1] + "".join(table) + found[2], text)
    assert number == 1, f"{number} places for a table, not one"
    return new


def main():
    check = sys.argv[1:] == ["--check"]
    status = 0
    for name, table in (("README.md", short_table), ("docs/reference/platforms.md", long_table)):
        path = ROOT / name
        text = path.read_text()
        new = filled(text, table())
        if new == text:
            continue
        if check:
            status = 1
            print(f"{name} differs from the rows in docs/platforms: run ./run docs")
        else:
            path.write_text(new)
    return status


if __name__ == "__main__":
    sys.exit(main())
