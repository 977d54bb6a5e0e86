"""Turns rendered monitors into Prometheus' scrape configuration, as Prometheus' operator does it
(pkg/prometheus/promcfg.go), with the chart's own Services and pods instead of discovery."""

import re

FIELDS = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
NOBODY = "127.0.0.1:1"  # For ports that no monitor names: must be dropped.


def meta(name):
    return "__meta_kubernetes_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def labels_of(kind, labels):
    return {meta(f"{kind}_label_{name}"): str(value) for name, value in labels.items()}


def replace(source, target):
    return {"source_labels": [meta(source)], "target_label": target}


def relabelings(kind, monitor, endpoint):
    selected = "service" if kind == "ServiceMonitor" else "pod"
    port = "endpoint_port_name" if kind == "ServiceMonitor" else "pod_container_port_name"
    name = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    result = [{"source_labels": [meta(f"{selected}_label_{label}")], "regex": re.escape(value),
               "action": "keep"}
              for label, value in sorted(monitor["spec"]["selector"]["matchLabels"].items())]
    result.append({"source_labels": [meta(port)], "regex": endpoint["port"], "action": "keep"})
    result += [replace("namespace", "namespace"), replace("pod_container_name", "container"),
               replace("pod_name", "pod")]
    if kind == "ServiceMonitor":
        result += [replace("service_name", "service"), replace("service_name", "job")]
    else:
        result.append({"target_label": "job", "replacement": name})
    result.append({"target_label": "endpoint", "replacement": endpoint["port"]})
    for rule in endpoint.get("relabelings", []):
        result.append({FIELDS.get(key, key): value for key, value in rule.items()})
    return result


def component(labels):
    return labels["app.kubernetes.io/component"]


def discovered(objects, pods):
    """What service discovery would find: a target for each port of each pod. Pods are (component,
    pod, node, address)."""
    workloads = {component(o["spec"]["selector"]["matchLabels"]): o for o in objects
                 if o["kind"] in ("DaemonSet", "Deployment")}
    services = {component(o["spec"]["selector"]): o for o in objects if o["kind"] == "Service"}
    for which, pod, node, address in pods:
        template, service = workloads[which]["spec"]["template"], services[which]
        container = template["spec"]["containers"][0]
        served = {p["targetPort"] for p in service["spec"]["ports"]}
        for port in container["ports"]:
            scraped = port["name"] in ("metrics", "http")
            assert port["name"] in served or not scraped, f"{port['name']} is in no Service"
            yield {"targets": [address if scraped else NOBODY], "labels": {
                meta("namespace"): service["metadata"]["namespace"],
                meta("service_name"): service["metadata"]["name"],
                meta("pod_name"): pod, meta("pod_node_name"): node,
                meta("pod_container_name"): container["name"],
                meta("pod_container_port_name"): port["name"],
                meta("endpoint_port_name"): port["name"],
                **labels_of("service", service["metadata"]["labels"]),
                **labels_of("pod", template["metadata"]["labels"])}}


def scrape_configs(objects, pods):
    targets = list(discovered(objects, pods))
    for monitor in objects:
        if monitor["kind"] not in ("ServiceMonitor", "PodMonitor"):
            continue
        spec = monitor["spec"]
        for index, endpoint in enumerate(spec.get("endpoints") or spec["podMetricsEndpoints"]):
            yield {"job_name": f"{monitor['kind']}/{monitor['metadata']['name']}/{index}",
                   "honor_labels": endpoint["honorLabels"], "metrics_path": endpoint["path"],
                   "static_configs": targets,
                   "relabel_configs": relabelings(monitor["kind"], monitor, endpoint)}


def plain_configs(configs, objects, pods):
    """The configuration of a Prometheus without operator, with these targets instead of discovery.
   """
    targets = list(discovered(objects, pods))
    for config in configs:
        assert config.pop("kubernetes_sd_configs")[0]["role"] == "pod"
        yield {**config, "static_configs": targets}
