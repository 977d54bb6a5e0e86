"""A separate Prometheus on loopback, for the duration of a test."""

import json
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Prometheus:
    def __init__(self, program, folder, configuration):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.url = f"http://127.0.0.1:{free_port()}"
        path = self.folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
        self.log = (self.folder / "log").open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            [program, f"--config.file={path}", f"--storage.tsdb.path={self.folder}/data",
             f"--web.listen-address={self.url.removeprefix('http://')}"],
            stdout=self.log, stderr=self.log)

    def __enter__(self):
        self.wait("Prometheus to be ready", self.ready)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()

    def wait(self, what, condition, seconds=60):
        """Repeats the query until it is true; returns its value."""
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "log").read_text(encoding="utf-8")[-3000:]
                raise TimeoutError(f"no {what} within {seconds} s: {tail}")
            time.sleep(0.2)
        return result

    def ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def get(self, path, **parameters):
        data = urllib.parse.urlencode(parameters).encode() if parameters else None
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode()}") from error

    def query(self, text, at=None):
        """[(labels, value)] of an instant query."""
        more = {} if at is None else {"time": f"{at:.3f}"}
        data = self.get("query", query=text, **more)
        result = data["result"]
        assert data["resultType"] == "vector", f"{text}: {data['resultType']}"
        return [(r["metric"], float(r["value"][1])) for r in result]
