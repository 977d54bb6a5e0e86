"""Compares the numbers of README.md and the guides with the files of docs/benchmarks, by the tables of
docs/benchmarks/measured.md, and requires that a document cites each result that is kept. repo_check.py runs
it, and `./run lint` runs that.

A row of the first table has a number, the page that has it in the same words, the JSON file, and where in
there: keys with ` > ` between them, the number of an item of a list, or `key=value,...` of an item.
A number of microseconds, nanoseconds or bytes per second in README.md or a guide must be in a table, or
its section must have the link to a file.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/benchmarks"
PAGE = FOLDER / "measured.md"
# What others write as a quantity of a measurement. Milliseconds and seconds are often timeouts.
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)? (?:us|ns|GiB/s|GB/s|MiB/s)\b")
FILE_LINK = re.compile(r"benchmarks/[\w.-]+\.(?:json|txt)")
LINK = re.compile(r"\]\(([^)#]+)")
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}


def table(text, name):
    """The rows after `<!-- name -->`, each a list of cells."""
    body = text.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]


def linked(cell):
    return [(FOLDER / target).resolve() for target in LINK.findall(cell)]


def step(value, key):
    if isinstance(value, list):
        if key.isdigit():
            return value[int(key)]
        wanted = dict(pair.split("=", 1) for pair in key.split(","))
        return next(item for item in value if all(str(item.get(k)) == v for k, v in wanted.items()))
    if key not in value and "benchmarks" in value:  # Google Benchmark adds how it ran to a name.
        return next(item for item in value["benchmarks"]
                    if item["name"] == key or item["name"].startswith(f"{key}/iterations:"))
    return value[key]


def shown(number, path, value):
    """The value in the number's unit, with as many decimals."""
    digits, _, unit = number.replace(",", "").partition(" ")
    path, _, named = path.partition(" in ")
    own = path.rpartition("_")[2].rpartition(" ")[2]
    unit = named or unit
    if unit in SECONDS and own in SECONDS:
        value *= SECONDS[own] / SECONDS[unit]
    elif unit == "GiB/s" and path.endswith("MiB_per_s"):
        value /= 1024
    return digits, f"{value:.{len(digits.partition('.')[2])}f}"


def check_row(row):
    what, number, page, file, path = row
    page, = linked(page)
    file, = linked(file)
    if not re.search(rf"(?<![\w.,]){re.escape(number)}(?![\w]|[.,]\d)", page.read_text()):
        yield f"{what}: {page.relative_to(ROOT)} does not have \"{number}\""
    value = json.loads(file.read_text())
    try:
        for key in path.partition(" in ")[0].split(" > "):
            value = step(value, key)
    except (KeyError, IndexError, StopIteration):
        yield f"{what}: {file.name} has no {path}"
        return
    written, measured = shown(number, path, value)
    if float(written) != float(measured):
        yield f"{what}: {page.relative_to(ROOT)} says {number}, and {file.name} has {measured}"


def sections(text):
    return re.split(r"^(?=#+ )", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE),
                    flags=re.MULTILINE)


def unlisted(page, text, listed):
    """Numbers of a page that no table has, in sections without the link to a file."""
    for section in sections(text):
        if not FILE_LINK.search(section):
            for number in NUMBER.findall(section):
                if number not in listed:
                    yield (f"{page}: {number}: add it to docs/benchmarks/measured.md, or give its section "
                           "the link to the file that has it")


def pages():
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/guides/*.md")), *sorted(ROOT.glob("docs/start/*.md"))]


def uncited(text, names):
    """Of the names of kept results, those that a document has no link to. One of docs/platforms is cited as a
    row that begins with its name."""
    cited = {target.rpartition("/")[2] for target in LINK.findall(text)}
    cited.update(name + ".json" for name in re.findall(r"^\| `([\w.-]+)`", text, re.MULTILINE))
    return [name for name in names if name.rpartition("/")[2] not in cited]


def check():
    text = PAGE.read_text()
    rows = table(text, "measured")
    listed = {page: set() for page in pages()}
    for row in rows:
        yield from (f"{PAGE.relative_to(ROOT)}: {breach}" for breach in check_row(row))
        listed[linked(row[2])[0]].add(row[1])
    for _, numbers, where, _ in table(text, "not kept"):
        for page in linked(where):
            listed[page].update(NUMBER.findall(numbers))
    for page, numbers in listed.items():
        yield from unlisted(page.relative_to(ROOT), page.read_text(), numbers)
    for file in sorted(FOLDER.glob("*.json")):
        if f"({file.name})" not in text:
            yield f"{PAGE.relative_to(ROOT)}: it does not say how to repeat {file.name}"
    # To say how to repeat a result is not to cite it.
    documents = [text.split("\n## How to repeat each file")[0], (ROOT / "README.md").read_text()]
    documents += [page.read_text() for page in ROOT.glob("docs/**/*.md") if page != PAGE]
    kept = [str(file.relative_to(ROOT)) for folder in ("benchmarks", "gpu-node", "platforms")
            for file in sorted(ROOT.glob(f"docs/{folder}/*")) if file.suffix in (".json", ".txt")]
    for name in uncited("\n".join(documents), kept):
        yield f"{name}: no document cites this result: link to it where its numbers are, or delete it"


if __name__ == "__main__":
    found = list(check())
    print("\n".join(found))
    sys.exit(1 if found else 0)
