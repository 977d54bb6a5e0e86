"""The cluster itself: the properties on which the other cases rely."""

from api import Refused
from case import ClusterCase, container, pod
from settings import NODE_NAME


class NodeTest(ClusterCase):

    def test_programs_are_what_go_mod_pins(self):
        """`build` writes these files from go.mod."""
        info = self.api.get("Node", NODE_NAME)["status"]["nodeInfo"]
        runtime = info["containerRuntimeVersion"].partition("://")[2]
        for name, version in (("kubernetes", info["kubeletVersion"]),
                              (self.cluster.runtime.name, f"v{runtime.removeprefix('v')}")):
            self.assertEqual(f"{version}\n", (self.cluster.programs / f"{name}.version").read_text())

    def test_restricted_namespace_refuses_privileges(self):
        thing = pod("greedy", container("main"))
        thing["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        with self.assertRaisesRegex(Refused, "violates PodSecurity"):
            self.create(thing)
