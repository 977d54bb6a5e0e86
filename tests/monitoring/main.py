"""The program that `run` starts; see there.

usage: main.py --prometheus FOLDER --helm PROGRAM --work FOLDER [--seed N]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import yaml

import catalogue
import lint
import live
from page import render
from load import make

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ["prometheusRule.enabled=true", "prometheusRule.disabled=[]"]


def monitors(kind):
    """The chart's values for monitors that also name the cluster."""
    relabelings = json.dumps([{"targetLabel": "cluster", "replacement": live.CLUSTER}])
    return [f"{kind}.enabled=true", f"{kind}.relabelings={relabelings}"]


def rendered(helm, values):
    command = [helm, "template", "gpushm", ROOT / "helm/gpushm", "--namespace", "gpushm-system",
               "--kube-version", "1.33", "--no-hooks",
               "--set", "global.imageRegistry=registry.invalid"]
    for value in values:
        command += ["--set-json", f"metrics.{value}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [o for o in yaml.safe_load_all(text) if o]


def promtool(program, *arguments, **more):
    """Prints promtool's output if it finds errors."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, **more)
    said = (done.stdout + done.stderr).strip()
    return [] if done.returncode == 0 else [f"promtool {arguments[0]} {arguments[1]}: {said}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prometheus", type=pathlib.Path, required=True)
    parser.add_argument("--helm", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    options.work = options.work.resolve()  # Prometheus resolves paths from its configuration.
    tool, work = options.prometheus / "promtool", options.work
    dashboards = [json.loads(path.read_text(encoding="utf-8"))
                  for path in sorted((ROOT / "deploy/grafana").glob("*.json"))]
    catalogues = catalogue.catalogues(ROOT)
    objects = rendered(options.helm, RULES + monitors("serviceMonitor"))
    rules = next(o["spec"] for o in objects if o["kind"] == "PrometheusRule")
    rules_path = work / "rules.yaml"
    rules_path.write_text(yaml.safe_dump(rules, width=1000), encoding="utf-8")
    tests = ROOT / "tests/monitoring/rules_test.yaml"
    (work / tests.name).write_text(tests.read_text(encoding="utf-8"), encoding="utf-8")

    wrong = lint.check(ROOT, dashboards, rules, catalogues, tests, work)
    wrong += promtool(tool, "check", "rules", rules_path)
    wrong += promtool(tool, "test", "rules", work / tests.name)
    load = make(options.seed, time.time())
    for target in sorted({(s.job, s.instance) for s in load.samples}):
        page = render(load, target, catalogues[target[0]], 0)
        wrong += promtool(tool, "check", "metrics", input=page)
    queries, alerts, bad = live.run(options.prometheus / "prometheus", work / "live", options.seed,
                                    catalogues, objects, rules_path, rules, dashboards)
    wrong += bad
    prometheus = options.prometheus / "prometheus"
    plain = yaml.safe_load((ROOT / "deploy/prometheus/scrape.yaml").read_text(encoding="utf-8"))
    for name, more, scrapes in (
            ("PodMonitor", rendered(options.helm, monitors("podMonitor")), None),
            ("scrape.yaml", objects, plain["scrape_configs"])):
        wrong += [f"{name}: {text}" for text in live.run_targets(
            prometheus, work / name, options.seed, catalogues, more, scrapes)]
    print("\n".join(wrong))
    print(f"monitoring: {queries} answers, {alerts} alerts, seed {options.seed}: "
          f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
