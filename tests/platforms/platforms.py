"""What README calls tried. A platform is one command; to add one, add an entry to PLATFORMS."""

import dataclasses

# The whole chain: the chart is installed, pods share memory, and nothing is lost when the kubelet,
# the container runtime, the plugin or the node restarts, nor in an update.
CHAIN = ("test_node.", "test_restarts.", "SharingTest.test_containers", "SharingTest.test_pods",
         "WaitingTest.test_pod_that_does", "InstallTest.", "AnnotatedPodTest.", "WebhookTest.",
         "LifeTest.", "UpgradeTest.test_upgrade", "UpgradeTest.test_uninstall",
         "MonitoringTest.test_bytes", "MonitoringTest.test_series", "MpsTest.", "CudaIpcTest.")
# Of this, what depends on the container runtime.
RUNTIME = ("test_node.", "test_restarts.", "SharingTest.test_containers", "InstallTest.",
           "AnnotatedPodTest.", "MpsTest.", "CudaIpcTest.")


@dataclasses.dataclass(frozen=True)
class Platform:
    name: str     # Also the name of its row in docs/platforms.
    what: str     # What differs from the others, for README's table.
    command: tuple  # Words, from the root of the tree. Its exit status decides; 77: not possible here.
    results: str = "build/results/cluster.xml"  # The JUnit file that it writes, for the number of cases.
    prepare: tuple = ()  # A command that compiles what is then kept; its time does not count.
    environment: dict = dataclasses.field(default_factory=dict)


def in_cluster(name, what, patterns, modules=""):
    """Cases of tests/cluster, with programs of these folders here in place of the usual ones."""
    return Platform(name, what, ("./run", "cluster", "test", *patterns),
                    prepare=("./run", "cluster", "prepare"),
                    environment={"GPUSHM_CLUSTER_MODULES": modules})


PLATFORMS = (
    in_cluster("kubernetes-1.36", "the version of the cluster suite", CHAIN),
    in_cluster("kubernetes-1.29", "the oldest Kubernetes that the chart accepts", CHAIN,
               "kubernetes-1.29"),
    in_cluster("kubernetes-1.32", "between", CHAIN, "kubernetes-1.32"),
    in_cluster("kubernetes-1.35", "the last before claims with consumable capacity", CHAIN,
               "kubernetes-1.35"),
    in_cluster("kubernetes-1.37", "the newest", CHAIN, "kubernetes-1.37"),
    in_cluster("containerd-1.7", "containerd before 2", RUNTIME, "containerd-1.7"),
    in_cluster("own-users", "pods with `hostUsers: false`, which need runc 1.2", (*RUNTIME, "OwnUsersTest."),
               "runc-1.2"),
    in_cluster("cri-o-1.34", "CRI-O", RUNTIME, "cri-o-1.34 runc-1.2"),
)
