// The table of keys; the reference document is made from it.
#include "plugin/config/plugin_config.h"

namespace gpushm::plugin::config {
namespace {

using yaml::kExperimental;
using yaml::KeyInfo;

constexpr KeyInfo kKeys[] = {
    {"gpus", "", "`all`, or a list of UUIDs, indices and MIG profiles", "all",
     "The GPUs and MIG instances to hand out. An index selects all instances of its GPU, a profile "
     "such as `1g.18gb` all instances of that size.",
     "[0, 1g.18gb]"},
    {"unit", "", "quantity", "1Gi",
     "Memory of one `gpushm.io/memory` unit; a multiple of 2Mi. A node has at most 4,096 units.",
     "1Gi"},
    {"reserve", "", "quantity", "1Gi",
     "Memory of each GPU that is not advertised: for the driver itself, and for memory that is not "
     "shared.",
     "2Gi"},
    {"attach-tokens", "", "number from 1 to 4096", "64",
     "Number of `gpushm.io/attach` for each GPU: how many containers can use it at a time.", "64"},
    {"binding.tenancy", "", "`shared` or `namespace`", "shared",
     "Which pods may be on one GPU: all, or those of one namespace. A pod for which only GPUs of "
     "other namespaces have room waits.",
     "namespace"},
    {"driver-root", "", "`auto` or absolute path", "auto",
     "The root of the driver's installation on the node: `/`, or `/run/nvidia/driver` with the "
     "GPU operator.",
     "/run/nvidia/driver"},
    {"host-root", "", "absolute path, or empty", "''",
     "Path at which the plugin sees the node's root. Empty if it does not run in a container.",
     "/host", "", kExperimental},
    {"coexist", "", "`true` or `false`", "false",
     "Containers may request GPUs of other device plugins as well. Without it, a GPU that another "
     "plugin hands out is left to that plugin.",
     "true"},
    {"kubelet", "", "`auto` or `none`", "auto",
     "`none`: a machine without Kubernetes, served by `allocations`.", "none"},
    {"allocation", "", "`device-plugin` or `dra`", "device-plugin",
     "How pods get memory: by extended resources, or by ResourceClaims, for which the scheduler "
     "chooses the GPU. `dra` needs Kubernetes 1.36 or newer.",
     "dra"},
    {"dra.api-server", "", "`host:port`, or empty", "''",
     "Where the API server is. Empty: as the environment of every pod says.", "10.96.0.1:443", "",
     kExperimental},
    {"dra.credentials-folder", "", "absolute path", "/var/run/secrets/kubernetes.io/serviceaccount",
     "Folder with `token` and `ca.crt` for the API server.",
     "/var/run/secrets/kubernetes.io/serviceaccount", "", kExperimental},
    {"plugins-folder", "", "absolute path", "/var/lib/kubelet/plugins",
     "With `allocation: dra`: the kubelet's folder of plugins, at the same path as the kubelet "
     "has it.",
     "/var/lib/kubelet/plugins", "", kExperimental},
    {"claims-folder", "", "absolute path", "/run/gpushm-claims",
     "With `allocation: dra`: where the plugin mounts a small tmpfs for each claim whose pods run "
     "under one MPS daemon. It must be the same mount in the plugin's container and on the node "
     "(mountPropagation: Bidirectional).",
     "/run/gpushm-claims", "", kExperimental},
    {"kubelet-folder", "", "absolute path", "/var/lib/kubelet/device-plugins",
     "The kubelet's folder of device plugins.", "/var/lib/kubelet/device-plugins"},
    {"pod-resources-socket", "", "absolute path", "/var/lib/kubelet/pod-resources/kubelet.sock",
     "The kubelet's socket that reports which container holds which device IDs.",
     "/var/lib/kubelet/pod-resources/kubelet.sock"},
    {"plugins-registry-folder", "", "absolute path", "/var/lib/kubelet/plugins_registry",
     "The kubelet's folder of plugin registrations. There the plugin detects NVIDIA's driver for "
     "dynamic resource allocation, which hands out all GPUs of a node.",
     "/var/lib/kubelet/plugins_registry", "", kExperimental},
    {"not-gpus", "", "list of resources", "[]",
     "Resources of `nvidia.com/` that are not GPUs, such as network cards. If another plugin hands "
     "out a device of `nvidia.com/` that could be any GPU, this plugin hands out none.",
     "[nvidia.com/hostdev]"},
    {"cdi-folder", "", "absolute path", "/var/run/cdi",
     "Folder in which the container runtime reads CDI specs that do not survive a reboot.",
     "/var/run/cdi"},
    {"state-folder", "", "absolute path", "/var/lib/gpushm",
     "Files, folders and sockets that are mounted into containers. Programs run from it, so it "
     "must not be on a noexec file system.",
     "/var/lib/gpushm"},
    {"features-folder", "", "absolute path, or empty", "''",
     "Folder in which Node Feature Discovery reads feature files. There the plugin writes the "
     "labels `gpushm.io/largest-free` of the node ([operations.md](../guides/operations.md"
     "#largest-free)). Empty: not written.",
     "/etc/kubernetes/node-feature-discovery/features.d"},
    {"allocations", "", "list of maps", "[]",
     "With `kubelet: none`: the pools of this machine. Each has a `name` (a DNS label), `memory` "
     "and optionally a `gpu` (UUID or index).",
     "[{name: demo, memory: 8Gi}]"},
    {"health.ignore-xids", "", "list of numbers from 1 to 65535", "[]",
     "XIDs that leave a GPU healthy, whatever [xids.md](xids.md) says.", "[74]", "", kExperimental},
    {"health.fatal-xids", "", "list of numbers from 1 to 65535", "[]",
     "XIDs that make a GPU unhealthy, whatever [xids.md](xids.md) says.", "[63]", "",
     kExperimental},
    {"health.recheck-ms", "", "number from 100 to 60000", "1000",
     "Time between two checks of a GPU. Events are handled immediately.", "5000", "",
     kExperimental},
    {"health.good-probes", "", "number from 1 to 100", "3",
     "Successful checks in a row before an unhealthy GPU is healthy again.", "3", "",
     kExperimental},
    {"health.quiet-ms", "", "number from 1000 to 86400000", "600000",
     "How long a GPU must be quiet after an XID, if the driver reports no recovery action.",
     "600000", "", kExperimental},
    {"metrics.address", "", "`host:port`, or empty", ":9400",
     "Where `/metrics` is served. Without a host: on all addresses. Empty: not served.",
     "127.0.0.1:9400"},
    {"metrics.sample-ms", "", "number from 100 to 300000", "5000",
     "Time between two reads of a GPU's metrics from NVML. A scrape never calls NVML.", "15000"},
    {"metrics.host-pids", "", "`true` or `false`", "false",
     "The plugin runs in the host's PID namespace (`hostPID: true`), so it can report the private "
     "GPU memory of containers, and processes outside of their pod's MPS.",
     "true", "", kExperimental},
    {"status.address", "", "`host:port`, or empty", "127.0.0.1:9401",
     "Where the status page is served. It shows all pods of the node to anyone who can reach it; "
     "on loopback, use `kubectl port-forward`. Empty: not served.",
     "127.0.0.1:9401"},
    {"probes.address", "", "`host:port`, or empty", "''",
     "Where `/healthz` and `/readyz` are served for the kubelet's probes, apart from metrics, so "
     "that no scraper can hold up a probe. Without a host: on all addresses. Empty: not served. The "
     "chart sets `:9402`.",
     ":9402"},
    {"log.level", "", "`debug`, `info`, `warning` or `error`", "info",
     "Lowest level that is logged.", "debug", "", kExperimental},
    {"log.format", "", "`text` or `json`", "text", "Format of log lines.", "json", "",
     kExperimental},
};

}  // namespace

std::span<const KeyInfo> PluginKeys() { return kKeys; }

}  // namespace gpushm::plugin::config
