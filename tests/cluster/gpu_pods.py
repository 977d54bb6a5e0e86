"""Pods that share GPU memory, written by hand as the webhook would write them."""

from case import container, pod
from plugin import ATTACH, EXCLUSIVE, MEMORY
from settings import image

_SOCKETS = {"name": "gpushm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}


def user(name, *command, **more):
    """A container that attaches buffers."""
    return container(name, *command, resources={"limits": {ATTACH: "1"}}, volumeMounts=[
        {"name": "gpushm", "mountPath": "/run/gpushm", "subPath": name, "readOnly": True}], **more)


def sidecar(units, buffers, names):
    """Owns `buffers` ({name: size}). The containers in `names` reach it, once it is ready."""
    folders = [word for name in names for word in ("--container", name)]
    ready = ["gpushmctl", "--folder", f"/run/gpushm/{names[0]}", "wait", "--broker",
             "--timeout", "30s"]
    return {
        "name": "gpushm", "image": image("sidecar"), "imagePullPolicy": "Never",
        "restartPolicy": "Always", "args": [*folders, "--link", "/run/gpushm-link"],
        "env": [{"name": "GPUSHM_BUFFERS", "value": "\n".join(
            f"buffers.gpushm.io/{name}: {size}" for name, size in buffers.items())}],
        "resources": {"limits": {MEMORY: str(units)}},
        "volumeMounts": [{"name": "gpushm", "mountPath": "/run/gpushm"}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # The next container starts when the hook ends.
        "lifecycle": {"postStart": {"exec": {"command": ready}}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}}}


def gpu_pod(name, units=1, buffers=None, users=("a",), exclusive=0, **spec):
    """A sidecar with `units` units, and containers that use its buffers. `exclusive`: GPUs that it
    wants alone."""
    broker = sidecar(units, buffers or {"data": "4Mi"},
                     [u["name"] if isinstance(u, dict) else u for u in users])
    if exclusive:
        broker["resources"]["limits"][EXCLUSIVE] = str(exclusive)
    return pod(name, *(u if isinstance(u, dict) else user(u) for u in users), volumes=[_SOCKETS],
               initContainers=[broker], **spec)
