"""Annotated pods that are made all the while something else happens, and what became of them."""

import concurrent.futures
import dataclasses
import http.client
import threading
import time

from api import Api, Refused
from case import container, pod
from chart_case import SMALL, annotated
from processes import wait_until

PER_SECOND = 10
# Each may wait for both webhooks of a pod, as long as the API server waits for them.
AT_ONCE = 20 * PER_SECOND


@dataclasses.dataclass(frozen=True)
class Attempt:
    number: int
    start_s: float   # Of the monotonic clock.
    seconds: float
    refusal: str     # Empty: the pod was made, with a sidecar.


class PodMaker:
    """Makes PER_SECOND pods a second, whether or not the earlier ones have been answered, because the
    users of a cluster do not wait for each other. No scheduler takes these pods. To be used in a
    `with`, at whose end all have been answered and the pods are removed."""

    def __init__(self, namespace):
        self._api = Api()
        self._namespace = namespace
        self.attempts = []
        self._started = 0
        self._over = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        self._clock = threading.Thread(target=self._start_each)

    def __enter__(self):
        self._clock.start()  # In the network of the calling thread, as all its threads.
        return self

    def __exit__(self, *_):
        self._over.set()
        self._clock.join()
        self._pool.shutdown()
        self._api.call("DELETE", f"/api/v1/namespaces/{self._namespace}/pods?labelSelector=made=often")

    def _start_each(self):
        next_s = time.monotonic()
        while not self._over.wait(max(0.0, next_s - time.monotonic())):
            next_s += 1 / PER_SECOND
            self._pool.submit(self._make, self._started)
            self._started += 1

    def _make(self, number):
        thing = annotated(pod(f"often-{number}", container("a"),
                              schedulingGates=[{"name": "example.com/never"}]), SMALL)
        thing["metadata"]["labels"] = {"made": "often"}
        start = time.monotonic()
        try:
            made = self._api.create(thing, self._namespace)
            sidecars = [c["name"] for c in made["spec"].get("initContainers", [])]
            refusal = "" if sidecars == ["gpushm"] else f"admitted without a sidecar: {sidecars}"
        except (Refused, OSError, http.client.HTTPException) as error:
            refusal = f"{type(error).__name__}: {error}"
        self.attempts.append(Attempt(number, start, time.monotonic() - start, refusal))

    def wait_more(self, pods=3 * PER_SECOND):
        """Returns when so many further pods, and all that were begun before, have been answered; how
        many were refused in all."""
        goal = self._started + pods

        def answered():
            return sum(a.number < goal for a in list(self.attempts))

        wait_until(lambda: f"only {answered()} of {goal} pods are answered", 120,
                   lambda: answered() == goal)
        return len(self.refused())

    def refused(self):
        return [a for a in list(self.attempts) if a.refusal]

    def summary(self):
        attempts = list(self.attempts)
        refused = self.refused()
        longest = max((a.seconds for a in attempts), default=0)
        text = f"{len(attempts)} pods, {len(refused)} refused, longest wait {longest:.2f} s"
        if refused:
            starts = [a.start_s for a in refused]
            text += f", refused within {max(starts) - min(starts):.1f} s"
        return text
