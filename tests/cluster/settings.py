"""The configuration of the cluster's programs, of the versions that tests/platforms has."""

import dataclasses
import hashlib
import json
import pathlib
import re

API_SERVER = "10.99.0.1:6443"
NAMESPACE = "gpushm-system"  # Of gpushm itself.
BRIDGE = "node0"
# So that the clusters of two clones can run side by side.
CLONE = hashlib.sha256(str(pathlib.Path(__file__).resolve().parents[2]).encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class Node:
    number: int

    @property
    def name(self):
        return f"node{self.number}"

    @property
    def address(self):
        return f"10.99.0.{1 + self.number}"

    @property
    def pods(self):
        """Their addresses."""
        return f"10.97.{self.number}.0/24"

    @property
    def cgroup(self):
        return f"gpushm-cluster-{CLONE}-{self.number}"


FIRST_NODE, SECOND_NODE = NODES = Node(0), Node(1)
NODE_NAME = FIRST_NODE.name
ADMIN_TOKEN = "admin"  # It opens a network that only the cluster uses.
# Images carry the project's version, as deploy/ names them.
IMAGE_TAG = re.search(r'kVersion\[\] = "(.+)"', (
    pathlib.Path(__file__).parents[2] / "platform/base/version.h").read_text())[1]
REGISTRY = "10.99.0.1:5000"
released = {}  # Image -> digest, with suite.py's --release.


def image(name):
    if name in released:
        return f"{REGISTRY}/gpushm/{name}@{released[name]}"
    return f"registry.invalid/gpushm/{name}:{IMAGE_TAG}"


def chart_image(part):
    """Values of the chart for the image of a part, whichever chart is installed. An image of this tree is
    on the node already, so that nothing is pulled."""
    name = "demo" if part == "test" else part
    if name in released:
        values = {"repository": f"{REGISTRY}/gpushm/{name}", "digest": released[name]}
    else:
        repository, _, tag = image(name).rpartition(":")
        values = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
    return {f"{part}.image.{key}": value for key, value in values.items()}


def version_of(programs, name):
    """(major, minor) of a program that tests/cluster/build has put into this folder."""
    text = (programs / f"{name}.version").read_text()
    return tuple(int(part) for part in text.removeprefix("v").split(".")[:2])


def kubeconfig():
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": {
            "server": f"https://{API_SERVER}", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": ADMIN_TOKEN}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "admin"}}],
    }, indent=1)


def etcd(state):
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return ["etcd", "--data-dir", f"{state}/etcd", "--unsafe-no-fsync", "--log-level", "warn",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer]


def apiserver(state):
    etc = f"{state}/etc"
    return ["kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379",
            "--advertise-address", FIRST_NODE.address,
            "--bind-address", FIRST_NODE.address,
            "--secure-port", API_SERVER.partition(":")[2], "--cert-dir", f"{state}/certificates",
            "--service-cluster-ip-range", "10.98.0.0/16",
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", f"{etc}/sa.key",
            "--service-account-signing-key-file", f"{etc}/sa.key",
            "--token-auth-file", f"{etc}/tokens.csv", "--authorization-mode", "Node,RBAC",
            "--allow-privileged",
            # Logs and exec reach the kubelet without a resolver.
            "--kubelet-preferred-address-types", "InternalIP",
            # Webhooks reach a Service's endpoints directly, because there is no kube-proxy.
            "--enable-aggregator-routing"]


def controller_manager(state):
    return ["kube-controller-manager", "--kubeconfig", f"{state}/etc/kubeconfig",
            "--service-account-private-key-file", f"{state}/etc/sa.key",
            "--root-ca-file", f"{state}/certificates/apiserver.crt", "--leader-elect=false"]


def scheduler(state):
    return ["kube-scheduler", "--kubeconfig", f"{state}/etc/kubeconfig", "--leader-elect=false"]


def network(node):
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [{
        "type": "bridge", "bridge": f"cni{node.number}", "isGateway": True, "ipam": {
            "type": "host-local", "dataDir": "/var/lib/cni/pods",
            "ranges": [[{"subnet": node.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}}]})


def containerd(state, cdi, version):
    """Without CAP_SYS_RESOURCE, runc cannot lower the pause container's OOM score and dies with
    "can't get final child's PID from pipe". So restrict_oom_score_adj is set."""
    cdi = "true" if cdi else "false"
    if version < (2, 0):
        plugin, schema, binaries = "io.containerd.grpc.v1.cri", 2, 'bin_dir = "/usr/lib/cni"'
        images = f'''[plugins."{plugin}"]
  sandbox_image = "{image("pause")}"'''
    else:
        plugin, schema, binaries = "io.containerd.cri.v1.runtime", 3, 'bin_dirs = ["/usr/lib/cni"]'
        images = f'''[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{image("pause")}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{state}/etc/registries"
[plugins."{plugin}"]'''
    return f"""\
version = {schema}
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
{images}
  restrict_oom_score_adj = true
  enable_cdi = {cdi}
[plugins."{plugin}".cni]
  {binaries}
  conf_dir = "{state}/etc/cni"
[plugins."{plugin}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""


def kubelet_arguments(node, state):
    return ["kubelet", "--config", f"{state}/etc/kubelet.yaml",
            "--kubeconfig", f"{state}/etc/kubeconfig", "--node-ip", node.address,
            "--hostname-override", node.name]


def crio(state, programs, cdi):
    folders = '"/etc/cdi", "/run/cdi"' if cdi else ""
    return f"""\
[crio]
root = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
version_file = "/run/crio/version"
version_file_persist = ""
clean_shutdown_file = ""
[crio.api]
listen = "/run/crio/crio.sock"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = "{programs}/pinns"
cdi_spec_dirs = [{folders}]
[crio.runtime.runtimes.runc]
runtime_path = "{state}/etc/runc"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
[crio.image]
pause_image = "{image("pause")}"
pause_command = "/pause"
signature_policy = "{state}/etc/policy.json"
[crio.network]
network_dir = "{state}/etc/cni"
plugin_dirs = ["/usr/lib/cni"]
"""


def kubelet(node, version, socket="/run/containerd/containerd.sock"):
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "address": node.address, "healthzBindAddress": node.address,
        "resolvConf": "",
        # Only the cluster can reach it.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{node.cgroup}",
        "enforceNodeAllocatable": [], "failSwapOn": False,
        # A developer's disk may be nearly full; this must neither evict pods nor delete images.
        "evictionHard": {"memory.available": "10Mi", "nodefs.available": "1%",
                         "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        # Allocatable resources reach the scheduler within a second instead of ten.
        "nodeStatusUpdateFrequency": "1s",
        # How soon changed Secrets and ConfigMaps reach their pods.
        "syncFrequency": "10s",
    }
    if version >= (1, 31):
        settings["failCgroupV1"] = False
    if version >= (1, 32):
        # Crashed containers are restarted every two seconds instead of up to every 300.
        settings["featureGates"] = {"KubeletCrashLoopBackOffMax": True}
        settings["crashLoopBackOff"] = {"maxContainerRestartPeriod": "2s"}
    return json.dumps(settings, indent=1)


GPUS = 4
GPU_GIB = 16


def cards():
    """The node's GPUs, for the simulated driver."""
    lines = "".join(f"- name: Simulated GPU\n  memory: {GPU_GIB}Gi\n"
                    f"  uuid: {gpu_uuid(index)}\n" for index in range(GPUS))
    return f"gpus:\n{lines}"


def gpu_uuid(index):
    return f"GPU-c1057e50-0000-0000-0000-{index:012d}"
