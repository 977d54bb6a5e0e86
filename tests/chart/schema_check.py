"""Rules for the chart's schema that no tool checks: no object takes keys that it does not name, and
the plugin's keys are those of its own table, except for those that the chart sets.

usage: schema_check.py values.schema.json plugin-config.md
"""

import json
import re
import sys

# Set from values with other names, or useless in a cluster.
CHART_SETS = {"unit", "coexist", "driver-root", "host-root", "state-folder", "kubelet",
              "kubelet-folder", "pod-resources-socket", "plugins-registry-folder", "plugins-folder",
              "claims-folder",
              "cdi-folder", "features-folder", "allocation", "allocations", "metrics.address",
              "metrics.sample-ms", "metrics.host-pids", "probes.address"}
# Kubernetes itself defines and checks these.
OPEN = {"global", "nodeAffinity", "podAffinity", "podAntiAffinity", "valueFrom", "volume"}


def open_objects(schema, path):
    if isinstance(schema, dict):
        if schema.get("type") == "object" and path.rpartition("/")[2] not in OPEN:
            extra = schema.get("additionalProperties", True)
            if extra is True or ("properties" in schema and extra is not False):
                yield path
        for key, value in schema.items():
            yield from open_objects(value, f"{path}/{key}")
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from open_objects(value, f"{path}/{index}")


def plugin_keys(properties, prefix=""):
    for name, schema in properties.items():
        if "properties" in schema:
            yield from plugin_keys(schema["properties"], f"{name}.")
        else:
            yield prefix + name


def main():
    schema_path, document_path = sys.argv[1:]
    with open(schema_path, encoding="utf-8") as file:
        schema = json.load(file)
    with open(document_path, encoding="utf-8") as file:
        table = set(re.findall(r"^\| `([a-z][a-z.-]*)` \|", file.read(), re.MULTILINE))
    wrong = [f"{path} accepts any key" for path in open_objects(schema, "")]
    keys = set(plugin_keys(schema["$defs"]["pluginConfig"]["properties"]))
    wrong += [f"plugin.config lacks {key}" for key in sorted(table - CHART_SETS - keys)]
    wrong += [f"the plugin has no key {key}" for key in sorted((keys | CHART_SETS) - table)]
    if not schema["$schema"].endswith("2020-12/schema"):
        wrong.append("not draft 2020-12")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
