"""The metrics that plugin and injector export, from the tables of their documentation:
docs/reference/metrics.md is made from the code."""

import re
from typing import NamedTuple

ROW = re.compile(r"^\| `(?P<name>[a-z_]+)` \| (?P<kind>gauge|counter|histogram|info) \|"
                 r"\s*(?P<labels>[a-z_, ]*?)\s*\| (?P<help>.*) \|$", re.MULTILINE)


class Metric(NamedTuple):
    kind: str
    labels: tuple
    help: str


def read(path):
    """{name: Metric} of the Markdown table in a file."""
    found = {}
    for row in ROW.finditer(path.read_text(encoding="utf-8")):
        labels = tuple(re.findall(r"[a-z_]+", row["labels"]))
        found[row["name"]] = Metric(row["kind"], labels, row["help"])
    return found


def catalogues(root):
    return {"gpushm-plugin": read(root / "docs/reference/metrics.md"),
            "gpushm-injector": read(root / "docs/design/injector.md")}


def series_of(name, metric):
    """The names that Prometheus stores."""
    parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
    return [name + part for part in parts]
