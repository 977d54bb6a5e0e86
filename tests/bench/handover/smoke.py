"""The comparison of hand-over methods, end to end on the simulated driver: smoke.py PROGRAM

Goal: every way hands over the right values, to one consumer and to several. A way that cannot be
measured here gives the reason. A table and a chart can be made from the run. A consumer that reads a
wrong value fails its row. Method: a quick run of the real program, whose JSON goes through the scripts
next to this one.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
RUN_S = 100
HAND_OVERS = 10  # For each way and cell in a quick run.
WAYS = {"gpushm-signal", "gpushm-ring", "gpushm-held", "raw-held", "cuipc-events", "gpushm-new",
        "gpushm-offer", "raw-new", "cuipc-open", "pinned", "pageable"}


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def check_rows(rows):
    measured = {(row["peers"], row["way"]) for row in rows if "p50_ns" in row}
    check(measured == {(peers, way) for peers in (1, 3) for way in WAYS},
          f"measured were {sorted(measured)}")
    for row in rows:
        if "p50_ns" in row:
            check(row["n"] == HAND_OVERS and 0 < row["p50_ns"] <= row["p99_ns"], row)
            check(all(row["ratios"][of] > 0 for of in ("gpushm-ring", "gpushm-new", "raw-held")), row)
        else:
            check(row["left_out"] and row["error_message"].startswith("left out: "), row)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        results, chart = f"{folder}/results.json", f"{folder}/chart.svg"
        subprocess.run([program, "--quick", f"--benchmark_out={results}"], check=True,
                       timeout=RUN_S)
        check_rows(json.loads(pathlib.Path(results).read_text())["benchmarks"])
        table = subprocess.run([sys.executable, HERE / "table.py", results], check=True,
                               capture_output=True, text=True).stdout
        for way in WAYS | {"torch"}:
            check(f"(`{way}`)" in table, f"the table lacks {way}")
        subprocess.run([sys.executable, HERE / "chart.py", results, chart], check=True)
        drawn = {path.get("class").split()[0]
                 for path in ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}path")}
        check(drawn == WAYS, f"the chart shows {sorted(drawn)}")
    print("ok")


if __name__ == "__main__":
    main()
