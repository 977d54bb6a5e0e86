"""Certificates for the injector: made here, made by cert-manager, and as a replica serves them."""

import pathlib
import socket
import ssl
import subprocess

from cluster import HERE, MACHINE_NAMESPACES
from plugin import NAMESPACE
from processes import Failure, spawn

SERVER = f"gpushm-injector.{NAMESPACE}.svc"


class Authority:
    """A CA of ours, in a folder that exists as long as it is needed."""

    def __init__(self, folder, name):
        self._folder = pathlib.Path(folder)
        self._name = name
        self._make(name, "-subj", f"/CN={name}")
        self.pem = (self._folder / f"{name}.crt").read_text()

    def _make(self, name, *words):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
                        "-keyout", f"{name}.key", "-out", f"{name}.crt", *words],
                       cwd=self._folder, check=True, capture_output=True)

    def own_files(self):
        """Its certificate and key, for somebody else who signs with it."""
        return [str(self._folder / f"{self._name}.{suffix}") for suffix in ("crt", "key")]

    def sign(self):
        """The files of a new certificate for the injector, and of its key."""
        self._make("tls", "-subj", "/CN=given", "-CA", f"{self._name}.crt", "-CAkey",
                   f"{self._name}.key", "-addext", "basicConstraints=critical,CA:FALSE",
                   "-addext", f"subjectAltName=DNS:{SERVER}")
        return [str(self._folder / f"tls.{suffix}") for suffix in ("crt", "key")]


def first(pem):
    """The first certificate of PEM text, as DER."""
    return ssl.PEM_cert_to_DER_cert(pem[:pem.index("-----END CERTIFICATE-----") + 25])


def served(address, port, bundle):
    """The certificate, as DER, that this address serves, or None if a client that trusts only
    `bundle` refuses it."""
    context = ssl.create_default_context(cadata=bundle)
    try:
        with socket.create_connection((address, port), timeout=10) as plain:
            with context.wrap_socket(plain, server_hostname=SERVER) as connection:
                return connection.getpeercert(binary_form=True)
    except OSError:
        return None


class CertManager:
    """cert-manager's controllers and CRDs, in a cluster. It has no webhook: that checks what users
    write, and the chart's objects need none."""

    def __init__(self, cluster):
        self._cluster = cluster
        built = subprocess.run([HERE / "cert-manager/build", "--only-cached"], text=True,
                               capture_output=True, check=False)
        if built.returncode:
            raise Failure("cert-manager is not built: tests/cluster/cert-manager/build")
        self._programs = pathlib.Path(built.stdout.strip())
        self._process = None

    def up(self):
        self._cluster.kubectl("apply", "--server-side", "-f", str(self._programs / "crds"))
        self._cluster.kubectl("wait", "--for", "condition=established", "--timeout", "60s", "-f",
                              str(self._programs / "crds"))
        self.start()

    def start(self, gates=""):
        """`gates`: feature gates, as NAME=false."""
        self._process = spawn(
            [str(self._programs / "cert-manager"), *([gates] if gates else [])],
            self._cluster.log("cert-manager"), self._cluster.process("machine"),
            MACHINE_NAMESPACES, self._cluster.environment())

    def stop(self):
        if self._process:
            self._process.end()

    def down(self):
        self.stop()
        self._cluster.kubectl("delete", "--ignore-not-found", "--timeout", "60s", "-f",
                              str(self._programs / "crds"))
