"""Prints a table of Google Benchmark results: report.py [--markdown | --json] JSON ...

--json merges the results into one file for docs/benchmarks: all rows, and the part of the context that
a reader needs to judge them.

A benchmark describes its row by counters; each may be missing:
  p50_ns, p99_ns, n                  gpushm's times, and the number of samples
  baseline_p50_ns, baseline_p99_ns   the baseline's times, from the same run
  ratio                              gpushm / baseline (otherwise computed from the p50s)
  budget_p50_ns, budget_p99_ns, budget_ratio (at most), budget_speedup (baseline / gpushm, at least)
  value_bytes, budget_bytes          for rows that are a size, not a time
Other counters that end in _bytes, _count or _per_s, and other p50 or p99 values, are listed after
the row. Without counters the row shows the benchmark's own mean time.
"""

import argparse
import json
import pathlib

UNIT_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
HEAD = ["benchmark", "p50", "p99", "n", "baseline p50", "p99", "ratio", "budget", "verdict"]
CONTEXT = ("gpu", "driver", "cuda", "simulated", "machine", "kernel", "date")
SHOWN = {"p50_ns", "p99_ns", "baseline_p50_ns", "baseline_p99_ns", "value_bytes"}


def human(ns):
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.1f} ns"


def human_bytes(value):
    return f"{value / 2**20:.1f} MiB"


def ratio_of(row):
    if "ratio" in row:
        return row["ratio"]
    if row.get("baseline_p50_ns") and row.get("p50_ns"):
        return row["p50_ns"] / row["baseline_p50_ns"]
    return None


def judge(row):
    """Returns (budget, verdict) as text; ("-", "") if the benchmark has no budget."""
    ratio = ratio_of(row)
    rules = [(f"p50 <= {human(row.get('budget_p50_ns'))}", row.get("p50_ns"),
              row.get("budget_p50_ns")),
             (f"p99 <= {human(row.get('budget_p99_ns'))}", row.get("p99_ns"),
              row.get("budget_p99_ns")),
             (f"<= {row.get('budget_ratio', 0):g} x", ratio, row.get("budget_ratio")),
             (f"<= {human_bytes(row.get('budget_bytes', 0))}", row.get("value_bytes"),
              row.get("budget_bytes"))]
    if row.get("budget_speedup"):
        rules.append((f">= {row['budget_speedup']:g} x faster", ratio, 1 / row["budget_speedup"]))
    applied = [(text, value, limit) for text, value, limit in rules if limit is not None]
    if not applied:
        return "-", ""
    known = [value <= limit for _, value, limit in applied if value is not None]
    verdict = "?" if len(known) < len(applied) else "ok" if all(known) else "MISSED"
    return ", ".join(text for text, _, _ in applied), verdict


def extras(row):
    """The row's other counters, as text."""
    for key in sorted(set(row) - SHOWN):
        name, value = key.rsplit("_", 1)[0], row[key]
        if key.startswith("budget_") or not isinstance(value, (int, float)):
            continue
        if key.endswith("_bytes"):
            yield f"{name} {human_bytes(value)}"
        elif key.endswith(("_p50_ns", "_p99_ns")):
            yield f"{name} {human(value)}"
        elif key.endswith("_per_s"):
            yield f"{value:.0f} {name.removesuffix('_per')}/s"
        elif key.endswith("_count"):
            yield f"{name} {value:g}"


def row_name(row):
    """Removes what Google Benchmark adds to the name about the run."""
    parts = row["name"].split("/")
    return "/".join(p for p in parts if not p.startswith("iterations:") and p != "manual_time")


def rows_of(results):
    for row in results.get("benchmarks", []):
        if row.get("run_type") == "aggregate" and row.get("aggregate_name") != "median":
            continue
        if row.get("error_occurred"):
            yield [row_name(row), *["-"] * 7, row.get("error_message", "failed")]
            continue
        mean_ns = row.get("real_time", 0) * UNIT_NS.get(row.get("time_unit", "ns"), 1)
        if "value_bytes" in row:
            p50 = human_bytes(row["value_bytes"])
        else:
            p50 = human(row["p50_ns"]) if "p50_ns" in row else human(mean_ns) + " mean"
        ratio = ratio_of(row)
        budget, verdict = judge(row)
        yield [row_name(row), p50, human(row.get("p99_ns")),
               f"{row['n']:.0f}" if "n" in row else "-", human(row.get("baseline_p50_ns")),
               human(row.get("baseline_p99_ns")), "-" if ratio is None else f"{ratio:.3g}", budget,
               "; ".join(filter(None, [verdict, row.get("label", ""), *extras(row)]))]


def print_text(head, rows):
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def print_markdown(head, rows):
    print("|" + "|".join(head) + "|\n|" + "---|" * len(head))
    for row in rows:
        print("|" + "|".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true")
    form.add_argument("--json", action="store_true")
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    context, rows, benchmarks = {}, [], []
    for path in arguments.results:
        try:
            results = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            rows.append([path.stem, *["-"] * 7, f"unreadable: {error}"])
            continue
        if len(results.get("context", {})) >= len(context):  # The context that names the GPU.
            context = results.get("context", {})
        rows += rows_of(results)
        benchmarks += results.get("benchmarks", [])
    if arguments.json:
        facts = {key: context[key] for key in CONTEXT if key in context}
        print(json.dumps({"context": facts, "benchmarks": benchmarks}, indent=1))
        return
    facts = [f"{key}: {context[key]}" for key in CONTEXT if key in context]
    print(", ".join(facts) + "\n" if facts else "")
    (print_markdown if arguments.markdown else print_text)(HEAD, rows)


if __name__ == "__main__":
    main()
