"""The three sources of the injector's certificate: while it is renewed, and while its replicas are
replaced afterwards, pods are made all the time and none is refused. Runs only when named."""

import base64
import tempfile

from case import container, pod
from certificates import Authority, CertManager, first, served
from chart_case import SMALL, ChartCase, annotated
from plugin import NAMESPACE
from pod_maker import PodMaker
from processes import wait_until

HELMS = "gpushm-injector-tls"  # The Secret of Helm and of cert-manager.
CERTIFICATE = "gpushm-injector"  # cert-manager's objects.
AUTHORITY = "gpushm-injector-ca"
PORT = 8443


class CertificateCase(ChartCase):

    secret = HELMS
    VALUES = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.provide({})

    def in_secret(self):
        """The certificate in the Secret, as DER."""
        data = self.api.get("Secret", self.secret, NAMESPACE)["data"]
        return first(base64.b64decode(data["tls.crt"]).decode())

    def bundle(self):
        """What the API server trusts."""
        webhooks = self.api.get("MutatingWebhookConfiguration", "gpushm-injector")["webhooks"]
        bundles = {w["clientConfig"].get("caBundle", "") for w in webhooks}
        self.assertEqual(len(bundles), 1)
        return base64.b64decode(bundles.pop()).decode()

    def wait_served(self):
        """Waits until all replicas serve what the Secret has, and the API server trusts it."""
        def by_all():
            bundle, expected = self.bundle(), self.in_secret()
            return bundle and {served(p["status"].get("podIP"), PORT, bundle) for p in
                               self.api.list("Pod", NAMESPACE)
                               if "injector" in p["metadata"]["name"]} == {expected}

        wait_until(f"the certificate of {self.secret} is not served, or not trusted", 120, by_all, 0.5)

    def replace_injectors(self):
        self.cluster.kubectl("rollout", "restart", "deployment/gpushm-injector", "-n", NAMESPACE)
        self.wait_former_injectors_end()

    def renew(self, *steps):
        """Takes each step while pods are made, waits until a new certificate is served by the
        replicas that there were, and replaces these."""
        with PodMaker(self.namespace) as maker:
            maker.wait_more()
            for step in steps:
                before, replicas = self.in_secret(), self.all_injectors()
                step()
                wait_until("the Secret has no new certificate", 90,
                           lambda b=before: self.in_secret() != b)
                self.wait_served()
                maker.wait_more()
                self.assertEqual(self.injectors(), replicas)
                self.replace_injectors()
                self.wait_served()
                maker.wait_more()
        print(f"  {maker.summary()}")
        self.assertEqual(maker.refused(), [])

    def change_source(self, change):
        """Changes the mode while pods are made; no more are refused when the new certificate is
        served. How many were."""
        with PodMaker(self.namespace) as maker:
            maker.wait_more()
            change()
            self.wait_former_injectors_end()
            self.wait_served()
            refused = maker.wait_more()
            maker.wait_more()
        print(f"  change of the source: {maker.summary()}")
        self.assertEqual(len(maker.refused()), refused)
        return refused

    def admit(self, name):
        made = self.run_pod(annotated(pod(name, container("a")), SMALL))
        self.assertEqual(made["spec"]["initContainers"][0]["name"], "gpushm")


class ChartsCertificateTest(CertificateCase):

    def make_another(self):
        self.api.delete("Secret", HELMS, NAMESPACE)
        self.chart.install()

    def test_renewed_by_the_chart(self):
        """With another CA each time, and twice, so that the first CA is forgotten."""
        self.renew(self.make_another, self.make_another)
        self.admit("renewed")


class GivenCertificateTest(CertificateCase):

    secret = "given"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.authority = Authority(folder.name, "first")
        cls.next = Authority(folder.name, "next")
        cls.addClassCleanup(cls.cluster.api.delete, "Secret", "given", NAMESPACE)
        cls.addClassCleanup(cls.chart.install)

    def put(self, authority):
        """Makes the Secret, or replaces its content."""
        files = authority.sign()
        text = self.cluster.kubectl("create", "secret", "tls", "given", "-n", NAMESPACE, "--cert",
                                    files[0], "--key", files[1], "--dry-run=client", "-o", "yaml")
        self.cluster.kubectl("apply", "-f", "-", input=text)

    def trust(self, *authorities):
        bundle = base64.b64encode("".join(authorities).encode()).decode()
        self.chart.install(**{"certificates.mode": "secret", "certificates.secret.name": "given",
                              "certificates.secret.caBundle": bundle})

    def test_renewed_in_the_secret(self):
        """Of the same CA, and then of another one, with the guide's steps, and Helm's before and
        afterwards."""
        def of_another():
            self.trust(self.authority.pem, self.next.pem)
            self.put(self.next)

        self.put(self.authority)
        helms = self.bundle()
        self.assertEqual(self.change_source(lambda: self.trust(helms, self.authority.pem)), 0)

        self.renew(lambda: self.put(self.authority), of_another)
        with PodMaker(self.namespace) as maker:
            maker.wait_more()
            self.trust(self.next.pem)
            maker.wait_more()
        print(f"  without the former CA: {maker.summary()}")
        self.assertEqual(maker.refused(), [])
        self.admit("renewed")
        self.secret = HELMS
        self.assertEqual(self.change_source(self.chart.install), 0)


class CertManagerTest(CertificateCase):
    """cert-manager's own controllers (cert-manager/main.go). The chart is installed anew, because its
    default takes cert-manager when it finds it, and keeps what there is at an upgrade."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.manager = CertManager(cls.cluster)
        cls.chart.uninstall()
        cls.addClassCleanup(cls.cluster.api.delete, "Secret", AUTHORITY, NAMESPACE)
        cls.addClassCleanup(cls.manager.down)
        cls.addClassCleanup(cls.to_helms)
        cls.manager.up()
        cls.chart.install()

    @classmethod
    def to_helms(cls):
        """The guide's steps, and an upgrade that makes Helm's certificate."""
        cls.cluster.kubectl("delete", "certificate", CERTIFICATE, "-n", NAMESPACE, "--ignore-not-found")
        cls.cluster.api.delete("Secret", HELMS, NAMESPACE)
        cls.chart.install(**{"certificates.mode": "helm"})

    def from_helms(self):
        self.api.delete("Secret", HELMS, NAMESPACE)
        self.chart.install(**{"certificates.mode": "certManager"})
        wait_until("cert-manager makes no Secret", 60,
                   lambda: self.api.get("Secret", HELMS, NAMESPACE))

    def test_changed_to_helms_and_back(self):
        """The way back refuses pods, as the guide says."""
        self.assertEqual(self.change_source(self.to_helms), 0)
        self.change_source(self.from_helms)

    def ask_for(self, certificate):
        """As `cmctl renew`."""
        self.cluster.kubectl(
            "patch", "certificate", certificate, "-n", NAMESPACE, "--subresource", "status",
            "--type", "merge", "-p", '{"status": {"conditions": [{"type": "Issuing", "status": "True",'
            '"reason": "ManuallyTriggered", "message": "by a case",'
            '"lastTransitionTime": "2026-01-01T00:00:00Z"}]}}')

    def revision(self, certificate):
        status = self.api.get("Certificate", certificate, NAMESPACE).get("status", {})
        return status.get("revision", 0)

    def renew_authority(self):
        """Another certificate of the CA, then one that it signs."""
        before = self.revision(AUTHORITY)
        self.ask_for(AUTHORITY)
        wait_until("the CA is not renewed", 60, lambda: self.revision(AUTHORITY) > before)
        self.ask_for(CERTIFICATE)

    def test_renewed_by_itself_and_when_asked(self):
        """An hour is the shortest time that cert-manager issues; half a minute after the issue it is
        due again. The upgrade that ends this is one with another value."""
        self.assertIn("cert-manager.io/certificate-name", self.api.get(
            "Secret", HELMS, NAMESPACE)["metadata"]["annotations"])
        self.wait_served()
        def renewed_twice():
            before = self.revision(CERTIFICATE)
            self.api.patch("Certificate", CERTIFICATE,
                           {"spec": {"duration": "1h", "renewBefore": "59m30s"}}, NAMESPACE)
            wait_until("it is not renewed by itself", 90,
                       lambda: self.revision(CERTIFICATE) >= before + 2)
            self.chart.install(**{"certificates.certManager.duration": "8761h"})

        self.renew(renewed_twice, lambda: self.ask_for(CERTIFICATE))
        self.admit("renewed")

    def test_the_authority_is_renewed(self):
        """The former CA is not trusted any more at once when cert-manager's injector replaces the
        bundle, as before 1.19, and replicas have the former certificate until the kubelet brings
        the new one."""
        self.renew(self.renew_authority)
        self.manager.stop()
        self.manager.start("CAInjectorMerging=false")
        try:
            self.renew(self.renew_authority)
        finally:
            self.manager.stop()
            self.manager.start()

    def test_an_issuer_of_your_own(self):
        """Goal: issuerRef. Method: a ClusterIssuer with a CA made here, so that the CA changes."""
        self.make_namespace("cert-manager", {})
        with tempfile.TemporaryDirectory() as folder:
            own = Authority(folder, "own")
            certificate, key = own.own_files()
            self.cluster.kubectl("create", "secret", "tls", "own", "-n", "cert-manager", "--cert",
                                 certificate, "--key", key)
        self.cluster.kubectl("apply", "-f", "-", input=(
            '{"apiVersion": "cert-manager.io/v1", "kind": "ClusterIssuer",'
            '"metadata": {"name": "own"}, "spec": {"ca": {"secretName": "own"}}}'))
        self.addCleanup(self.cluster.kubectl, "delete", "clusterissuer", "own")
        self.addCleanup(self.chart.install)
        issuer = "certificates.certManager.issuerRef"
        self.renew(lambda: self.chart.install(**{f"{issuer}.name": "own",
                                                 f"{issuer}.kind": "ClusterIssuer"}))
        self.assertIn(own.pem.strip(), self.bundle())
        self.admit("own")

    def test_without_cert_manager_the_webhook_serves_on(self):
        self.manager.stop()
        try:
            with PodMaker(self.namespace) as maker:
                self.replace_injectors()
                self.wait_served()
                maker.wait_more()
            print(f"  {maker.summary()}")
            self.assertEqual(maker.refused(), [])
        finally:
            self.manager.start()
