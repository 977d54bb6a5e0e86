"""Prints a table of Google Benchmark results: report.py JSON ...

A benchmark describes its row by counters; each may be missing:
  p50_ns, p99_ns                     ours
  baseline_p50_ns, baseline_p99_ns   what it is measured against, in the same run
  ratio                              ours / baseline (else computed from the p50s)
  budget_p50_ns, budget_p99_ns, budget_ratio (at most), budget_speedup (baseline / ours, at least)
Other counters that end in _bytes or _count are listed behind the row. Without counters the row shows
the benchmark's own mean time.
"""

import json
import pathlib
import sys

UNIT_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def human(ns):
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.1f} ns"


def ratio_of(row):
    if "ratio" in row:
        return row["ratio"]
    if row.get("baseline_p50_ns") and row.get("p50_ns"):
        return row["p50_ns"] / row["baseline_p50_ns"]
    return None


def judge(row):
    """(budget, verdict) in words; ("-", "") where the benchmark names none."""
    ratio = ratio_of(row)
    rules = [(f"p50 <= {human(row.get('budget_p50_ns'))}", row.get("p50_ns"),
              row.get("budget_p50_ns")),
             (f"p99 <= {human(row.get('budget_p99_ns'))}", row.get("p99_ns"),
              row.get("budget_p99_ns")),
             (f"<= {row.get('budget_ratio', 0):g} x", ratio, row.get("budget_ratio"))]
    if row.get("budget_speedup"):
        rules.append((f">= {row['budget_speedup']:g} x faster", ratio, 1 / row["budget_speedup"]))
    applied = [(text, value, limit) for text, value, limit in rules if limit is not None]
    if not applied:
        return "-", ""
    known = [value <= limit for _, value, limit in applied if value is not None]
    verdict = "?" if len(known) < len(applied) else "ok" if all(known) else "MISSED"
    return ", ".join(text for text, _, _ in applied), verdict


def rows_of(path):
    results = json.loads(path.read_text())
    for row in results.get("benchmarks", []):
        if row.get("run_type") == "aggregate" and row.get("aggregate_name") != "median":
            continue
        if row.get("error_occurred"):
            yield [row["name"], "-", "-", "-", "-", "-", row.get("error_message", "failed")]
            continue
        mean_ns = row.get("real_time", 0) * UNIT_NS.get(row.get("time_unit", "ns"), 1)
        p50 = human(row["p50_ns"]) if "p50_ns" in row else human(mean_ns) + " mean"
        ratio = ratio_of(row)
        budget, verdict = judge(row)
        extra = [f"{key}={row[key]:g}" for key in sorted(row) if key.endswith(("_bytes", "_count"))]
        yield [row["name"], p50, human(row.get("p99_ns")), human(row.get("baseline_p50_ns")),
               "-" if ratio is None else f"{ratio:.3g}", budget,
               " ".join([verdict, row.get("label", ""), *extra]).strip()]


def main():
    table = [["benchmark", "p50", "p99", "baseline p50", "ratio", "budget", "verdict"]]
    for name in sys.argv[1:]:
        try:
            table += rows_of(pathlib.Path(name))
        except (OSError, ValueError) as error:
            table.append([pathlib.Path(name).stem, "-", "-", "-", "-", "-", f"unreadable: {error}"])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    main()
