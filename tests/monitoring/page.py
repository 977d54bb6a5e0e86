"""Serves a load's samples as plugin and injectors would, in Prometheus' text format 0.0.4."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def escape(value):
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def render(load, target, catalogue, seconds):
    """The metrics of one target; refuses those that its catalogue lacks."""
    lines = []
    mine = [s for s in load.samples if (s.job, s.instance) == target]
    for name, metric in catalogue.items():
        parts = [name] if metric.kind != "histogram" else [
            name + "_bucket", name + "_sum", name + "_count"]
        found = [s for s in mine if s.name in parts]
        if not found:
            continue
        kind = "gauge" if metric.kind == "info" else metric.kind
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {kind}"]
        for sample in found:
            given = set(sample.labels) - {"le"}
            assert given == set(metric.labels), f"{name}: {given}, documented: {metric.labels}"
            labels = ",".join(f'{k}="{escape(v)}"' for k, v in sample.labels.items())
            lines.append(f"{sample.name}{{{labels}}} {sample.at(seconds)!r}")
    known = {part for name in catalogue for part in (
        name, name + "_bucket", name + "_sum", name + "_count")}
    unknown = {s.name for s in mine} - known
    assert not unknown, f"not in the catalogue: {unknown}"
    return "\n".join(lines) + "\n"


class Target:
    """One endpoint on loopback. `load` may be replaced while it runs."""

    def __init__(self, name, load, catalogue):
        self.name, self.load, self.catalogue = name, load, catalogue
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = outer.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def text(self):
        return render(self.load, self.name, self.catalogue, time.time() - self.load.start)

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
