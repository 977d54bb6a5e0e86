"""What operators see of pods that share: metrics, alerts and dashboards in a real Prometheus, and
the status page as a browser reaches it."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from case import pod
from chart import ROOT
from chart_case import ChartCase, annotated, holder
from processes import wait_until
from scrape import Page, addresses, port_forward
from settings import NODE_NAME

MI = 1 << 20
LOAD = {"buffers.gpushm.io/weights": "64Mi", "buffers.gpushm.io/frames": "16Mi",
        **{f"private.gpushm.io/{name}": "0" for name in "abc"}}
# Queries that may have no answer with this load, with the names of real.py; all others have one.
MAY_BE_SILENT = {
    # No other plugin allocates GPUs.
    "gpushm-fleet: Closed to new pods A",
    # Simulated GPUs have no sensors except utilisation and uncorrected errors, and no NVLink.
    "gpushm-fleet: Power A", "gpushm-fleet: Hottest GPU A", "gpushm-fleet: GPUs of the fleet H",
    "gpushm-gpu: Temperature A", "gpushm-gpu: Temperature over time A",
    "gpushm-gpu: Temperature over time B", "gpushm-gpu: Power A", "gpushm-gpu: Power B",
    "gpushm-gpu: Power C", "gpushm-gpu: Clocks A", "gpushm-gpu: Clocks B", "gpushm-gpu: PCIe A",
    "gpushm-gpu: PCIe B", "gpushm-gpu: NVLink A", "gpushm-gpu: NVLink B",
    "gpushm-gpu: Clocks reduced A", "gpushm-gpu: ECC errors A",
    # Private memory is told with metrics.hostPids alone, and the load reserves none.
    "gpushm-gpu: Outside buffers B", "gpushm-workload: Containers C", "gpushm-workload: Containers D",
    # All buffers of the load have their content.
    "gpushm-workload: Buffers without content A",
    # The load has no MPS.
    "gpushm-workload: MPS A", "gpushm-workload: MPS clients A", "gpushm-workload: MPS clients B",
    # Series that begin with the first XID, failed call or denied pod.
    "gpushm-gpu: XIDs A", "gpushm-gpu: Last XIDs A", "gpushm-workload: Errors A",
    "gpushm-control-plane: Failed library calls A", "gpushm-control-plane: Denied A",
    # The load reads no file, and makes no signal, barrier or ring.
    "gpushm-workload: Size, allocated, loaded C",
    "gpushm-workload: Signals, barriers and rings A",
}


class MonitoringTest(ChartCase):

    may_be_silent = MAY_BE_SILENT
    # This load has an idle GPU with a pod on it; the chart omits that alert unless it is requested.
    alerts = ["GpushmGpuUtilizationLow"]

    def load(self, name="seeded"):
        """A pod with `weights` attached by two containers and `frames` by one."""
        self.run_pod(annotated(pod(name, holder("a", "--write", "hello", "weights"),
                                   holder("b", "weights"), holder("c", "frames")), LOAD))
        self.mine = {"namespace": self.namespace, "pod": name}
        self.wait_page("three attachments", lambda page: page.sum(
            "gpushm_buffer_attachments", **self.mine) == 3)
        # Pods of earlier cases may still be ending; two reads would then give two answers.
        self.wait_page("this pod alone", lambda page: {
            labels["namespace"] for labels, _ in page.series("gpushm_pool_size_bytes")}
            == {self.namespace})

    def page(self):
        return Page(self.api, "plugin")

    def wait_page(self, what, is_so):
        wait_until(lambda: f"{what}: {sorted(map(str, self.page().samples.items()))[:40]}", 30,
                   lambda: is_so(self.page()), 0.3)
        return self.page()

    def test_bytes_are_told_by_pod_container_and_buffer(self):
        self.load()
        mine = self.mine
        page = self.wait_page("counters", lambda page: page.sum(
            "gpushm_container_attaches_total", **mine) == 3)
        self.assertEqual(page.sum("gpushm_buffer_size_bytes", buffer="weights", **mine), 64 * MI)
        self.assertEqual(page.sum("gpushm_attachment_mapped_bytes", **mine), (2 * 64 + 16) * MI)
        for name, share in (("a", 32 * MI), ("b", 32 * MI), ("c", 16 * MI), ("gpushm", 0)):
            self.assertEqual(page.sum("gpushm_container_memory_proportional_bytes", container=name,
                                      **mine), share, name)
        self.assertEqual(page.sum("gpushm_gpu_memory_saved_by_sharing_bytes"), 64 * MI)
        self.assertEqual(page.sum("gpushm_broker_connected", **mine), 1)
        self.assertEqual(page.sum("gpushm_pool_size_bytes", **mine), 1 << 30)
        self.assertEqual(page.sum("gpushm_plugin_registered"), 5)

    def test_series_go_with_their_pod(self):
        self.load()
        before = self.page().sum("gpushm_attaches_total")
        self.delete_pods("seeded")
        # Attachments end with their processes, at once. The pool ends when the kubelet has shown
        # twice that the pod is gone: within the 15 s between two scrapes.
        gone = time.monotonic()
        self.wait_page("the pod's series stay", lambda page: not any(
            dict(labels).get("namespace") == self.namespace for _, labels in page.samples))
        self.assertLess(time.monotonic() - gone, 15)
        self.assertGreaterEqual(self.page().sum("gpushm_attaches_total"), before)

    def test_prometheus_has_an_answer_to_every_query(self):
        """Scraped as the chart's ServiceMonitors define. Every query of every dashboard and every
        rule is compared with the scraped values, and the queries for which this load has data have
        an answer. promtool finds no error in the exposed metrics."""
        self.load()
        self.cluster.enter_network()
        words = [sys.executable, "-B", str(ROOT / "tests/monitoring/real.py"),
                 "--prometheus", str(ROOT / "build/prometheus"), "--helm", str(self.cluster.programs / "helm")]
        for component in ("plugin", "injector"):
            for name, address in addresses(self.api, component).items():
                name = NODE_NAME if component == "plugin" else name
                words += [f"--{component}", f"{name}={address}"]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(words + ["--work", str(pathlib.Path(folder, "work"))], text=True,
                                  capture_output=True, timeout=150, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertRegex(done.stdout, r"real: [1-9]\d* queries")
        silent = set(re.findall(r"^no answer: (.+)$", done.stdout, re.MULTILINE))
        self.assertEqual(silent - self.may_be_silent, set())
        self.assertIn(f"alerts {self.alerts}: 0 wrong", done.stdout[-3000:])

    def test_status_page_by_port_forward(self):
        self.load()
        with port_forward(self.cluster, "daemonset/gpushm-plugin", 9401) as port:
            with urllib.request.urlopen(f"http://localhost:{port}/", timeout=10) as answer:
                self.assertIn("default-src 'none'", answer.headers["Content-Security-Policy"])
                self.assertIn(b"<title>", answer.read())
            with urllib.request.urlopen(f"http://localhost:{port}/status.json",
                                        timeout=10) as answer:
                status = json.load(answer)
        self.assertEqual(status["node"], NODE_NAME)
        pods = {p["pod"] for gpu in status["gpus"] for p in gpu["pools"]}
        self.assertIn("seeded", pods)
        # It shows every tenant, so it must not listen on the pod's address.
        address = next(iter(addresses(self.api, "plugin").values())).partition(":")[0]
        with self.assertRaises(OSError):
            urllib.request.urlopen(f"http://{address}:9401/status.json", timeout=5)
