"""What happens when this version meets the former release (suite.py's --former): library, broker,
plugin, injector and chart. The plugin brings the library and gpushmctl into containers, and the injector
names the sidecar, which is the broker.

In the names of pods and in comments, "old" is the former release and "new" this tree."""

import pathlib

from case import container, is_ready, pod, statuses
from chart import no_history
from chart_case import SMALL, ChartCase, annotated, holder
from plugin import NAMESPACE

FORMER = pathlib.Path(__file__).with_name("former.commit").read_text().strip()
PARTS = ("plugin", "sidecar", "injector", "test")


def old(*parts):
    """Values with which a chart takes the former release's images of these parts."""
    values = {}
    for part in parts:
        name = "demo" if part == "test" else part
        values |= {f"{part}.image.repository": f"registry.invalid/gpushm/{name}",
                   f"{part}.image.tag": "former", f"{part}.image.digest": ""}
    return values


class VersionsCase(ChartCase):

    VALUES = None

    @classmethod
    def setUpClass(cls):
        if cls.former is None:
            raise no_history(f"commit {FORMER}")
        super().setUpClass()
        cls.provide(None)
        cls.cluster.load(cls.former)
        cls.old_chart = cls.chart.of_commit(FORMER)

    # ------------------------------------------------------------ states of an installation

    def install_old(self):
        """All of the former release, as nothing of this one has been there before."""
        self.chart.uninstall()
        self.chart.install(self.old_chart, **old(*PARTS))

    def upgrade(self, **values):
        self.chart.install(**values)
        self.wait_former_injectors_end()

    def versions(self, pods, part):
        """Those of a part's pods that serve: "old" and "new"."""
        return {"old" if p["spec"]["containers"][0]["image"].endswith(":former") else "new"
                for p in pods.values() if p["metadata"]["name"].startswith(f"gpushm-{part}")
                and "deletionTimestamp" not in p["metadata"] and is_ready(p)}

    def expect(self, plugin, injector):
        """Waits until they are of the former release, "old", or of this one, "new". Helm returns before
        the plugin is ready where a DaemonSet may have none for a moment, as the former chart's may."""
        self.api.wait("Pod", NAMESPACE, lambda pods: self.versions(pods, "plugin") == {plugin}
                      and self.versions(pods, "injector") == {injector}, 60, lambda pods: (
                          f"plugin {self.versions(pods, 'plugin')}, not {plugin}, or injector "
                          f"{self.versions(pods, 'injector')}, not {injector}"))

    # ------------------------------------------------------------ pods

    def pair(self, name):
        return annotated(pod(name, container("a"), container("b")), SMALL)

    def make(self, name, broker):
        """A new pod, whose broker must be "old" or "new", shares memory."""
        self.run_pod(self.pair(name))
        image = self.get_pod(name)["spec"]["initContainers"][0]["image"]
        self.assertEqual(image.endswith(":former"), broker == "old", image)
        self.share(name, name)

    def goes_on(self, name):
        """Goal: the pod has its bytes, with the library and the broker that it had, then with the
        library of today's plugin, then with a broker that was killed and gets its buffers back from
        today's plugin."""
        size = len(name)
        self.assertEqual(self.read(name, "b", size), name)
        self.restart(name, "b")
        self.assertEqual(self.read(name, "b", size), name)
        self.restart(name, "gpushm")
        self.assertEqual(self.read(name, "b", size), name)
        self.share(name, name, writer="b", reader="a")


class VersionsTest(VersionsCase):

    def test_an_upgrade_and_its_rollback(self):
        """Goal: pods go on through both without a restart. Old broker with new plugin and library, new
        broker with old plugin and library."""
        self.install_old()
        self.expect(plugin="old", injector="old")
        self.make("first", broker="old")
        before = {"first": self.container_ids("first")}
        self.upgrade()
        self.expect(plugin="new", injector="new")
        self.make("second", broker="new")
        before["second"] = self.container_ids("second")
        self.assertEqual(self.container_ids("first"), before["first"])
        self.chart.rollback()
        self.wait_former_injectors_end()
        self.expect(plugin="old", injector="old")
        for name, ids in before.items():
            self.assertEqual(self.container_ids(name), ids)
        self.make("third", broker="old")
        for name in (*before, "third"):
            self.goes_on(name)
        self.upgrade()
        for name in (*before, "third"):
            self.goes_on(name)

    def test_a_program_of_the_old_release(self):
        """Goal: a program that was compiled with the old release's headers runs with the new library."""
        self.upgrade()
        program = {**holder("a", "--write", "compiled long ago", "weights"),
                   "image": old("test")["test.image.repository"] + ":former"}
        self.run_pod(annotated(pod("program", program, container("b")), SMALL))
        self.wait_log("program", "a", 'begins "compiled long ago"')

    def test_a_copy_of_a_pod_gets_the_sidecar_of_its_time(self):
        """Method: the output of `kubectl get -o yaml` for a pod is created again, after an upgrade,
        under another name."""
        self.install_old()
        made = self.run_pod(self.pair("first"))
        self.upgrade()
        copy = {**made, "metadata": {"name": "second",
                                     "annotations": made["metadata"]["annotations"]}}
        del copy["status"]
        made = self.run_pod({"apiVersion": "v1", "kind": "Pod", **copy})
        self.assertEqual(statuses(made).keys(), {"gpushm", "a", "b"})
        self.share("second")
        self.share("first")
