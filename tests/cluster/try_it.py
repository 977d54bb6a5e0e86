"""Installs gpushm from its packaged chart into the running cluster, starts an example, and says
what to try next.

usage: try_it.py --state FOLDER
"""

import argparse
import pathlib
import sys
import time

from case import RESTRICTED
from chart import NAMESPACE, ROOT, Chart
from cluster import Cluster
from processes import Failure, wait_until

EXAMPLE = ROOT / "deploy/examples/weights-shared.yaml"
WHERE = "demo"
NEXT = f"""
gpushm runs in this cluster, and two servers of one pod share one copy of their weights. Try:
  ./run cluster kubectl exec -n {WHERE} deploy/weights-shared -c server-a -- gpushmctl stat weights
  ./run cluster kubectl logs -n {WHERE} deploy/weights-shared -c server-b
  ./run cluster kubectl get deploy -n {WHERE} weights-shared -o yaml     what a user writes
  ./run cluster kubectl get pods -n {WHERE} -o yaml                      what the injector made of it
  ./run cluster kubectl apply -n {WHERE} -f deploy/examples/trainer-to-rollout.yaml
  ./run cluster shell                                             kubectl, helm in the cluster
  ./run cluster down                                              ends all of it
"""


def step(what, start):
    print(f"== {what} ({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", required=True, type=pathlib.Path)
    cluster = Cluster(parser.parse_args().state)
    start = time.monotonic()
    chart = Chart(cluster)
    chart.install()
    step(f"the chart is installed in {NAMESPACE}", start)
    cluster.api.ensure_namespace(WHERE, RESTRICTED)
    cluster.kubectl("apply", "-n", WHERE, "-f", str(EXAMPLE))
    cluster.kubectl("rollout", "status", "-n", WHERE, "deployment/weights-shared", "--timeout",
                    "90s", timeout=100)

    def printed():
        return cluster.kubectl("logs", "-n", WHERE, "deploy/weights-shared", "-c", "server-a")

    line = wait_until("the example prints nothing", 60, printed, 0.5)
    step("the example runs", start)
    print(line.strip())
    print(cluster.kubectl("exec", "-n", WHERE, "deploy/weights-shared", "-c", "server-a", "--",
                          "gpushmctl", "stat", "weights").strip())
    print(NEXT, end="")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"cluster: {failure}")
