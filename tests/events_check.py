"""Compares docs/reference/events.md with the sources: which daemon logs which event, at which
level, with which fields. repo_check.py runs it, and `./run lint` runs that. Alone, it prints what
it finds.

Events and fields are literals at the calls of platform/daemon/log.h, so that grep finds them. This
reads the calls, and the two tables of the document, and compares them both ways.
"""

import collections
import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/reference/events.md"
DAEMONS = {"plugin/": ["plugin"], "sidecar/broker/": ["broker"], "sidecar/injector/": ["injector"],
           "sidecar/mps/": ["mps"], "platform/daemon/http_": ["plugin", "injector"]}
NO_DAEMON = re.compile(r"_(test|bench|fuzz)\.cc$|/testing/|^platform/daemon/log\.")
CALL = re.compile(r"\bLog(Info|Warning|Error)?\(")
EVENT = re.compile(r"[a-z]+(-[a-z]+)*")
FIELD = re.compile(r"[a-z]+(_[a-z]+)*")
# Numbers without a unit are counts or identifiers. A number with one of these units must end in it.
UNIT = re.compile(r"(size|time|duration|interval|age|expires|timeout)$")
EVERY_LINE = {"suppressed", "lost_lines"}  # Added by the log itself.

Entry = collections.namedtuple("Entry", "where level fields")


def arguments(text, at):
    """The call's arguments; `at` is the position after its parenthesis."""
    depth, start = 1, at
    while depth:
        if text[at] == '"':
            at = re.compile(r'"(\\.|[^"\\])*"').match(text, at).end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[start:at - 1]


def calls(name, text):
    """Yields (line, level, events, fields) of each call of the log."""
    for call in CALL.finditer(text):
        said = arguments(text, call.end())
        first, brace, rest = said.partition("{")
        if not brace or not call[1] and '"' not in first:
            continue  # Another function of that name.
        events = re.findall(r'"([^"]*)"', first)
        fields = re.findall(r'\{\s*"([^"]*)"\s*,', brace + rest)
        yield text.count("\n", 0, call.start()) + 1, (call[1] or "any").lower(), events, fields


def logged():
    """({(event, daemon): Entry}, breaches) of the sources."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.cc", "*.h"], cwd=ROOT,
                           check=True, capture_output=True, text=True).stdout.split()
    found, breaches = {}, []
    for name in sorted(set(names)):
        path = ROOT / name
        if NO_DAEMON.search(name) or not path.is_file():
            continue
        daemons = next((d for folder, d in DAEMONS.items() if name.startswith(folder)), [])
        for line, level, events, fields in calls(name, path.read_text()):
            where = f"{name}:{line}"
            if not events or not daemons:
                breaches.append(f"{where}: an event that {PAGE} cannot list: write its name as a "
                                "literal, in the folder of a daemon")
            breaches += [f"{where}: event \"{e}\": name it in-lower-case-and-dashes"
                         for e in events if not EVENT.fullmatch(e)]
            breaches += [f"{where}: field \"{f}\": name it in_lower_case, with its unit at the end"
                         for f in fields if not FIELD.fullmatch(f) or UNIT.search(f)]
            for event, daemon in itertools.product(events, daemons):
                former = found.setdefault((event, daemon), Entry(where, level, set()))
                former.fields.update(fields)
                if former.level != level:
                    breaches.append(f"{where}: event \"{event}\" is {level} here and "
                                    f"{former.level} at {former.where}: use the same level")
    return found, breaches


def table(lines, heading):
    """Yields (line number, cells) of the rows of the table under `heading`."""
    inside = False
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            inside = line.strip("# ") == heading
        elif inside and line.startswith("| `"):
            yield number, [cell.strip() for cell in line.strip().strip("|").split("|")]


def documented(lines):
    """({(event, daemon): Entry}, {field: where}, breaches) of the document."""
    rows, fields, breaches = {}, {}, []
    for heading, columns in (("All events", 5), ("Fields", 3)):
        names = []
        for number, cells in table(lines, heading):
            where = f"{PAGE}:{number}"
            if len(cells) != columns:
                breaches.append(f"{where}: {len(cells)} cells: must be {columns}")
                continue
            names.append(cells[0].strip("`"))
            if names[-1] < max(names):
                breaches.append(f"{where}: {names[-1]} comes after {max(names)}: sort the rows")
            if columns == 3:
                fields[names[-1]] = where
                continue
            for daemon in cells[2].split(", "):
                if (names[-1], daemon) in rows:
                    breaches.append(f"{where}: a second row of {names[-1]} for the {daemon}")
                rows[names[-1], daemon] = Entry(where, cells[1],
                                                set(re.findall(r"`(\w+)`", cells[3])))
    return rows, fields, breaches


def quoted(names):
    return ", ".join(f"`{name}`" for name in sorted(names))


def check():
    """Yields one line for each difference, with what to do about it."""
    found, breaches = logged()
    rows, fields, more = documented((ROOT / PAGE).read_text().splitlines())
    yield from breaches + more
    for (event, daemon), entry in sorted(found.items()):
        row = rows.get((event, daemon))
        if row is None:
            yield (f"{entry.where}: {PAGE} lacks this event; add to its table: | `{event}` | "
                   f"{entry.level} | {daemon} | {quoted(entry.fields)} | meaning, what to do |")
            continue
        if row.level != entry.level:
            yield f"{row.where}: `{event}` is {entry.level} at {entry.where}: correct the level"
        for what, names in (("add", entry.fields - row.fields), ("remove", row.fields - entry.fields)):
            if names:
                yield (f"{row.where}: `{event}` of the {daemon}: {what} {quoted(names)} "
                       f"(see {entry.where})")
    for event, daemon in sorted(rows.keys() - found.keys()):
        yield (f"{rows[event, daemon].where}: the {daemon} does not log `{event}` any more: "
               "remove it there")
    used = EVERY_LINE.union(*(entry.fields for entry in found.values()))
    for field in sorted(used - fields.keys()):
        yield f"{PAGE}: the field `{field}` has no row under Fields: add | `{field}` | unit | meaning |"
    for field in sorted(fields.keys() - used):
        yield f"{fields[field]}: no event has the field `{field}`: remove it"


if __name__ == "__main__":
    differences = list(check())
    print("\n".join(differences + [f"events_check: {len(differences)} differences"]))
    sys.exit(1 if differences else 0)
