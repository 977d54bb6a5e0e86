"""Panels and dashboards in Grafana's JSON, from short definitions.

In queries `{$` stands for the dashboard's selector: `sum(gpushm_kept_bytes{$})`,
`gpushm_gpu_clocks_reduced{$, reason="hw_thermal"}`. `{@` is the same without the GPU.
"""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TARGETS = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
VARIABLES = {  # name: (label, metric, label of the metric, the value for "all")
    "cluster": ("Cluster", "gpushm_build_info", ".*"),
    "job": ("Job", 'gpushm_build_info{cluster=~"$cluster"}', ".+"),
    "instance": ("Instance", 'gpushm_build_info{cluster=~"$cluster", job=~"$job"}', ".+"),
    "namespace": ("Namespace", f"gpushm_pool_size_bytes{{{TARGETS}}}", ".*"),
    "pod": ("Pod", f'gpushm_pool_size_bytes{{{TARGETS}, namespace=~"$namespace"}}', ".*"),
    "gpu": ("GPU", f"gpushm_gpu_info{{{TARGETS}}}", ".*"),
}
LABEL_OF = {"gpu": "gpu_uuid"}
# For metrics that every program has, where $job for all means any job.
OURS = 'job=~"gpushm-(plugin|injector)"'
PLUGINS = 'job="gpushm-plugin"'
GOOD, WARN, BAD = "green", "orange", "red"
OR_NONE = " or vector(0)"


def steps(*pairs):
    """steps(GOOD, (0.8, WARN)) -> thresholds, from the first colour on."""
    first, *rest = pairs
    return {"mode": "absolute", "steps": [{"color": first, "value": None}]
            + [{"color": color, "value": value} for value, color in rest]}


def mapping(names):
    """{0: ("unhealthy", BAD)} -> the text that is shown instead of a number."""
    options = {str(value): {"text": text, "color": color, "index": index}
               for index, (value, (text, color)) in enumerate(names.items())}
    return [{"type": "value", "options": options}]


def panel(kind, title, description, unit, targets, width, height, *, custom=None, options=None,
          thresholds=None, mappings=None, **defaults):
    field = {"unit": unit, "custom": custom or {}, "mappings": mappings or [],
             "thresholds": thresholds or steps(GOOD), **defaults}
    return {"type": kind, "title": title, "description": description, "datasource": SOURCE,
            "fieldConfig": {"defaults": field, "overrides": []}, "options": options or {},
            "targets": targets, "gridPos": {"w": width, "h": height}}


def target(index, query, legend="", **more):
    return {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query,
            "legendFormat": legend or "__auto", "editorMode": "code", **more}


def stat(title, description, unit, query, width=4, **more):
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
               "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    return panel("stat", title, description, unit, [target(0, query, instant=False, range=True)],
                 width, 4, options=options, **more)


def of_pods(metric, rate=False):
    """What a pod has once is with its first GPU: the series of the pods that have any of the
    selected GPUs."""
    series_of = f"rate({metric}{{@}}[$__rate_interval])" if rate else f"{metric}{{@}}"
    return f"({series_of} and on (cluster, instance, namespace, pod) gpushm_pool_size_bytes{{$}})"


def zeros(title, description, metric, color):
    """The number of series that are 0; it should be none."""
    return stat(title, description, "none", f"count({metric} == 0)" + OR_NONE,
                thresholds=steps(GOOD, (1, color)))


def series(title, description, unit, *queries, width=12, height=8, stack=False, **more):
    """Lines over time; queries are (PromQL, legend)."""
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stack else 8,
              "showPoints": "never", "stacking": {"mode": "normal" if stack else "none"},
              "thresholdsStyle": {"mode": "dashed" if "thresholds" in more else "off"}}
    options = {"legend": {"displayMode": "table", "placement": "bottom", "showLegend": True,
                          "calcs": ["lastNotNull", "max"]},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    targets = [target(i, q, legend) for i, (q, legend) in enumerate(queries)]
    return panel("timeseries", title, description, unit, targets, width, height, custom=custom,
                 options=options, **more)


def timeline(title, description, query, legend, names, width=12, height=6):
    """States over time: rows by legend, colours by value."""
    return panel("state-timeline", title, description, "none", [target(0, query, legend)], width,
                 height, mappings=mapping(names), custom={"fillOpacity": 70, "lineWidth": 0},
                 options={"mergeValues": True, "showValue": "never", "rowHeight": 0.9,
                          "legend": {"displayMode": "list", "placement": "bottom",
                                     "showLegend": True}})


def heatmap(title, description, query, width=12, height=8):
    """Of a histogram's buckets, in seconds."""
    options = {"calculate": False, "cellGap": 1, "legend": {"show": True},
               "yAxis": {"unit": "s", "axisPlacement": "left"}, "rowsFrame": {"layout": "auto"},
               "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
               "tooltip": {"mode": "single", "yHistogram": True}}
    return panel("heatmap", title, description, "s", [target(0, query, "{{le}}", format="heatmap")],
                 width, height, options=options)


def table(title, description, columns, *, width=24, height=9):
    """Columns are (PromQL, name, unit, mapping or None); one without a name only brings labels.
    Rows are those of the same labels."""
    targets = [target(i, query, instant=True, range=False, format="table")
               for i, (query, *_) in enumerate(columns)]
    hidden = dict.fromkeys(("Time", "__name__", "job", "node"), True)
    names = {}
    overrides = []
    for i, (_, name, unit, states) in enumerate(columns):
        value = f"Value #{chr(ord('A') + i)}" if len(columns) > 1 else "Value"
        if not name:
            hidden[value] = True
            continue
        names[value] = name
        properties = [{"id": "unit", "value": unit}]
        if states:
            properties += [{"id": "mappings", "value": mapping(states)},
                           {"id": "custom.cellOptions", "value": {"type": "color-text"}}]
        overrides.append({"matcher": {"id": "byName", "options": name}, "properties": properties})
    result = panel("table", title, description, "none", targets, width, height,
                   custom={"filterable": True}, options={"showHeader": True, "cellHeight": "sm"})
    result["fieldConfig"]["overrides"] = overrides
    result["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "renameByName": names}}]
    return result


def variable(name):
    label, metric, everything = VARIABLES[name]
    query = f"label_values({metric}, {LABEL_OF.get(name, name)})"
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "query": query,
            "definition": query, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
            "allValue": everything, "current": {"text": ["All"], "value": ["$__all"]},
            "options": [], "regex": "", "hide": 0}


def dashboard(uid, title, description, variables, panels):
    """Panels flow from left to right, a string begins a row of that title."""
    selector, of_any_gpu = (
        TARGETS + "".join(f', {LABEL_OF.get(v, v)}=~"${v}"' for v in some)
        for some in (variables, [v for v in variables if v != "gpu"]))
    placed, x, y, height = [], 0, 0, 0
    for one in panels:
        if isinstance(one, str):
            one = {"type": "row", "title": one, "collapsed": False, "panels": [],
                   "gridPos": {"w": 24, "h": 1}}
        grid = one["gridPos"]
        if x + grid["w"] > 24:
            x, y, height = 0, y + height, 0
        grid.update(x=x, y=y)
        x, height = x + grid["w"], max(height, grid["h"])
        for query in one.get("targets", []):
            query["expr"] = (query["expr"].replace("{$", "{" + selector)
                             .replace("{@", "{" + of_any_gpu))
        placed.append({"id": len(placed) + 1, **one})
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource",
                  "query": "prometheus", "current": {}, "options": [], "refresh": 1, "regex": "",
                  "hide": 0}
    names = ["cluster", "job", "instance", *variables]
    return {"id": None, "uid": uid, "title": title, "description": description,
            "tags": ["gpushm"], "schemaVersion": 39, "version": 1, "editable": False,
            "graphTooltip": 1, "refresh": "30s", "timezone": "",
            "time": {"from": "now-3h", "to": "now"},
            "links": [{"type": "dashboards", "title": "gpushm", "tags": ["gpushm"],
                       "asDropdown": True, "includeVars": True, "keepTime": True,
                       "icon": "external link", "targetBlank": False}],
            "templating": {"list": [datasource, *map(variable, names)]},
            "annotations": {"list": []}, "panels": placed}
