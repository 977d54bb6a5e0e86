"""Rules for dashboards and alerts that need no Prometheus: those of Grafana's dashboard-linter, and
that names agree between catalogue, rules, dashboards, tests and runbooks."""

import filecmp
import re
import subprocess
import sys

import yaml

import catalogue

NAME = re.compile(r"(?<![\w:])(gpushm_[a-z0-9_]+|process_[a-z_]+)")
RECORD = re.compile(r"(?<![\w:])gpushm:[a-z0-9_:]+")
COUNTERS = re.compile(r"(\w+_(?:total|bucket|sum|count))\{[^}]*\}(\[)?")
# Deliberately on no dashboard and in no rule.
UNUSED = {
    "process_virtual_memory_bytes": "the driver maps most of it, so it means nothing",
}
VARIABLES = {"datasource": "Data source", "job": "Job", "instance": "Instance"}


def panels_of(dashboard):
    return [p for p in dashboard["panels"] if p["type"] != "row"]


def check_dashboard(board):
    variables = {v["name"]: v for v in board["templating"]["list"]}
    for name, label in VARIABLES.items():
        if variables.get(name, {}).get("label") != label:
            yield f"variable {name} is not labelled {label}"
    for name in ("job", "instance"):
        if not variables[name]["multi"] or variables[name]["allValue"] != ".+":
            yield f"variable {name} is not multi with all = .+"
    for variable in variables.values():
        if variable["type"] == "query" and variable["refresh"] != 2:
            yield f"variable {variable['name']} does not follow the time range"
    if board["editable"] or board["id"] is not None or board["schemaVersion"] < 39:
        yield "editable, has an id, or has an old schema"
    if not re.fullmatch(r"gpushm-[a-z-]+", board["uid"]) or "gpushm" not in board["tags"]:
        yield "wrong uid or tag"
    if not any(link["type"] == "dashboards" and link["tags"] for link in board["links"]):
        yield "no link by tag"
    titles = [p["title"] for p in panels_of(board)]
    yield from (f"two panels are called {t}" for t in set(titles) if titles.count(t) > 1)
    for panel in panels_of(board):
        for text in check_panel(panel):
            yield f"{panel['title']}: {text}"


def check_panel(panel):
    for name in ("title", "description"):
        if not panel.get(name):
            yield f"no {name}"
    if not panel["description"].endswith((".", "?")):
        yield "the description is not a sentence"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        yield "no unit"
    if panel["datasource"]["uid"] != "${datasource}":
        yield "does not use the variable's data source"
    for target in panel["targets"]:
        query = target["expr"]
        for need in ('job=~"$job"', 'instance=~"$instance"', 'cluster=~"$cluster"'):
            if query.count(need) != query.count("{"):
                yield f"{target['refId']}: a selector without {need}"
        if re.search(r"\[(?!\$__rate_interval\])", query):
            yield f"{target['refId']}: its range must be $__rate_interval"
        for name, ranged in COUNTERS.findall(query):
            if not ranged:
                yield f"{target['refId']}: {name} without rate or increase"
        if target["datasource"]["uid"] != "${datasource}":
            yield f"{target['refId']}: does not use the variable's data source"


def check_names(dashboards, rules, catalogues):
    known = {}
    for metrics in catalogues.values():
        for name, metric in metrics.items():
            known.update(dict.fromkeys(catalogue.series_of(name, metric), name))
    texts = [t["expr"] for d in dashboards for p in panels_of(d) for t in p["targets"]]
    texts += [v["query"] for d in dashboards for v in d["templating"]["list"]]
    texts += [r["expr"] for g in rules["groups"] for r in g["rules"]]
    named = {name for text in texts for name in NAME.findall(text)}
    yield from (f"{name} is in no catalogue" for name in sorted(named - known.keys()))
    used = {known[name] for name in named & known.keys()}
    for name in sorted(set(known.values()) - used - UNUSED.keys()):
        yield f"{name} is on no dashboard and in no rule: use it, or give the reason in lint.py"
    yield from (f"{name} is used, but lint.py says it is not" for name in used & UNUSED.keys())
    records = {r["record"] for g in rules["groups"] for r in g["rules"] if "record" in r}
    for text in texts:
        yield from (f"{name} is not recorded" for name in set(RECORD.findall(text)) - records)


def check_rules(rules, tests, runbooks):
    headings = set(re.findall(r"^#+ (Gpushm\w+)$", runbooks, re.MULTILINE))
    names = {r["alert"] for g in rules["groups"] for r in g["rules"] if "alert" in r}
    yield from (f"{name}: no section in docs/guides/runbooks.md" for name in sorted(names - headings))
    yield from (f"docs/guides/runbooks.md has {name}, no alert" for name in sorted(headings - names))
    cases = yaml.safe_load(tests)["tests"]
    tried = [e for case in cases for e in case["promql_expr_test"]]
    asked = {e["expr"] for e in tried}
    fired = set(re.findall(r'alertname="(\w+)"', str([e["exp_samples"] for e in tried])))
    yield from (f"{name}: no case fires it" for name in sorted(names - fired))
    for rule in (r for g in rules["groups"] for r in g["rules"]):
        if "record" in rule:
            if rule["record"] not in asked:
                yield f"{rule['record']}: no case"
            continue
        if rule["labels"]["severity"] not in ("info", "warning", "critical"):
            yield f"{rule['alert']}: severity"
        annotations = rule["annotations"]
        if not annotations["runbook_url"].endswith("#" + rule["alert"].lower()):
            yield f"{rule['alert']}: runbook_url"
        if not annotations["summary"].endswith(".") or len(annotations["description"]) < 60:
            yield f"{rule['alert']}: wrong summary or description"


def check_generated(root, work):
    """The dashboards must equal the output of their definitions."""
    folder = work / "grafana"
    folder.mkdir()
    subprocess.run([sys.executable, root / "deploy/dashboards/make", folder], check=True)
    made = {path.name for path in folder.iterdir()}
    kept = {path.name for path in (root / "deploy/grafana").iterdir()}
    _, *different = filecmp.cmpfiles(folder, root / "deploy/grafana", made | kept, shallow=False)
    for names in different:
        yield from (f"deploy/grafana/{name} is outdated: deploy/dashboards/make" for name in names)


def check(root, dashboards, rules, catalogues, tests, work):
    wrong = [f"{board['uid']}: {text}" for board in dashboards for text in check_dashboard(board)]
    wrong += check_names(dashboards, rules, catalogues)
    runbooks = (root / "docs/guides/runbooks.md").read_text(encoding="utf-8")
    wrong += check_rules(rules, tests.read_text(encoding="utf-8"), runbooks)
    wrong += check_generated(root, work)
    return wrong
