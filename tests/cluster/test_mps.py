"""What containers of a pod share beside memory: gpushm.io/mps, with stand-ins for NVIDIA's programs, and
gpushm.io/cuda-ipc. Both in a restricted namespace."""

import json

from case import container, pod
from chart_case import SMALL, ChartCase, annotated
from processes import Process, wait_until
from scrape import Page

MPS = {**SMALL, "gpushm.io/mps": "true", "gpushm.io/enforce-private": "true", "compute.gpushm.io/b": "50"}
FOLDER = "/run/gpushm-mps"


def sharing(name, *, uid=1000, annotations=MPS):
    made = annotated(pod(name, container("a"), container("b")), annotations)
    if uid is not None:
        made["spec"]["securityContext"]["runAsUser"] = uid
    return made


class MpsTest(ChartCase):

    def state(self, name):
        return json.loads(self.execute(name, "a", "cat", f"{FOLDER}/state.json"))

    def metric(self, name, **labels):
        return Page(self.api, "plugin").sum(name, **labels)

    def page(self, prefix):
        return {str(key): value for key, value in Page(self.api, "plugin").samples.items()
                if key[0].startswith(prefix)}

    def daemon(self, name):
        """The daemon's process: the child of gpushm-mps that has a child."""
        supervisor = self.cluster.process_of_container(self.container_ids(name)["gpushm-mps"][0]).pid
        with open(f"/proc/{supervisor}/task/{supervisor}/children") as file:
            children = file.read().split()
        for child in children:
            with open(f"/proc/{child}/cmdline") as file:
                if "\0-f" in file.read():
                    return Process.of(int(child))
        return None

    def test_containers_share_a_daemon_that_survives_its_end(self):
        made = self.run_pod(sharing("together"))
        self.assertEqual([c["name"] for c in made["spec"]["initContainers"]], ["gpushm", "gpushm-mps"])
        self.share("together")
        self.assertEqual(self.state("together")["state"], "ready")
        for name, percent in (("a", ""), ("b", "50")):
            told = self.execute("together", name, "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY "
                                "$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
            limit = {"a": "0=4M", "b": "0=1028M"}[name]  # The buffer, and 1 GiB of private memory.
            self.assertEqual(told.split(), [FOLDER, limit, *percent.split()])
            refused = self.execute("together", name, "sh", "-c", f"touch {FOLDER}/x 2>&1 || true")
            self.assertIn("Read-only file system", refused)

        before = self.container_ids("together")
        self.daemon("together").kill()
        wait_until(lambda: f"the daemon is not replaced: {self.state('together')}", 30,
                   lambda: self.state("together")["daemon_restarts"] == 1
                   and self.state("together")["state"] == "ready")
        self.assertEqual(self.container_ids("together"), before)
        self.restart("together", "gpushm-mps")
        wait_until(lambda: f"no daemon after the container's restart: {self.state('together')}", 30,
                   lambda: self.state("together")["state"] == "ready"
                   and self.state("together")["daemon_restarts"] == 2)
        self.share("together", "after")
        mine = {"namespace": self.namespace, "pod": "together"}
        wait_until(lambda: f"metrics of MPS: {self.page('gpushm_mps')}", 30, lambda: self.metric(
            "gpushm_mps_ready", **mine) == 1 and self.metric("gpushm_mps_daemon_restarts_total", **mine) == 2)
        self.assertEqual(self.metric("gpushm_container_memory_private_limit_bytes", container="b", **mine), 1 << 30)
        self.assertIn("the daemon was restarted 2 times",
                      self.execute("together", "a", "sh", "-c", "gpushmctl doctor || true"))

    def test_what_a_daemon_could_not_serve_is_denied(self):
        self.assertIn('gpushm.io/mps-uid: \\"1000\\"', json.dumps(self.deny(sharing("x", uid=None))))
        two = sharing("x")
        two["spec"]["containers"][1].setdefault("securityContext", {})["runAsUser"] = 1001
        self.assertIn("gpushm.io/mps-uid: any", self.deny(two))
        # Pod Security refuses the daemon's capabilities in a restricted namespace.
        two["metadata"]["annotations"]["gpushm.io/mps-uid"] = "any"
        self.assertIn("gpushm-mps", self.deny(two))
        self.allow_everything()
        self.run_pod(two)
        self.assertEqual(self.state("x")["state"], "ready")


class CudaIpcTest(ChartCase):

    def test_programs_get_the_library_and_their_own_pid(self):
        """Goal: every program of the containers loads the library, and still sees its own PID. Method: the
        maps of a shell, and what it says of itself."""
        self.run_pod(annotated(pod("ipc", container("a"), container("b")),
                               {**SMALL, "gpushm.io/cuda-ipc": "true"}))
        self.share("ipc")
        for name in ("a", "b"):
            maps = self.execute("ipc", name, "cat", "/proc/self/maps")
            self.assertIn("/run/gpushm-cuda-ipc/libgpushm-cudaipc.so", maps)
            told, kernels = self.execute("ipc", name, "sh", "-c",
                                         "echo $$; read pid rest </proc/self/stat; echo $pid").split()
            self.assertEqual(told, kernels)
        # The init process of each container has PID 1, which is why CUDA IPC needs the library.
        self.assertIn("libgpushm-cudaipc.so", self.execute("ipc", "a", "cat", "/proc/1/maps"))

    def test_pods_without_it_have_nothing_of_it(self):
        self.run_pod(annotated(pod("plain", container("a"), container("b")), SMALL))
        self.assertNotIn("cudaipc", self.execute("plain", "a", "cat", "/proc/self/maps"))
