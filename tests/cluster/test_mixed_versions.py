"""Parts of this version and of the former release together, in each combination that an upgrade can have for
a while, or that somebody can set. test_versions.py has the upgrade itself."""

from plugin import NAMESPACE
import test_versions
from test_versions import PARTS, old


class MixedVersionsTest(test_versions.VersionsCase):

    def test_the_plugin_first(self):
        """As on a node whose plugin is replaced before the injector is: old injector and broker, new
        plugin and library."""
        self.install_old()
        self.make("before", broker="old")
        self.cluster.kubectl("rollout", "pause", "deployment/gpushm-injector", "-n", NAMESPACE)
        self.chart.install()
        self.expect(plugin="new", injector="old")
        self.make("between", broker="old")
        self.goes_on("before")
        self.goes_on("between")
        self.cluster.kubectl("rollout", "resume", "deployment/gpushm-injector", "-n", NAMESPACE)
        self.wait_former_injectors_end()
        self.expect(plugin="new", injector="new")
        self.make("after", broker="new")
        for name in ("before", "between", "after"):
            self.goes_on(name)

    def test_the_injector_first(self):
        """As on a node whose plugin is replaced last: new injector and broker, old plugin and
        library."""
        self.install_old()
        self.make("before", broker="old")
        self.upgrade(**{"plugin.updateStrategy.type": "OnDelete"})
        self.expect(plugin="old", injector="new")
        self.make("between", broker="new")
        self.goes_on("before")
        self.goes_on("between")
        self.delete_pods(*(p["metadata"]["name"] for p in self.api.list("Pod", NAMESPACE)
                           if p["metadata"]["name"].startswith("gpushm-plugin")), namespace=NAMESPACE)
        self.upgrade()
        self.expect(plugin="new", injector="new")
        self.make("after", broker="new")
        for name in ("before", "between", "after"):
            self.goes_on(name)

    def test_an_old_sidecar_under_this_chart(self):
        self.upgrade(**old("sidecar"))
        self.make("old-sidecar", broker="old")
        self.goes_on("old-sidecar")

    def test_new_images_under_the_old_chart(self):
        self.chart.uninstall()
        for parts in (("sidecar",), ("plugin",), ("injector",), PARTS):
            with self.subTest(parts):
                self.chart.install(self.old_chart, **old(*(set(PARTS) - set(parts))))
                self.wait_former_injectors_end()
                self.expect(plugin="new" if "plugin" in parts else "old",
                            injector="new" if "injector" in parts else "old")
                name = "new-" + "-".join(parts)
                self.make(name, broker="new" if "sidecar" in parts else "old")
                self.goes_on(name)
