"""Metrics of gpushm's own pods, read as Prometheus reads them."""

import contextlib
import re
import subprocess
import urllib.request

from plugin import NAMESPACE

PORTS = {"plugin": 9400, "injector": 8080}
LINE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\\\]|\\\\.)*)"')


def addresses(api, component):
    """pod name: HOST:PORT, for the ready pods."""
    return {p["metadata"]["name"]: f"{p['status']['podIP']}:{PORTS[component]}"
            for p in api.list("Pod", NAMESPACE)
            if p["metadata"]["name"].startswith(f"gpushm-{component}")
            and p["status"].get("podIP") and "deletionTimestamp" not in p["metadata"]}


class Page:
    """The samples of all pods of a component. Samples with the same name and labels are added up.
   """

    def __init__(self, api, component):
        self.samples = {}
        for address in addresses(api, component).values():
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                for line in answer.read().decode().splitlines():
                    match = LINE.match(line)
                    if match:
                        key = match[1], frozenset(LABEL.findall(match[2] or ""))
                        self.samples[key] = self.samples.get(key, 0) + float(match[3])

    def series(self, name, **labels):
        """[(labels, value)] of the samples with that name and these labels."""
        return [(dict(have), value) for (known, have), value in self.samples.items()
                if known == name and labels.items() <= dict(have).items()]

    def sum(self, name, **labels):
        return sum(value for _, value in self.series(name, **labels))

    def buckets(self, name, **labels):
        """{upper bound: count} of a histogram, summed over its other labels."""
        counts = {}
        for have, value in self.series(f"{name}_bucket", **labels):
            bound = float(have["le"])
            counts[bound] = counts.get(bound, 0) + value
        return counts


def quantile(before, after, part):
    """The upper bound of the bucket that contains this quantile of the values between two scrapes.
   """
    grown = {bound: count - before.get(bound, 0) for bound, count in sorted(after.items())}
    total = max(grown.values(), default=0)
    return next((bound for bound, count in grown.items() if total and count >= part * total), None)


@contextlib.contextmanager
def port_forward(cluster, what, port):
    """A local port that kubectl forwards to one of gpushm's pods."""
    cluster.enter_network()
    with subprocess.Popen(["kubectl", "port-forward", "-n", NAMESPACE, what, f":{port}"], text=True,
                          env=cluster.environment(), stdout=subprocess.PIPE) as process:
        try:
            line = process.stdout.readline()  # It ends, or prints this within seconds.
            yield int(re.search(r":(\d+) ->", line)[1])
        finally:
            process.terminate()
