"""The chart with `plugin.allocation: dra`: pods say the same as always, and the injector gives them
their claim."""

import json
import subprocess
import time

from case import container, is_ready, pod, statuses
from chart import ROOT
from chart_case import WEIGHTS, ChartCase, annotated, holder
from dra_plugin import ClaimsChart
from plugin import NAMESPACE, documents
from processes import wait_until
from scrape import Page
import settings

LABEL = "gpushm.io/made-by"
INJECTOR = f"system:serviceaccount:{NAMESPACE}:gpushm-injector"


class ClaimsCase(ChartCase):

    CHART = ClaimsChart

    def setUp(self):
        super().setUp()
        self.plugin = self.chart.plugin
        self.plugin.wait_released()  # Each case finds the node empty.

    def wait_bound(self, pods):
        def claims():
            return [name for name in self.plugin.specs() if name.startswith("gpushm.io-claim-")]

        wait_until(lambda: f"not {pods} claims: {claims()}", 60, lambda: len(claims()) == pods, 0.2)

    def templates(self):
        return {t["metadata"]["name"]: t
                for t in self.api.list("ResourceClaimTemplate", self.namespace)}

    def gpu_of(self, name):
        """The devices of the pod's claim, in the order of its results."""
        status = self.get_pod(name)["status"]["resourceClaimStatuses"][0]
        claims = {c["metadata"]["name"]: c
                  for c in self.api.list("ResourceClaim", self.namespace)}
        results = claims[status["resourceClaimName"]]["status"]["allocation"]["devices"]["results"]
        return [r["device"] for r in results if r["request"].startswith("broker")]


def sized(name, size, **annotations):
    """A pod of one container, which takes as many GiB and no more."""
    more = {f"gpushm.io/{key}": value for key, value in annotations.items()}
    return annotated(pod(name, container("a")),
                     {"buffers.gpushm.io/weights": f"{size}Gi", "private.gpushm.io/a": "0", **more})


class ClaimsTest(ClaimsCase):

    def test_annotated_pods_share_and_equal_ones_have_one_template(self):
        made = self.run_pod(annotated(pod("one", container("a"), container("b")), WEIGHTS))
        self.assertEqual([c["name"] for c in made["spec"]["resourceClaims"]], ["gpushm"])
        self.assertNotIn("gpushm.io/memory", json.dumps(made["spec"]))
        self.share("one")
        self.run_pod(annotated(pod("two", container("a"), container("b")), WEIGHTS))
        self.share("two", "other")
        self.assertEqual(self.read("one", "b"), "hello")
        (name, template), = self.templates().items()
        self.assertEqual(made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"], name)
        self.assertEqual(template["metadata"]["labels"][LABEL], "injector")

    def test_a_dry_run_makes_nothing(self):
        said = self.cluster.kubectl("apply", "--dry-run=server", "-n", self.namespace, "-o", "json",
                                    "-f", "-", input=json.dumps(sized("dry", 1)))
        self.assertIn("resourceClaimTemplateName", said)
        self.assertEqual(self.templates(), {})

    def test_an_impossible_pod_holds_nothing(self):
        self.create(sized("huge", settings.GPU_GIB + 4))
        self.wait_unschedulable("huge")
        for number in range(settings.GPUS):
            self.run_pod(sized(f"whole-{number}", settings.GPU_GIB - 1))
        self.assertEqual(len({self.gpu_of(f"whole-{n}")[0] for n in range(settings.GPUS)}),
                         settings.GPUS)

    def test_a_pod_waits_while_the_sum_fits_and_no_gpu_has_room(self):
        for number in range(settings.GPUS):
            self.run_pod(sized(f"half-{number}", 9))
        self.create(sized("late", 9))
        self.wait_unschedulable("late")
        self.api.delete("Pod", "half-0", self.namespace)
        self.wait_ready("late")

    def test_two_gpus_of_a_pod_are_different_ones(self):
        made = annotated(pod("two", container("a")), {
            "buffers.gpushm.io/weights": "{size: 4Mi, gpu: each}", "gpushm.io/gpus": "2",
            "private.gpushm.io/a": "0"})
        self.run_pod(made)
        self.assertEqual(len(set(self.gpu_of("two"))), 2)
        self.assertIn("weights-1", self.execute("two", "a", "gpushmctl", "ls"))

    def test_an_exclusive_pod_has_its_gpu_alone(self):
        self.run_pod(sized("small", 1))
        for number in range(settings.GPUS - 1):
            self.run_pod(sized(f"alone-{number}", 1, exclusive="true"))
        self.create(sized("another", 1, exclusive="true"))
        self.wait_unschedulable("another")
        self.run_pod(sized("second", 1))
        self.assertEqual(self.gpu_of("second"), self.gpu_of("small"))

    def test_the_namespaces_label_and_the_pods_annotation_decide(self):
        self.api.patch("Namespace", self.namespace,
                       {"metadata": {"labels": {"gpushm.io/allocation": "device-plugin"}}})
        wait_until("the label has no effect", 30, lambda: "resourceClaims" not in json.loads(
            self.cluster.kubectl("apply", "--dry-run=server", "-n", self.namespace, "-o", "json",
                                 "-f", "-", input=json.dumps(sized("dry", 1))))["spec"], 0.2)
        self.create(sized("extended", 1))
        self.wait_unschedulable("extended")  # This node has no extended resources.
        self.run_pod(sized("claimed", 1, allocation="dra"))

    def test_the_injector_may_make_only_its_own_templates(self):
        other = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                 "metadata": {"name": "gpushm-x"}, "spec": {"spec": {"devices": {"requests": [
                     {"name": "broker", "exactly": {"deviceClassName": "gpu.example.com"}}]}}}}
        for name, device_class, allowed in (("gpushm-x", "gpu.example.com", False),
                                            ("other", "memory.gpushm.io", False),
                                            ("gpushm-x", "memory.gpushm.io", True)):
            other["metadata"]["name"] = name
            exactly = other["spec"]["spec"]["devices"]["requests"][0]["exactly"]
            exactly["deviceClassName"] = device_class
            try:
                self.cluster.kubectl("create", "--as", INJECTOR, "-n", self.namespace, "-f", "-",
                                     input=json.dumps(other))
                self.assertTrue(allowed)
            except subprocess.CalledProcessError as refused:
                self.assertFalse(allowed)
                self.assertIn("only templates for memory.gpushm.io", refused.stderr)
        for verb in ("delete", "update", "list"):
            self.assertEqual("no", self.may(verb, "resourceclaimtemplates"))
        self.assertEqual("no", self.may("get", "resourceclaims"))

    def may(self, verb, resource):
        return subprocess.run(
            ["kubectl", "auth", "can-i", verb, resource, "--as", INJECTOR, "-n", self.namespace],
            env=self.cluster.environment(), text=True, capture_output=True,
            check=False).stdout.strip()

    def test_unused_templates_are_removed_and_used_ones_stay(self):
        self.run_pod(sized("used", 1))
        self.run_pod(sized("gone", 2))
        self.assertEqual(len(self.templates()), 2)
        self.api.delete("Pod", "gone", self.namespace)
        self.api.wait("Pod", self.namespace, lambda pods: "gone" not in pods, 60,
                      lambda pods: f"still there: {list(pods)}")
        said = subprocess.run([ROOT / "deploy/remove-unused-templates", "-n", self.namespace],
                              env=self.cluster.environment(), text=True, capture_output=True,
                              check=True).stdout
        self.assertEqual(said.count("deleted"), 1, said)
        self.assertEqual(len(self.templates()), 1)
        self.run_pod(sized("again", 2))

    def test_fifty_pods_at_once(self):
        began = time.monotonic()
        self.create(*(annotated(pod(f"p{n}", container("a")),
                                {"buffers.gpushm.io/w": "4Mi", "private.gpushm.io/a": "0"})
                      for n in range(50)))
        self.wait_ready(*(f"p{n}" for n in range(50)), seconds=200)
        print(f"50 pods with a claim each were ready after {time.monotonic() - began:.1f} s")
        self.assertEqual(len(self.templates()), 1)


class SharedClaimTest(ClaimsCase):
    """Pods that name one ResourceClaim: an owner, which declares the buffers, and users."""

    def make_claim(self, *words):
        """The claim `weights` as gpushmctl prints it."""
        ctl = self.programs.parent / "bin/gpushmctl"
        text = subprocess.run([ctl, "claim", "weights", "--memory", "2Gi", *words],
                              text=True, capture_output=True, check=True).stdout
        self.cluster.kubectl("apply", "-n", self.namespace, "-f", "-", input=text)

    def owner(self, name, *containers):
        return annotated(pod(name, *(containers or (container("a"),))), {
            "gpushm.io/claim": "weights", "gpushm.io/role": "owner",
            "buffers.gpushm.io/weights": "4Mi", "private.gpushm.io/a": "0"})

    def user(self, name, *containers):
        return annotated(pod(name, *(containers or (container("b"),))),
                         {"gpushm.io/claim": "weights"})

    def fill(self, name, text):
        self.execute(name, "a", "sh", "-ec",
                     f"printf {text} > /tmp/in; gpushmctl load /tmp/in weights")

    def generation(self, name, container_name):
        told = self.execute(name, container_name, "gpushmctl", "stat", "weights", "-o", "json")
        return json.loads(told)["generation"]

    def tries(self, name, container_name, script):
        """What the script prints, whether or not it succeeds."""
        return self.execute(name, container_name, "sh", "-c", f"({script}) 2>&1 || true")

    def test_users_read_what_the_owner_writes(self):
        self.make_claim()
        self.run_pod(self.owner("owner"))
        made = self.run_pod(self.user("first"))
        self.run_pod(self.user("second"))
        self.assertNotIn("initContainers", made["spec"])
        self.assertEqual(len({self.get_pod(n)["spec"]["nodeName"]
                              for n in ("owner", "first", "second")}), 1)
        self.fill("owner", "hello")
        for name in ("first", "second"):
            self.assertEqual(self.read(name, "b"), "hello")
        for script in ("printf x > /tmp/x; gpushmctl load /tmp/x weights",
                       "gpushmctl create mine 2Mi", "gpushmctl rm weights"):
            self.assertIn("gpushm.io/others: write", self.tries("first", "b", script))
        denied = self.tries("first", "b", "rm /run/gpushm-claim/gpushm.sock; "
                            "touch /run/gpushm-claim/x")
        self.assertEqual(denied.count("Read-only file system"), 2, denied)

    def test_metrics_split_the_bytes_over_the_pods(self):
        self.make_claim()
        self.run_pod(self.user("early", holder("b", "weights")))  # The claim is prepared for it.
        self.run_pod(self.owner("owner"))
        self.run_pod(self.user("late", holder("b", "weights")))
        self.fill("owner", "hello")
        shown = {}

        def split():
            page = Page(self.api, "plugin")
            shown.update({(labels["pod"], labels["container"]): value for labels, value in
                          page.series("gpushm_container_memory_proportional_bytes",
                                      namespace=self.namespace)})
            return all(shown.get((name, "b"), 0) > 0 for name in ("early", "late")) and \
                page.sum("gpushm_pool_allocated_bytes", namespace=self.namespace, pod="owner") > 0

        wait_until(lambda: f"not split: {shown}", 30, split, 0.5)
        self.assertEqual(shown["early", "b"], shown["late", "b"])

    def test_users_write_if_the_claim_says_so(self):
        self.make_claim("--others", "write")
        self.run_pod(self.owner("owner"))
        self.run_pod(self.user("writer"))
        self.execute("writer", "b", "sh", "-ec",
                     "printf other > /tmp/in; gpushmctl load /tmp/in weights")
        self.assertEqual(self.read("owner", "a"), "other")

    def test_the_memory_outlives_the_owner_and_ends_with_the_last_pod(self):
        self.make_claim()
        self.run_pod(self.owner("owner"))
        self.run_pod(self.user("user"))
        self.fill("owner", "hello")
        before = self.generation("user", "b")
        # A second owner waits for the first one's end.
        self.create(self.owner("next"))
        self.wait_event("next", "Started container|Container started")
        self.assertFalse(any(c["type"] == "Ready" and c["status"] == "True"
                             for c in self.get_pod("next")["status"]["conditions"]))
        self.delete_pods("owner")
        self.wait_ready("next", seconds=180)
        self.assertEqual(self.generation("next", "a"), before)
        self.assertEqual(self.read("next", "a"), "hello")
        self.assertEqual(self.read("user", "b"), "hello")
        self.delete_pods("next")
        self.assertEqual(len(self.plugin.links()), 1)  # The user's.
        self.run_pod(self.owner("third"))
        self.assertEqual(self.generation("third", "a"), before)
        self.delete_pods("third", "user")
        self.plugin.wait_released()

    def test_a_user_that_comes_first_waits_for_the_owner(self):
        self.make_claim()
        self.run_pod(self.user("early"))
        self.execute("early", "b", "sh", "-ec",
                     "(gpushmctl --timeout 60s save weights /tmp/out && head -c 5 /tmp/out) "
                     ">/tmp/said 2>&1 &")
        self.run_pod(self.owner("owner"))
        self.fill("owner", "hello")
        self.assertEqual(self.read("early", "b"), "hello")

    def test_a_plugin_that_is_killed_costs_nobody_anything(self):
        self.make_claim()
        self.run_pod(self.owner("owner"))
        self.run_pod(self.user("user"))
        self.fill("owner", "hello")
        self.plugin.kill()
        wait_until("the socket does not come back", 30, lambda: "hello" in self.tries(
            "user", "b", "gpushmctl save weights /tmp/out >/dev/null && head -c 5 /tmp/out"))
        self.run_pod(self.user("later"))
        self.assertEqual(self.read("later", "b"), "hello")
        self.restart("owner", "gpushm")
        wait_until("the broker does not come back", 30, lambda: "hello" in self.tries(
            "user", "b", "gpushmctl save weights /tmp/out >/dev/null && head -c 5 /tmp/out"))

    def test_the_example_is_updated_without_a_load(self):
        """Both Deployments are rolled over while a client asks for the weights all the time."""
        example = ROOT / "deploy/examples/dra/shared-weights.yaml"
        self.cluster.kubectl("apply", "-n", self.namespace, "-f", str(example))
        for name in ("weights", "servers"):
            self.rolled_out(name)
        self.run_pod(self.user("client"))
        ask = ("gpushmctl --timeout 60s save weights /tmp/out >/dev/null 2>>/tmp/errors || "
               "echo failed >>/tmp/errors; head -c 20 /tmp/out >>/tmp/seen; echo >>/tmp/seen; "
               "echo >>/tmp/asked")
        self.execute("client", "b", "sh", "-c",
                     f": >/tmp/errors; (while :; do {ask}; done) </dev/null >/dev/null 2>&1 &")
        before = self.generation("client", "b")
        for name in ("servers", "weights", "servers"):
            self.cluster.kubectl("rollout", "restart", f"deployment/{name}", "-n", self.namespace)
            self.rolled_out(name)
        self.assertEqual(self.generation("client", "b"), before)
        told = self.tries("client", "b", "sort -u /tmp/seen; cat /tmp/errors; "
                          "wc -l < /tmp/asked")
        *said, asked = told.strip().splitlines()
        self.assertEqual(said, ["weights of release 7"])
        self.assertGreater(int(asked), 10)
        for p in self.api.list("Pod", self.namespace):
            if p["metadata"].get("labels", {}).get("app") == "servers" and \
                    "deletionTimestamp" not in p["metadata"]:
                self.assertIn(f"generation {before},",
                              self.api.log(self.namespace, p["metadata"]["name"], "server"))
        self.delete_pods("client")
        self.cluster.kubectl("delete", "-n", self.namespace, "-f", str(example), "--wait",
                             "--timeout", "90s", timeout=100)

    def rolled_out(self, name):
        self.cluster.kubectl("rollout", "status", f"deployment/{name}", "-n", self.namespace,
                             "--timeout", "120s", timeout=130)

    def test_pods_of_a_claim_run_under_one_mps_daemon(self):
        """Goal: the daemon's life is its pod's, whatever happens to the others. Method: the example,
        in which users and owner come first and wait; then all but the daemon are rolled over."""
        example = ROOT / "deploy/examples/dra/mps.yaml"
        text = self.cluster.kubectl("create", "--dry-run=client", "-o", "json", "-f", str(example))
        things = [thing for document in documents(text) for thing in document]
        daemon = next(t for t in things if t["metadata"]["name"] == "mps")
        for thing in things:
            if thing is not daemon:
                self.apply(thing)
        waiting = self.wait_pods(
            lambda pods: [p for p in pods.values() if "running" in statuses(p).get(
                "gpushm-mps", {}).get("state", {})], "nobody waits for the daemon")
        self.assertFalse(any(map(is_ready, waiting)))
        self.apply(daemon)
        for name in ("mps", "weights", "servers"):
            self.rolled_out(name)
        before = self.pods_of("mps")

        def under_mps(server):
            doctor = json.loads(self.tries(server, "server", "gpushmctl doctor -o json"))
            return next(c for c in doctor["checks"] if c["name"] == "mps")["detail"]

        for server in self.pods_of("servers"):
            self.assertRegex(under_mps(server), "^on")
        denied = self.tries(self.pods_of("servers")[0], "server", "touch /run/gpushm-mps/x")
        self.assertIn("Read-only file system", denied)
        wait_until("the metrics do not have the daemon", 30, lambda: Page(
            self.api, "plugin").sum("gpushm_mps_ready", namespace=self.namespace) == 1, 0.5)
        for name in ("servers", "weights"):
            self.cluster.kubectl("rollout", "restart", f"deployment/{name}", "-n", self.namespace)
            self.rolled_out(name)
        self.assertEqual(self.pods_of("mps"), before)
        self.assertEqual(self.container_ids(before[0])["gpushm-mps"][1], 0)
        for server in self.pods_of("servers"):
            self.assertRegex(under_mps(server), "^on")
        state = json.loads(self.execute(before[0], "holder", "cat", "/run/gpushm-mps/state.json"))
        self.assertEqual(state["daemon_restarts"], 0)
        folder = self.cluster.on_node("/run/gpushm-claims")
        self.assertEqual(len(list(folder.iterdir())), 1)
        self.cluster.kubectl("delete", "-n", self.namespace, "-f", str(example), "--wait",
                             "--timeout", "90s", timeout=100)
        self.plugin.wait_released()
        self.assertEqual(list(folder.iterdir()), [])

    def test_a_pod_says_why_it_cannot_run_under_the_claims_mps(self):
        self.make_claim()
        user = self.user("user")
        user["metadata"]["annotations"]["gpushm.io/mps"] = "true"
        user["spec"]["securityContext"]["runAsUser"] = 1000
        self.create(user)
        told = self.wait_pod("user", lambda p: "gpushmctl claim --mps" in json.dumps(
            statuses(p).get("gpushm-mps", {})), "does not say that the claim has no MPS")
        self.assertFalse(is_ready(told))
        owner = self.owner("owner")
        owner["metadata"]["annotations"]["gpushm.io/mps"] = "true"
        owner["spec"]["securityContext"]["runAsUser"] = 1000
        self.create(owner)
        self.wait_pod("owner", lambda p: "gpushmctl claim --mps" in json.dumps(
            statuses(p).get("gpushm-mps", {})), "does not say that the claim has no MPS")

    def apply(self, thing):
        thing["metadata"].pop("namespace", None)
        self.cluster.kubectl("apply", "-n", self.namespace, "-f", "-", input=json.dumps(thing))

    def pods_of(self, app):
        """Names of the Deployment's pods, without those that are ending."""
        return sorted(p["metadata"]["name"] for p in self.api.list("Pod", self.namespace)
                      if p["metadata"].get("labels", {}).get("app") == app
                      and "deletionTimestamp" not in p["metadata"])

    def test_what_only_an_owner_may_say_is_refused(self):
        user = self.user("user")
        user["metadata"]["annotations"]["buffers.gpushm.io/b"] = "1Gi"
        self.assertIn("only the owner of the claim can say this", self.deny(user))
