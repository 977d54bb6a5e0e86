"""Goal: every query of every panel, every recording rule and every alert is correct.
Method: a real Prometheus scrapes a seeded load, configured as its operator would do from the
chart's ServiceMonitors. Each answer is compared with a calculation from the load, with all series
and with one of each variable selected. Then faults are added to the load, and each alert has to
fire."""

import re
import time
import urllib.parse

import expected
from load import Sample, make, sicken
from operator_config import NOBODY, plain_configs, scrape_configs
from page import Target
from prometheus import Prometheus
from vector import View, differences

CLUSTER = "east"
WINDOW = 12  # Seconds: $__rate_interval, twelve scrapes.
TOLERANCE = {"Age of NVML's answer": 1.6, "Scrape duration": 0.5, "Buffers by name": 1.6}


def neighbour(load):
    """Metrics of another program, which gpushm's rules and dashboards must not use."""
    return type(load)(load.seed, load.start, [
        Sample("another", "node-a", s.name, s.labels, 65000.0, 1.0) for s in load.samples
        if s.name.startswith("process_") and s.instance == "node-a"])


class Bench:
    """Targets, their load, and the labels that they must get."""

    def __init__(self, seed, catalogues, objects, scrapes=None):
        self.catalogues = catalogues
        self.load = make(seed, time.time())
        self.targets = {}
        self.labels = {}
        pods = []
        for name in dict.fromkeys((s.job, s.instance) for s in self.load.samples):
            target = Target(name, self.load, catalogues[name[0]])
            self.targets[name] = target
            job, instance = name
            common = {"job": job, "cluster": CLUSTER}
            if job == "gpushm-plugin":
                pods.append(("plugin", f"gpushm-plugin-{instance}", instance, target.address))
                self.labels[name] = {**common, "instance": instance, "node": instance}
            else:
                pods.append(("injector", instance, "node-b", target.address))
                self.labels[name] = {
                    **common, "instance": target.address, "node": "node-b", "pod": instance,
                    "namespace": "gpushm-system", "container": "injector",
                    "service": "gpushm-injector", "endpoint": "http"}
        self.foreign = Target(("another", "node-a"), neighbour(self.load),
                              catalogues["gpushm-plugin"])
        self.scrapes = list(plain_configs(scrapes, objects, pods) if scrapes
                            else scrape_configs(objects, pods))

    def configuration(self, rules):
        foreign = {"job_name": "another", "static_configs": [
            {"targets": [self.foreign.address, NOBODY], "labels": {"cluster": CLUSTER}}]}
        return {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)] if rules else [],
                "scrape_configs": [foreign, *self.scrapes]}

    def change(self, load):
        self.load = load
        for target in self.targets.values():
            target.load = load

    def pages(self):
        return {name: target.text() for name, target in self.targets.items()}

    def view(self, at, selected=None):
        load = self.load
        added = [Sample(*name, series, {}, value) for name, text in self.pages().items()
                 for series, value in (("up", 1.0), ("scrape_duration_seconds", 0.25), (
                     "scrape_samples_scraped",
                     float(sum(not line.startswith("#") for line in text.splitlines()))))]
        whole = type(load)(load.seed, load.start, load.samples + added)
        return View(whole, at, self.labels, selected, WINDOW)

    def stop(self):
        for target in (self.foreign, *self.targets.values()):
            target.stop()


def targets_of(prometheus):
    """The targets scraped so far, with their labels; None until all are scraped."""
    active = prometheus.get("targets?state=active")["activeTargets"]
    ours = [t for t in active if t["labels"]["job"] != "another"]
    if any(t["health"] != "up" for t in ours):
        return None
    return sorted(sorted(t["labels"].items()) for t in ours)


def selections(dashboard, load):
    """Everything, and one of each variable: the first pod of the load, and the second GPU of a pod
    with two."""
    names = [v["name"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    sample = next(s for s in load.samples if s.name == "gpushm_pool_size_bytes")
    one = {"cluster": CLUSTER, "job": "gpushm-plugin", "instance": sample.instance,
           "namespace": sample.labels["namespace"], "pod": sample.labels["pod"],
           "gpu": sample.labels["gpu_uuid"]}
    yield {v["name"]: v["allValue"] for v in dashboard["templating"]["list"]
           if v["type"] == "query"}, {}
    pair = [s for s in load.samples if s.name == "gpushm_pool_size_bytes"
            and s.labels["pod"].endswith("-pair")]
    second = {**one, "instance": pair[1].instance, "namespace": pair[1].labels["namespace"],
              "pod": pair[1].labels["pod"], "gpu": pair[1].labels["gpu_uuid"]}
    for values in (one, second):
        yield ({name: values[name] for name in names},
               {"gpu_uuid" if name == "gpu" else name: values[name] for name in names})


def fill(text, values):
    for name, value in values.items():
        text = text.replace(f"${name}", value)
    text = text.replace("$__rate_interval", f"{WINDOW}s")
    assert "$" not in text, text
    return text


def check_panels(prometheus, bench, dashboards):
    """Returns (queries run, what is wrong)."""
    number, wrong = 0, []
    for dashboard in dashboards:
        panels = {p["title"]: p for p in dashboard["panels"] if p.get("targets")}
        known = expected.PANELS[dashboard["uid"]]
        wrong += [f"{dashboard['uid']}: {title}: only in the dashboard or only in the expectations"
                  for title in panels.keys() ^ known.keys()]
        for values, selected in selections(dashboard, bench.load):
            for title in panels.keys() & known.keys():
                queries, functions = panels[title]["targets"], known[title]
                if len(queries) != len(functions):
                    wrong.append(f"{title}: {len(queries)} queries, {len(functions)} expectations")
                for query, function in zip(queries, functions):
                    at = time.time()
                    got = prometheus.query(fill(query["expr"], values), at)
                    number += 1
                    for text in differences(function(bench.view(at, selected)), got,
                                            absolute=TOLERANCE.get(title, 1e-9)):
                        wrong.append(f"{dashboard['uid']}: {title} {query['refId']}: {text}")
    return number, wrong


def check_variables(prometheus, bench, dashboards):
    """The values that Grafana offers for each variable are those of the load."""
    for dashboard in dashboards:
        for variable in dashboard["templating"]["list"]:
            if variable["type"] != "query":
                continue
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
            everything = {v["name"]: v.get("allValue", "") for v in dashboard["templating"]["list"]}
            got = prometheus.get(f"label/{label}/values?" + urllib.parse.urlencode(
                {"match[]": fill(metric, everything)}))
            name = metric.partition("{")[0]
            due = {dict(labels)[label] for labels in bench.view(time.time()).each(name)}
            if set(got) != due:
                yield f"{dashboard['uid']}: variable {variable['name']}: {got}, should be {due}"


def check_recorded(prometheus, bench, names):
    wrong = []
    for name in names & expected.RECORDED.keys():
        at = time.time()
        # Ratios over five minutes cover the scrapes that exist, one more or less for each target.
        for text in differences(expected.RECORDED[name](bench.view(at)), prometheus.query(name, at),
                                relative=0.05):
            wrong.append(f"{name}: {text}")
    return wrong


def alerts(prometheus):
    return {(a["labels"]["alertname"]): a for a in prometheus.get("alerts")["alerts"]}


def check_texts(rule, alert):
    """Everything that a template names must exist."""
    for name, text in rule["annotations"].items():
        for label in re.findall(r"\$labels\.(\w+)", text):
            if label not in alert["labels"]:
                yield f"{rule['alert']}: {name} uses {label}, which the alert lacks"
        shown = alert["annotations"][name]
        if "{{" in shown or "<no value>" in shown or "<error" in shown:
            yield f"{rule['alert']}: {name} reads: {shown}"


def run(program, folder, seed, catalogues, objects, rules_path, rules, dashboards):
    """Returns (queries run, alerts seen, what is wrong)."""
    bench = Bench(seed, catalogues, objects)
    wanted = {r["alert"]: r for g in rules["groups"] for r in g["rules"] if "alert" in r}
    recorded = {r["record"] for g in rules["groups"] for r in g["rules"] if "record" in r}
    wrong = [f"{name}: recorded, but not expected" for name in
             recorded - expected.RECORDED.keys() - {"gpushm:attach_errors:rate5m"}]
    with Prometheus(program, folder, bench.configuration(rules_path)) as prometheus:
        labels = prometheus.wait("scrapes", lambda: targets_of(prometheus))
        due = sorted(sorted(one.items()) for one in bench.labels.values())
        wrong += [f"targets are {labels}, should be {due}"] if labels != due else []
        wait_for_scrapes(prometheus, WINDOW + 8, len(bench.targets) + 2)
        number, bad = check_panels(prometheus, bench, dashboards)
        wrong += bad + check_recorded(prometheus, bench, recorded)
        wrong += check_variables(prometheus, bench, dashboards)
        wrong += [f"fires without a fault: {a['annotations']['summary']}"
                  for a in alerts(prometheus).values()]

        bench.change(sicken(make(seed, bench.load.start)))
        wait_for_scrapes(prometheus, WINDOW + 2, len(bench.targets) + 2)
        more, bad = check_panels(prometheus, bench, dashboards)
        wrong += [f"sick: {text}" for text in bad]
        seen = alerts(prometheus)
        for name in [n for n in bench.targets if n[1] not in ("node-a", "node-b")]:
            bench.targets.pop(name).stop()
        down = {"GpushmPluginDown", "GpushmInjectorDown"}
        prometheus.wait("alerts of what is down", lambda: down <= alerts(prometheus).keys())
        seen |= {name: alert for name, alert in alerts(prometheus).items() if name in down}
    bench.stop()
    wrong += [f"{name} did not fire" for name in wanted.keys() - seen.keys()]
    for name in wanted.keys() & seen.keys():
        wrong += check_texts(wanted[name], seen[name])
    return number + more, len(seen), wrong


def run_targets(program, folder, seed, catalogues, objects, scrapes):
    """Another scrape configuration: only targets get the names that rules and dashboards need."""
    bench = Bench(seed, catalogues, objects, scrapes)
    missing = {"cluster", "service", "namespace", "container", "endpoint"} if scrapes else {
        "service"}
    due = sorted(sorted((k, v) for k, v in labels.items() if k not in missing)
                 for labels in bench.labels.values())
    with Prometheus(program, folder, bench.configuration(None)) as prometheus:
        labels = prometheus.wait("scrapes", lambda: targets_of(prometheus))
        honored = prometheus.wait("samples", lambda: prometheus.query("gpushm_pool_size_bytes"))
    bench.stop()
    wrong = [] if labels == due else [f"targets are {labels}, should be {due}"]
    if any("exported_namespace" in labels or not labels.get("pod") for labels, _ in honored):
        wrong.append("the pod's own labels are lost")
    return wrong


def wait_for_scrapes(prometheus, seconds, targets):
    """Waits until every target has been scraped for this long, from now on."""
    begin = time.time()
    prometheus.wait("samples", lambda: (
        rows := prometheus.query(f"timestamp(up) > {begin + seconds}")) and len(rows) == targets)
