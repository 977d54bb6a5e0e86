"""Prints bench_handover's JSON as Markdown tables, one for each cell: table.py JSON

Ratios compare p50s in the same cell. "signal / ring / new" compares with gpushm's time by a signal, by
a ring, and with memory that is new to the consumer. "held / new" compares with the raw driver's time
with memory that the consumer holds, and with new memory.
"""

import json
import pathlib
import sys

CONTEXT = ("gpu", "driver", "cuda", "simulated", "machine", "kernel", "date")
HEAD = ["way", "p50", "p99", "n", "before", "after", "of gpushm signal / ring / new",
        "of raw held / new"]
LEAST_FOR_P99 = 100  # With fewer samples, the p99 is the longest one.


def human(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.2f} {unit}" if ns < 100 * size else f"{ns / size:.0f} {unit}"
    return f"{ns:.0f} ns"


def ratio(row, reference):
    value = row.get("ratios", {}).get(reference)
    return "-" if value is None else f"{value:.3g}"


def cells_of(rows):
    """Returns {cell's name: its rows}, in the order of the run."""
    cells = {}
    for row in rows:
        cells.setdefault(row["name"].rpartition("/")[0], []).append(row)
    return cells


def line(row):
    title = f"{row['label']} (`{row['way']}`)"
    if row.get("error_occurred"):
        return [title, row["error_message"], *["-"] * (len(HEAD) - 2)]
    p99 = human(row["p99_ns"])
    return [title, human(row["p50_ns"]), p99 if row["n"] >= LEAST_FOR_P99 else f"max {p99}",
            str(row["n"]), human(row["before_p50_ns"]), human(row["after_p50_ns"]),
            " / ".join(ratio(row, f"gpushm-{of}") for of in ("signal", "ring", "new")),
            f"{ratio(row, 'raw-held')} / {ratio(row, 'raw-new')}"]


def table(rows):
    """The lines of one cell; a single line if all of it was skipped for one reason."""
    reasons = {row.get("error_message") for row in rows}
    if len(reasons) == 1 and None not in reasons:
        yield reasons.pop()
        return
    yield "|" + "|".join(HEAD) + "|"
    yield "|" + "---|" * len(HEAD)
    for row in rows:
        yield "|" + "|".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line(row)) + "|"


def main():
    results = json.loads(pathlib.Path(sys.argv[1]).read_text())
    context = results["context"]
    print(", ".join(f"{key}: {context[key]}" for key in CONTEXT if key in context))
    for name, rows in cells_of(results["benchmarks"]).items():
        print(f"\n### {name.partition('/')[2]}\n")
        print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
