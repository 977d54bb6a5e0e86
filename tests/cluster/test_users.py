"""Pods with users of their own (`hostUsers: false`)."""

import pathlib
import unittest

from case import container, pod, statuses
from chart_case import WEIGHTS, ChartCase, annotated

OWN_USERS = 65536  # As many as the kubelet gives to a pod.


class OwnUsersTest(ChartCase):

    @classmethod
    def setUpClass(cls):
        version = cls.cluster.runc_version()
        if version < (1, 2):
            raise unittest.SkipTest("pods with users of their own need runc 1.2 or newer")
        super().setUpClass()

    def uid_map(self, status):
        process = self.cluster.process_of_container(status["containerID"])
        text = pathlib.Path(f"/proc/{process.pid}/uid_map").read_text()
        return tuple(int(word) for word in text.split())

    def make(self, name, **spec):
        made = self.run_pod(annotated(pod(name, container("a"), container("b"), hostUsers=False, **spec),
                                      WEIGHTS))
        for part, status in statuses(made).items():
            inside, outside, count = self.uid_map(status)
            self.assertEqual((inside, count), (0, OWN_USERS), part)
            self.assertGreaterEqual(outside, OWN_USERS, part)
        return made

    def test_containers_share_a_buffer(self):
        made = self.make("pair")
        sidecar = made["spec"]["initContainers"][0]["securityContext"]
        self.assertIn(sidecar["runAsUser"], range(10_000, 60_000))
        self.share("pair")

    def test_a_killed_broker_finds_its_buffers_again(self):
        self.make("pair")
        self.share("pair")
        self.restart("pair", "gpushm")
        self.assertEqual(self.read("pair", "b"), "hello")

    def test_another_pod_with_the_same_users_inside_has_other_ones_outside(self):
        first, second = self.make("first"), self.make("second")
        maps = {self.uid_map(statuses(made)["a"])[1] for made in (first, second)}
        self.assertEqual(len(maps), 2)
        self.share("first", "one")
        self.share("second", "two")
        self.assertEqual(self.read("first", "b", 3), "one")
