"""Cases of other modules once more, on a node that allocates by claims: pods say the same there, so
they get the same. What only one of the two ways has is left out, with the reason."""

import test_chart
from test_claims import ClaimsCase
import test_monitoring
import test_mps
import test_pods


class AnnotatedPodTest(ClaimsCase, test_chart.AnnotatedPodTest):
    # These three look at extended resources; ClaimsTest has claims' own cases.
    test_three_lines_share_a_buffer_without_privilege = None
    test_a_quota_and_a_limit_range_are_met = None
    test_a_pod_of_a_hundred_containers_is_admitted = None


class LifeTest(ClaimsCase, test_chart.LifeTest):
    pass


class WebhookTest(ClaimsCase, test_chart.WebhookTest):
    test_a_pod_gets_a_gpu_alone_by_its_annotation = None  # ClaimsTest has it.
    # The certificate is the same, whatever the webhook writes.
    test_a_renewed_certificate_is_served_without_a_restart = None


class UpgradeTest(ClaimsCase, test_chart.UpgradeTest):
    # That chart knows no claims.
    test_an_earlier_chart_upgraded_and_back_leaves_pods_alone = None
    # Drain the nodes first, says docs/guides/allocation.md: nobody could end their claims.
    test_uninstall_leaves_nothing_also_while_pods_use_it = None


class ExamplesTest(ClaimsCase, test_chart.ExamplesTest):
    # The others ask for the same; their programs do something else with it.
    only = {"weights-shared", "pipeline", "job", "tensor-parallel"}


class ShapeTest(ClaimsCase, test_pods.ShapeTest):
    pass


class SignalTest(ClaimsCase, test_pods.SignalTest):
    pass


class MpsTest(ClaimsCase, test_mps.MpsTest):
    pass


class CudaIpcTest(ClaimsCase, test_mps.CudaIpcTest):
    pass


class MonitoringTest(ClaimsCase, test_monitoring.MonitoringTest):
    # Resources are not registered with the kubelet.
    may_be_silent = test_monitoring.MAY_BE_SILENT | {
        "gpushm-control-plane: Registrations and failures A"}
    # The load's contexts take more than it declares, which is not within a whole unit here.
    alerts = ["GpushmGpuMemoryNotGranted", "GpushmGpuUtilizationLow"]
    # The pool has what the pod needs and not whole units.
    test_bytes_are_told_by_pod_container_and_buffer = None
