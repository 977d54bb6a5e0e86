"""Two injectors on two nodes, of which one fails in each of the ways in which it can, while pods are
made all the time. A replica that leaves in an orderly way costs no pod. One that dies, and a node that
falls silent, cost those pods that the API server asks it about until the cluster knows of it: the
webhooks' failurePolicy is Fail. Runs only when named."""

import re
import time

from case import describe_all, is_ready, statuses
from chart_case import ChartCase
from cluster import SecondNode
from plugin import NAMESPACE
from pod_maker import PER_SECOND, PodMaker
from processes import wait_until
import settings

FIRST, SECOND = (node.name for node in settings.NODES)
# How many pods may be refused: those of a second, as the API server notices at once that nobody answers; and
# those of the seconds for which it waits for a webhook (injector.timeoutSeconds).
DEAD, SILENT = PER_SECOND, 5 * PER_SECOND
# What the API server says of a call that nobody answers.
UNANSWERED = re.compile("connection refused|connection reset|EOF|deadline exceeded|i/o timeout|"
                        "no route to host|broken pipe|context canceled")


class TwoInjectorsTest(ChartCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.provide(cls.VALUES)
        cls.second = SecondNode(cls.cluster)
        cls.addClassCleanup(cls.second.down)
        cls.second.up(cls.images, cls.driver)

    def setUp(self):
        super().setUp()
        if set(self.nodes_of_injectors()) != {FIRST, SECOND}:
            self.update()
        # The chart's default spreads them.
        self.assertEqual(sorted(self.nodes_of_injectors()), [FIRST, SECOND])

    # ------------------------------------------------------------ the replicas

    def pods(self):
        return {p["metadata"]["name"]: p for p in self.api.list("Pod", NAMESPACE)
                if "injector" in p["metadata"]["name"]}

    def nodes_of_injectors(self):
        return [self.pods()[name]["spec"]["nodeName"] for name in self.all_injectors()]

    def injector_on(self, node):
        return next(n for n, p in self.pods().items() if p["spec"].get("nodeName") == node
                    and "deletionTimestamp" not in p["metadata"])

    def begin_update(self):
        self.cluster.kubectl("rollout", "restart", "deployment/gpushm-injector", "-n", NAMESPACE)

    def update(self):
        self.begin_update()
        self.wait_former_injectors_end()

    def kill(self, name):
        """SIGKILL, for the process of this replica."""
        pod = self.pods()[name]
        node = self.cluster if pod["spec"]["nodeName"] == FIRST else self.second
        node.process_of_container(statuses(pod)["injector"]["containerID"]).kill()
        return statuses(pod)["injector"]["restartCount"]

    def wait_asked(self, condition, what, seconds=90):
        """Waits until `condition` of the names of the pods that are asked by the API server is true."""
        def names(slices):
            return {e["targetRef"]["name"] for s in slices.values() for e in s.get("endpoints") or []
                    if e["conditions"].get("ready")}

        self.api.wait("EndpointSlice", NAMESPACE, lambda slices: condition(names(slices)), seconds,
                      lambda slices: f"{what}: {names(slices)}",
                      labelSelector="kubernetes.io/service-name=gpushm-injector")

    def wait_both_asked(self):
        names = self.all_injectors()
        self.wait_asked(lambda asked: asked == names, f"not exactly {names} are asked")

    # ------------------------------------------------------------ what becomes of pods

    def during(self, what, happen, most=0):
        """Makes pods while `happen` runs, which returns once the cluster has dealt with it. At most
        `most` of them are refused, and none afterwards."""
        with PodMaker(self.namespace) as maker:
            maker.wait_more()
            self.assertEqual(maker.refused(), [])
            begin = time.monotonic()
            happen()
            took = time.monotonic() - begin
            refused = maker.wait_more()
            maker.wait_more()
        print(f"  {what} ({took:.0f} s): {maker.summary()}", flush=True)
        self.assertEqual(len(maker.refused()), refused, maker.refused()[-1:])
        self.assertEqual([a for a in maker.refused() if not UNANSWERED.search(a.refusal)], [])
        self.assertLessEqual(refused, most, maker.refused())

    def kill_and_wait(self, name):
        restarts = self.kill(name)
        self.wait_restarted(name, restarts)
        self.wait_both_asked()

    def wait_restarted(self, name, restarts):
        self.api.wait("Pod", NAMESPACE, lambda pods: name not in pods or (
            is_ready(pods[name]) and statuses(pods[name])["injector"]["restartCount"] > restarts),
                      60, describe_all)

    def test_a_process_is_killed(self):
        for node in (FIRST, SECOND):
            self.during(f"SIGKILL on {node}", lambda n=node: self.kill_and_wait(self.injector_on(n)), DEAD)

    def test_a_pod_is_deleted(self):
        def delete(name, grace_seconds):
            self.delete_pods(name, namespace=NAMESPACE, grace_seconds=grace_seconds)
            self.wait_both_asked()

        for node in (FIRST, SECOND):
            self.during(f"pod deleted on {node}", lambda n=node: delete(self.injector_on(n), None))
            self.assertEqual(sorted(self.nodes_of_injectors()), [FIRST, SECOND])
        self.during("pod deleted without grace", lambda: delete(self.injector_on(FIRST), 0), DEAD)

    def test_a_node_is_drained(self):
        def drain():
            self.cluster.kubectl("drain", SECOND, "--ignore-daemonsets", "--delete-emptydir-data",
                                 "--timeout", "60s", timeout=90)
            self.wait_both_asked()

        self.addCleanup(self.cluster.kubectl, "uncordon", SECOND)
        self.during("node drained", drain)

    def test_an_update_with_a_kill_at_each_of_its_steps(self):
        """Method: three updates. Killed are a former replica when the update begins, the first new
        one as soon as it is ready, and the first former one when it has been told to end, which
        still answers then."""
        def at_once(former):
            return sorted(former)[0]

        def new_one(former):
            return self.some_pod(lambda name, p: name not in former and is_ready(p))

        def ending(former):
            return self.some_pod(lambda name, p: name in former
                                 and "deletionTimestamp" in p["metadata"])

        def update(choose):
            former = self.all_injectors()
            self.begin_update()
            self.kill(wait_until("the update does not get there", 60, lambda: choose(former)))
            self.wait_former_injectors_end()
            self.wait_both_asked()

        self.during("update", self.update)
        for what, choose in (("before its first step", at_once), ("of a new replica", new_one),
                             ("of an ending replica", ending)):
            self.during(f"update, SIGKILL {what}", lambda c=choose: update(c), DEAD)

    def some_pod(self, condition):
        return next((name for name, p in self.pods().items() if condition(name, p)), None)

    def test_a_node_loses_its_power(self):
        lost = self.injector_on(SECOND)

        def power_off():
            self.second.power_off()
            self.wait_asked(lambda asked: lost not in asked, "the lost replica is still asked")

        try:
            self.during("node without power", power_off, SILENT)
            self.during("the other replica alone", lambda: None)
        finally:
            self.during("node starts again", self.power_on, DEAD)
        self.wait_both_asked()

    def power_on(self):
        self.second.power_on()
        self.wait_both_asked()

    def test_a_node_stands_still(self):
        """As a virtual machine that is paused: its kernel still takes connections here."""
        lost = self.injector_on(SECOND)

        def pause():
            self.second.pause()
            self.wait_asked(lambda asked: lost not in asked, "the lost replica is still asked")

        def resume():
            self.second.resume()
            self.wait_both_asked()

        try:
            self.during("node paused", pause, SILENT)
            self.during("the other replica alone", lambda: None)
        finally:
            self.during("node goes on", resume, DEAD)
