"""The few calls of the Kubernetes API that the suite needs. Objects are dicts as in JSON."""

import http.client
import json
import ssl
import time
import urllib.parse

from processes import Failure
import settings

# kind: path of its collection below the namespace (or of all, without one).
_PATHS = {
    "Node": "api/v1/nodes", "Namespace": "api/v1/namespaces", "Pod": "api/v1/pods",
    "Event": "api/v1/events", "ConfigMap": "api/v1/configmaps",
    "ServiceAccount": "api/v1/serviceaccounts", "Secret": "api/v1/secrets",
    "DaemonSet": "apis/apps/v1/daemonsets", "ReplicaSet": "apis/apps/v1/replicasets",
    "Deployment": "apis/apps/v1/deployments", "StatefulSet": "apis/apps/v1/statefulsets",
    "DeviceClass": "apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "apis/resource.k8s.io/v1/resourceslices",
    "ResourceClaim": "apis/resource.k8s.io/v1/resourceclaims",
    "ResourceClaimTemplate": "apis/resource.k8s.io/v1/resourceclaimtemplates",
    "Job": "apis/batch/v1/jobs", "RuntimeClass": "apis/node.k8s.io/v1/runtimeclasses",
    "EndpointSlice": "apis/discovery.k8s.io/v1/endpointslices",
    "MutatingWebhookConfiguration":
        "apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "Certificate": "apis/cert-manager.io/v1/certificates",
}
_GLOBAL = {"Node", "Namespace", "RuntimeClass", "ResourceSlice", "DeviceClass",
           "MutatingWebhookConfiguration"}


class Refused(Failure):
    """An error answer of the API server."""

    def __init__(self, status, body):
        super().__init__(f"HTTP {status}: {body.get('message', body)}")
        self.status = status


def _path(kind, namespace=None, name=None, **query):
    path = _PATHS[kind]
    if namespace and kind not in _GLOBAL:
        head, _, plural = path.rpartition("/")
        path = f"{head}/namespaces/{namespace}/{plural}"
    path += f"/{name}" if name else ""
    return "/" + path + ("?" + urllib.parse.urlencode(query) if query else "")


class Api:
    """The API of the cluster whose network the calling thread is in. For several threads at once."""

    def __init__(self):
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    def _connect(self, seconds):
        return http.client.HTTPSConnection(settings.API_SERVER, context=self._tls, timeout=seconds)

    def raw(self, method, path, body=None, content="application/json", seconds=30):
        connection = self._connect(seconds)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None,
                               {"Authorization": f"Bearer {settings.ADMIN_TOKEN}",
                                "Content-Type": content})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def call(self, method, path, body=None, content="application/json"):
        status, text = self.raw(method, path, body, content)
        try:
            value = json.loads(text)
        except ValueError:
            value = {"message": text}
        if status >= 300:
            raise Refused(status, value)
        return value

    def ready(self):
        try:
            return self.raw("GET", "/readyz", seconds=2)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def create(self, thing, namespace=None):
        namespace = namespace or thing["metadata"].get("namespace")
        return self.call("POST", _path(thing["kind"], namespace), thing)

    def get(self, kind, name, namespace=None):
        """The object, or None."""
        try:
            return self.call("GET", _path(kind, namespace, name))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def list(self, kind, namespace=None, **query):
        return self.call("GET", _path(kind, namespace, **query))["items"]

    def patch(self, kind, name, change, namespace=None):
        return self.call("PATCH", _path(kind, namespace, name), change,
                         "application/merge-patch+json")

    def ensure_namespace(self, name, labels):
        """Makes the namespace unless it exists; returns when pods can be made in it."""
        if name not in {n["metadata"]["name"] for n in self.list("Namespace")}:
            self.create({"apiVersion": "v1", "kind": "Namespace",
                         "metadata": {"name": name, "labels": labels}})
        self.wait("ServiceAccount", name, bool, 60, lambda _: f"no ServiceAccount in {name}")

    def delete(self, kind, name, namespace=None, grace_seconds=None):
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            return self.call("DELETE", _path(kind, namespace, name),
                             {"kind": "DeleteOptions", "apiVersion": "v1",
                              "propagationPolicy": "Background", **options})
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def remove_namespace(self, name, seconds=60):
        """Returns when it is gone, with everything in it."""
        self.delete("Namespace", name)
        self.wait("Namespace", None, lambda all_of: name not in all_of, seconds,
                  lambda _: f"namespace {name} is not removed")

    def log(self, namespace, pod, container):
        path = _path("Pod", namespace, pod) + f"/log?container={container}"
        return self.raw("GET", path)[1]

    def wait(self, kind, namespace, condition, seconds, what, **query):
        """Watches until `condition` of {name: object} is true, and returns its value. `what`,
        called with the last objects, says what did not happen."""
        deadline = time.monotonic() + seconds
        while True:
            listing = self.call("GET", _path(kind, namespace, **query))
            objects = {thing["metadata"]["name"]: thing for thing in listing["items"]}
            value = condition(objects)
            left = deadline - time.monotonic()
            if value:
                return value
            if left <= 0:
                raise Failure(f"after {seconds} s: {what(objects)}")
            value = self._watch(_path(
                kind, namespace, watch=1, timeoutSeconds=max(1, int(left) + 1),
                resourceVersion=listing["metadata"]["resourceVersion"], **query),
                objects, condition, deadline)
            if value:
                return value

    def _watch(self, path, objects, condition, deadline):
        """Keeps `objects` current until `condition` is true, the deadline passes, or the stream
        ends."""
        connection = self._connect(max(0.1, deadline - time.monotonic()))
        try:
            connection.request("GET", path,
                               headers={"Authorization": f"Bearer {settings.ADMIN_TOKEN}"})
            answer = connection.getresponse()
            if answer.status != 200:
                return None  # Too old: list again.
            while time.monotonic() < deadline:
                line = answer.readline()
                if not line:
                    return None
                event = json.loads(line)
                name = event["object"].get("metadata", {}).get("name")
                if event["type"] == "ERROR":
                    return None
                if event["type"] == "DELETED":
                    objects.pop(name, None)
                elif event["type"] != "BOOKMARK":
                    objects[name] = event["object"]
                value = condition(objects)
                if value:
                    return value
                if connection.sock:
                    connection.sock.settimeout(max(0.1, deadline - time.monotonic()))
        except (OSError, ValueError, http.client.HTTPException):
            return None  # The API server is being restarted, or the deadline passed.
        finally:
            connection.close()
        return None
