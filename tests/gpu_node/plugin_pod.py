"""The device plugin as a static pod: the settings of deploy/plugin.yaml, with a file of this
machine instead of the ConfigMap, which needs an API server."""

import json
import pathlib

from plugin import documents

NAME = "gpushm-plugin"
CONTAINER = "plugin"


def plugin_pod(manifest, config_folder, simulated=None):
    """`manifest`: deploy/plugin.yaml as JSON. Writes plugin.yaml into `config_folder`. `simulated`:
    (folder of the simulated driver, folder of its cards)."""
    things = {thing["kind"]: thing for some in documents(manifest.read_text()) for thing in some}
    template = things["DaemonSet"]["spec"]["template"]
    spec = template["spec"]
    for key in ("serviceAccountName", "affinity", "nodeSelector"):  # For clusters only.
        spec.pop(key, None)
    # As with metrics.hostPids of the chart: processes outside of their pod's MPS are shown.
    spec["hostPID"] = True
    config = things["ConfigMap"]["data"]["plugin.yaml"].replace("host-pids: false", "host-pids: true")
    for volume in spec["volumes"]:
        if volume.pop("configMap", None):
            volume["hostPath"] = {"path": str(config_folder), "type": "Directory"}
    if simulated:
        driver, cards = simulated
        config = config.replace("driver-root: auto", f"driver-root: {driver}")
        _add_cards(spec, str(cards))
    config_folder.mkdir(exist_ok=True)
    pathlib.Path(config_folder, "plugin.yaml").write_text(config)
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": {
        "name": NAME, "namespace": things["DaemonSet"]["metadata"]["namespace"],
        "labels": template["metadata"]["labels"]}}


def _add_cards(spec, cards):
    """The simulated driver's cards are files; real ones would be device nodes."""
    spec["volumes"].append({"name": "cards", "hostPath": {"path": cards}})
    container = spec["containers"][0]
    container["volumeMounts"].append({"name": "cards", "mountPath": cards})
    container["env"].append({"name": "GPUSHM_SIM_DIR", "value": cards})


def asked_security(pod):
    return json.dumps(pod["spec"]["containers"][0]["securityContext"], sort_keys=True)
