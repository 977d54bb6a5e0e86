"""Writes into docs/reference/compatibility.md which interfaces are stable and which experimental.

usage: promise.py [--check]       `./run docs` calls it, and `./run lint` with --check

The class stands where the thing is defined, as the word "Experimental" in its comment or its row.
Of events only some are promised, so there the word is "Stable". Rows of keys and metrics have it
from the tables of the code, and the rows of the chart's README from its values.yaml.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = "docs/reference/compatibility.md"
BEGIN, END = "<!-- promise -->\n", "<!-- end promise -->\n"
FUNCTION = re.compile(r"/\*((?:(?!\*/).)*)\*/\s*GPUSHM_API\b[^;(]*\b(gpushm_\w+)\(", re.DOTALL)
ROW = re.compile(r"^\| (`[^|]*?`) \|(.*)$", re.MULTILINE)


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def functions():
    for header in sorted((ROOT / "runtime/include/gpushm").glob("*.h")):
        for comment, name in FUNCTION.findall(header.read_text(encoding="utf-8")):
            yield name, "Experimental" not in comment


def rows(name, begin, end, word="Experimental"):
    """(first cell, whether stable) of each row between the two texts of a document."""
    part = read(name).partition(begin)[2].partition(end)[0]
    for cell, rest in ROW.findall(part.replace("\\|", "/")):
        for each in re.findall(r"`([^`]*)`", cell):
            yield each, (word in rest) == (word == "Stable")


def table(document, name):
    return rows(f"docs/reference/{document}.md", f"<!-- table {name} -->", "<!-- end -->")


def gpushmctl(begin, end, name="[a-z]+( [a-z]+)*( --node)?"):
    for cell, stable in rows("docs/reference/gpushmctl.md", begin, end):
        yield re.match(name, cell)[0], stable


def values():
    for name, row in re.findall(r"^\| ([\w.]+) \| [a-z]+ \| (.*)$", read("helm/gpushm/README.md"),
                                re.MULTILINE):
        yield name, "Experimental" not in row


def alerts():
    for name, comment in re.findall(r"- alert: (\w+)\n( +# Experimental)?",
                                    read("helm/gpushm/monitoring/rules.yaml")):
        yield name, not comment


def kinds():
    yield "functions of C", functions()
    yield "annotations of pods", table("annotations", "annotations")
    yield "keys of a buffer", table("annotations", "buffer")
    yield "keys of a signal", table("annotations", "signal")
    yield "keys of the broker's file", table("annotations", "broker")
    yield "keys of the plugin's file", table("plugin-config", "plugin")
    yield "values of the chart", values()
    yield "commands of gpushmctl", gpushmctl("## Commands", "### Global options")
    yield "options of its load and save", gpushmctl("### load and save", "## Exit codes",
                                                    "--[a-z-]+")
    yield "JSON of its commands", gpushmctl("## JSON", "### A buffer")
    yield "metrics of the plugin", table("metrics", "metrics")
    yield "metrics of the injector", rows("docs/design/injector.md", "## Metrics", "## ")
    yield "alerts", alerts()
    yield "events", rows("docs/reference/events.md", "## All events", "## Fields", "Stable")


def text():
    for title, things in kinds():
        classes = {}
        for name, stable in things:
            classes[name] = classes.get(name, False) or stable
        assert classes, f"no {title} found"
        yield f"**{title[0].upper() + title[1:]}**\n\n"
        for word, wanted in (("Stable", True), ("Experimental", False)):
            names = sorted(name for name, stable in classes.items() if stable is wanted)
            listed = ", ".join(f"`{name}`" for name in names)
            if names:
                yield f"- {word}, {len(names)} of {len(classes)}: {listed}\n"
        yield "\n"


def main():
    page = read(PAGE)
    before, _, rest = page.partition(BEGIN)
    made = before + BEGIN + "\n" + "".join(text()) + END + rest.partition(END)[2]
    if "--check" not in sys.argv[1:]:
        (ROOT / PAGE).write_text(made, encoding="utf-8")
    elif made != page:
        sys.exit(f"{PAGE} differs from where the interfaces are defined: run ./run docs")


if __name__ == "__main__":
    main()
