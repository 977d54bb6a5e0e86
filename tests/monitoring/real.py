"""Goal: the same queries are correct for the metrics of a real plugin and injector.
Method: the calculations of expected.py, with what Prometheus stored of each series in the last
seconds.

usage: real.py --prometheus FOLDER --helm PROGRAM --work FOLDER [--plugin NODE=ADDRESS ...]
               [--injector POD=ADDRESS ...]
Targets are scraped as by the chart's ServiceMonitors. FOLDER of --work is renewed. Queries without
an answer are listed ("no answer: ..."); the caller, who knows the load, says which may have none.
"""

import argparse
import json
import pathlib
import shutil
import sys
import time
import urllib.request

import yaml

import catalogue
import live
import main as suite
from load import Load, Sample
from operator_config import scrape_configs
from prometheus import Prometheus
from vector import View, differences

SERIES = '{__name__=~"gpushm_.+|process_.+|up|scrape_.+"}'


class Stored:
    """Replaces a load: the content of Prometheus, series by series."""

    def __init__(self, prometheus):
        self.prometheus = prometheus

    def view(self, at, selected=None):
        data = self.prometheus.get("query", query=f"{SERIES}[{live.WINDOW}s]", time=f"{at:.3f}")
        load, extra = Load(0, at), {}
        for series in data["result"]:
            labels, points = dict(series["metric"]), series["values"]
            (first_s, first), (last_s, last) = points[0], points[-1]
            if at - last_s > 2:
                continue  # The end of the series was seen.
            name = labels.pop("__name__")
            target = labels["job"], labels["instance"]
            extra[target] = {"job": target[0], "instance": target[1]}
            grown = float(last) - float(first)
            rate = grown / (last_s - first_s) if last_s > first_s else 0.0
            load.samples.append(Sample(*target, name, labels, float(last), rate))
        return View(load, at, extra, selected, live.WINDOW)


def check(prometheus, dashboards):
    """Returns (queries run, those without an answer, errors), with everything selected."""
    stored, number, silent, wrong = Stored(prometheus), 0, [], []
    for dashboard in dashboards:
        values = {v["name"]: v["allValue"] for v in dashboard["templating"]["list"]
                  if v["type"] == "query"}
        for panel in (p for p in dashboard["panels"] if p.get("targets")):
            functions = live.expected.PANELS[dashboard["uid"]][panel["title"]]
            for query, function in zip(panel["targets"], functions, strict=True):
                name = f"{dashboard['uid']}: {panel['title']} {query['refId']}"
                # Both evaluate at one time, slightly in the past, so that neither sees more than
                # the other.
                at = time.time() - 0.5
                got = prometheus.query(live.fill(query["expr"], values), at)
                number += 1
                silent += [] if got else [name]
                for text in differences(function(stored.view(at)), got, relative=0.1,
                                        absolute=0.05):
                    wrong.append(f"{name}: {text}")
    return number, silent, wrong


def page_problems(promtool, catalogues, which, address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    wrong = suite.promtool(promtool, "check", "metrics", input=page)
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    return wrong + [f"{name} is in no catalogue" for name in names - catalogues[which].keys()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prometheus", type=pathlib.Path, required=True)
    parser.add_argument("--helm", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--plugin", action="append", default=[])
    parser.add_argument("--injector", action="append", default=[])
    options = parser.parse_args()
    options.work = options.work.resolve()  # Prometheus resolves paths from its configuration.
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    catalogues = catalogue.catalogues(suite.ROOT)
    objects = suite.rendered(options.helm, suite.RULES + ["serviceMonitor.enabled=true"])
    rules = next(o["spec"] for o in objects if o["kind"] == "PrometheusRule")
    path = options.work / "rules.yaml"
    path.write_text(yaml.safe_dump(rules), encoding="utf-8")
    pods, wrong = [], []
    for component, given in (("plugin", options.plugin), ("injector", options.injector)):
        for name, _, address in (text.partition("=") for text in given):
            node = name if component == "plugin" else "node"
            pods.append((component, name, node, address))
            wrong += page_problems(options.prometheus / "promtool", catalogues,
                                   f"gpushm-{component}", address)
    configuration = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                     "rule_files": [str(path)],
                     "scrape_configs": list(scrape_configs(objects, pods))}
    with Prometheus(options.prometheus / "prometheus", options.work / "live",
                    configuration) as prometheus:
        prometheus.wait("scrapes", lambda: live.targets_of(prometheus))
        live.wait_for_scrapes(prometheus, live.WINDOW + 2, len(pods))
        dashboards = [json.loads(file.read_text(encoding="utf-8"))
                      for file in sorted((suite.ROOT / "deploy/grafana").glob("*.json"))]
        number, silent, bad = check(prometheus, dashboards)
        alerts = sorted(live.alerts(prometheus))
    wrong += bad
    print("\n".join(wrong + [f"no answer: {name}" for name in silent]))
    print(f"real: {number} queries, {number - len(silent)} with an answer, alerts {alerts}: "
          f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
