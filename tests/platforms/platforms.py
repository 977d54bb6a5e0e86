"""What README calls tried. A platform is one command; to add one, add an entry to PLATFORMS."""

import dataclasses

# The whole chain: the chart is installed, pods share memory, and nothing is lost when the kubelet,
# the container runtime, the plugin or the node restarts, nor in an update.
CHAIN = ("test_node.", "test_restarts.", "SharingTest.test_containers", "SharingTest.test_pods",
         "WaitingTest.test_pod_that_does", "test_chart.InstallTest.", "test_chart.AnnotatedPodTest.",
         "test_chart.WebhookTest.", "test_chart.LifeTest.", "test_chart.UpgradeTest.test_upgrade",
         "test_chart.UpgradeTest.test_uninstall", "test_monitoring.MonitoringTest.test_bytes",
         "test_monitoring.MonitoringTest.test_series", "test_mps.")
# The same with pods that get their memory by claims.
CLAIMS = ("test_dra.", "test_with_claims.AnnotatedPodTest.", "test_with_claims.LifeTest.",
          "test_with_claims.MpsTest.", "test_with_claims.UpgradeTest.test_upgrade")
# Of the chain, what depends on the container runtime.
RUNTIME = ("test_node.", "test_restarts.", "SharingTest.test_containers", "test_chart.InstallTest.",
           "test_chart.AnnotatedPodTest.", "test_mps.")


@dataclasses.dataclass(frozen=True)
class Platform:
    name: str     # Also the name of its row in docs/platforms.
    what: str     # What differs from the others, for README's table.
    command: tuple  # Words, from the root of the tree. Its exit status decides; 77: not possible here.
    results: str = "build/results/cluster.xml"  # The JUnit file that it writes, for the number of cases.
    prepare: tuple = ()  # A command that compiles what is then kept; its time does not count.
    environment: dict = dataclasses.field(default_factory=dict)
    expected: str = "yes"  # "no": that it does not work is what is shown.


def in_cluster(name, what, patterns, modules="", **more):
    """Cases of tests/cluster, with programs of these folders here in place of the usual ones."""
    return Platform(name, what, ("./run", "cluster", "test", *patterns),
                    prepare=("./run", "cluster", "prepare", *patterns),
                    environment={"GPUSHM_CLUSTER_MODULES": modules}, **more)


PLATFORMS = (
    in_cluster("kubernetes-1.36", "Kubernetes 1.36, also with claims", (*CHAIN, *CLAIMS)),
    in_cluster("kubernetes-1.29", "Kubernetes 1.29, whose kubelet does not list sidecars to plugins",
               ("test_node.", "SharingTest.test_containers"), "kubernetes-1.29", expected="no"),
    in_cluster("kubernetes-1.30", "Kubernetes 1.30, the oldest that the chart accepts", CHAIN,
               "kubernetes-1.30"),
    in_cluster("kubernetes-1.32", "Kubernetes 1.32", CHAIN, "kubernetes-1.32"),
    in_cluster("kubernetes-1.35", "Kubernetes 1.35", CHAIN, "kubernetes-1.35"),
    in_cluster("kubernetes-1.37", "Kubernetes 1.37, the newest, also with claims", (*CHAIN, *CLAIMS),
               "kubernetes-1.37"),
    in_cluster("containerd-1.7", "containerd 1.7", RUNTIME, "containerd-1.7"),
    in_cluster("own-users", "pods with users of their own (`hostUsers: false`), which need runc 1.2",
               (*RUNTIME, "OwnUsersTest."), "runc-1.2"),
    in_cluster("cri-o-1.34", "CRI-O 1.34", RUNTIME, "cri-o-1.34 runc-1.2"),
    in_cluster("two-injectors", "two nodes with an injector each, one of which is ended at each step of an update",
               ("test_two_injectors",)),
    in_cluster("certificates-chart", "the webhooks' certificate made by the chart",
               ("test_certificates.ChartsCertificateTest",)),
    in_cluster("certificates-given", "the webhooks' certificate given in a Secret",
               ("test_certificates.GivenCertificateTest",)),
    in_cluster("cert-manager", "the webhooks' certificate made by cert-manager's controllers",
               ("test_certificates.CertManagerTest",)),
    Platform("aarch64", "the unit tests on aarch64, emulated by QEMU, which does not show how it orders memory accesses",
             ("./run", "test", "aarch64"), "build/results/aarch64.xml", prepare=("./run", "build", "aarch64")),
)
