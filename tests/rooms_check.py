"""The rooms of the tree: cmake/rooms.txt says which there are, and each file keeps to its room's row.
repo_check.py runs this, and `./run lint` runs that.

    tests/rooms_check.py --write    makes the tables of docs/design/architecture.md from rooms.txt
"""

import pathlib
import re
import sys
from collections import namedtuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = "cmake/rooms.txt"
PAGE = "docs/design/architecture.md"
CODE = {".cc", ".c", ".cu", ".h", ".hpp", ".py"}
# What belongs to the folder above.
INNER = re.compile(r"/(testing|corpus)(/.*)?$")

Room = namedtuple("Room", "folder all_below namespaces uses runs_in holds")


def rooms_in(text):
    rooms = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        folder, namespaces, uses, runs_in, holds = [cell.strip() for cell in line.split("|")]
        rooms.append(Room(folder.removesuffix("/**"), folder.endswith("/**"), namespaces.split(),
                          uses.split(), runs_in, holds))
    return rooms


def read():
    return rooms_in((ROOT / TABLE).read_text())


def rooms_of(name, rooms):
    """The rooms that claim a file. There should be one."""
    folder = INNER.sub("", name.rpartition("/")[0])
    return [room for room in rooms
            if folder == room.folder or room.all_below and is_below(folder, room.folder)]


def is_below(name, folder):
    return name == folder or name.startswith(folder + "/")


def check_files(names, rooms):
    """Each file with code is in one room, and each room that is named has files."""
    lacking = set()
    for name in names:
        if pathlib.PurePosixPath(name).suffix not in CODE:
            continue
        claims = rooms_of(name, rooms)
        if len(claims) > 1:
            yield (f"{name}: {' and '.join(room.folder + '/' for room in claims)} both claim it: "
                   f"let one row of {TABLE} name it")
        elif not claims:
            lacking.add(INNER.sub("", name.rpartition("/")[0]))
    for folder in sorted(lacking):
        yield (f"{folder}/ has code and no row in {TABLE}: add what it may use and what it holds, or "
               "move the code")
    for room in rooms:
        if not any(is_below(name, room.folder) for name in names):
            yield f"{TABLE}: {room.folder}/ does not exist: remove its row"
        for used in room.uses:
            if used not in ("-", "all") and not any(is_below(r.folder, used) for r in rooms):
                yield f"{TABLE}: {room.folder}/ may use {used}, which is no room"


def check_includes(name, lines, rooms):
    claims = rooms_of(name, rooms)
    if len(claims) != 1 or "all" in claims[0].uses:
        return
    room, = claims
    for number, line in enumerate(lines, 1):
        found = re.match(r'#include "([^"]+)"', line)
        if not found:
            continue
        for used in rooms_of(found[1], rooms):
            if used != room and not any(is_below(used.folder, other) for other in room.uses):
                yield (f"{name}:{number}: {room.folder}/ may not include {found[1]}: only "
                       f"{', '.join(use for use in room.uses if use != '-') or 'itself'} "
                       f"({TABLE}); move what both need to contract/ or platform/")


def check_namespaces(name, lines, rooms):
    claims = rooms_of(name, rooms)
    if len(claims) != 1 or claims[0].namespaces == ["-"]:
        return
    allowed = {space + end for space in claims[0].namespaces for end in ("", "::testing")}
    for number, line in enumerate(lines, 1):
        found = re.match(r"(?:inline )?namespace (gpushm[\w:]*) \{", line)
        if found and found[1] not in allowed:
            yield (f"{name}:{number}: namespace {found[1]} in {claims[0].folder}/, whose namespace "
                   f"is {', '.join(claims[0].namespaces)} ({TABLE})")


def tables(rooms):
    """The tables of the page, by the name of their marker."""
    def folder(room):
        return f"`{room.folder}`"
    holds = ["| folder | contents | runs in |", "|---|---|---|"]
    holds += [f"| {folder(room)} | {room.holds} | {'' if room.runs_in == '-' else room.runs_in} |"
              for room in rooms]
    by_use = {}
    for room in rooms:
        if room.runs_in != "-":
            by_use.setdefault(tuple(room.uses), []).append(room)
    uses = ["| rooms | may use |", "|---|---|"]
    for used, users in by_use.items():
        names = ", ".join(f"`{use}`" for use in used if use != "-")
        uses.append(f"| {', '.join(map(folder, users))} | {names or 'nothing else'} |")
    return {"rooms": holds, "uses": uses}


def with_tables(page, rooms):
    for name, lines in tables(rooms).items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"{PAGE} lacks {begin} and {end}")
        text = "\n".join(lines)
        page = f"{page.split(begin)[0]}{begin}\n{text}\n{end}{page.split(end)[1]}"
    return page


def check_page(page, rooms):
    if with_tables(page, rooms) != page:
        yield f"{PAGE}: its tables differ from {TABLE}: run tests/rooms_check.py --write"


def check(names):
    """All checks of all files."""
    rooms = read()
    yield from check_files(names, rooms)
    yield from check_page((ROOT / PAGE).read_text(), rooms)
    for name in names:
        if pathlib.PurePosixPath(name).suffix in CODE - {".py"}:
            lines = (ROOT / name).read_text(errors="replace").splitlines()
            yield from check_includes(name, lines, rooms)
            yield from check_namespaces(name, lines, rooms)


def main(arguments):
    if arguments != ["--write"]:
        sys.exit(__doc__)
    page = ROOT / PAGE
    page.write_text(with_tables(page.read_text(), read()))


if __name__ == "__main__":
    main(sys.argv[1:])
