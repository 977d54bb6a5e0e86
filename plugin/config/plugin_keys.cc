// The table of keys, what follows from it, and the document made from it.
#include <algorithm>

#include "plugin/config/plugin_config.h"

namespace gpushm::plugin {
namespace {

using config::KeyInfo;

constexpr KeyInfo kKeys[] = {
    {"gpus", "", "`all`, or a list of UUIDs, indices and MIG profiles", "all",
     "The GPUs and MIG instances to hand out. An index stands for all instances of its GPU, a "
     "profile such as `1g.18gb` for all instances of that size.",
     "[0, 1g.18gb]"},
    {"unit", "", "quantity", "1Gi",
     "What one `gpushm.io/memory` stands for; a multiple of 2Mi. A node has at most 4,096 of them.",
     "1Gi"},
    {"reserve", "", "quantity", "1Gi",
     "Kept back of each GPU: what the driver itself takes, and room for what is not shared.",
     "2Gi"},
    {"attach-tokens", "", "number from 1 to 4096", "64",
     "`gpushm.io/attach` for each GPU: how many containers can use it at a time.", "64"},
    {"strategy", "", "`cdi` or `devices`", "cdi",
     "How GPUs come into containers. `devices` is for runtimes without CDI; what it cannot do is "
     "in "
     "[plugin.md](plugin.md).",
     "cdi"},
    {"driver-root", "", "`auto` or absolute path", "auto",
     "The root of the driver's installation on the node: `/`, or `/run/nvidia/driver` with the GPU "
     "operator.",
     "/run/nvidia/driver"},
    {"host-root", "", "absolute path, or empty", "''",
     "Where the node's root is visible to the plugin; empty where it runs outside of a container.",
     "/host"},
    {"coexist", "", "`true` or `false`", "false",
     "Other plugins hand out GPUs of this node as well, and containers may ask for both. Without "
     "it "
     "a GPU that another plugin hands out is left to that one.",
     "true"},
    {"kubelet", "", "`auto` or `none`", "auto",
     "`none`: a machine without Kubernetes, served by `allocations`.", "none"},
    {"kubelet-folder", "", "absolute path", "/var/lib/kubelet/device-plugins",
     "The kubelet's folder of device plugins.", "/var/lib/kubelet/device-plugins"},
    {"pod-resources-socket", "", "absolute path", "/var/lib/kubelet/pod-resources/kubelet.sock",
     "The kubelet's socket that tells whose device IDs are whose.",
     "/var/lib/kubelet/pod-resources/kubelet.sock"},
    {"plugins-registry-folder", "", "absolute path", "/var/lib/kubelet/plugins_registry",
     "The kubelet's folder of registrations, where NVIDIA's driver for dynamic resource allocation "
     "is seen, which hands out all GPUs of a node.",
     "/var/lib/kubelet/plugins_registry"},
    {"not-gpus", "", "list of resources", "[]",
     "Resources of `nvidia.com/` that are no GPUs, such as network cards: another plugin that "
     "hands out a device of `nvidia.com/` which cannot be told from a GPU keeps this one from "
     "handing out any.",
     "[nvidia.com/hostdev]"},
    {"cdi-folder", "", "absolute path", "/var/run/cdi",
     "Where the container runtime reads CDI specs that do not outlive a reboot.", "/var/run/cdi"},
    {"state-folder", "", "absolute path", "/var/lib/gpushm",
     "Files, folders and sockets that go into containers. Programs run from it: not noexec.",
     "/var/lib/gpushm"},
    {"allocations", "", "list of maps", "[]",
     "With `kubelet: none`: the pools of this machine, each with a `name` (a DNS label), `memory` "
     "and, unless any will do, a `gpu` (UUID or index).",
     "[{name: demo, memory: 8Gi}]"},
    {"health.ignore-xids", "", "list of numbers from 1 to 65535", "[]",
     "XIDs that leave a GPU healthy, whatever [xids.md](xids.md) says.", "[74]"},
    {"health.fatal-xids", "", "list of numbers from 1 to 65535", "[]",
     "XIDs that make a GPU unhealthy, whatever xids.md says.", "[63]"},
    {"health.recheck-ms", "", "number from 100 to 60000", "1000",
     "Between two looks at a GPU. Events are heard at once.", "5000"},
    {"health.good-probes", "", "number from 1 to 100", "3",
     "Good looks in a row before an unhealthy GPU is healthy again.", "3"},
    {"health.quiet-ms", "", "number from 1000 to 86400000", "600000",
     "How long nothing may happen after an XID, where the driver has no opinion of its own.",
     "600000"},
    {"metrics.address", "", "`host:port`, or empty", ":9400",
     "Where Prometheus finds `/metrics`; without a host: on all addresses. Empty: nowhere.",
     "127.0.0.1:9400"},
    {"metrics.sample-ms", "", "number from 100 to 300000", "5000",
     "Between two questions to NVML for what metrics tell of a GPU. A scrape never asks NVML.",
     "15000"},
    {"metrics.host-pids", "", "`true` or `false`", "false",
     "The plugin runs in the host's PID namespace (`hostPID: true`), so it can tell the private "
     "GPU "
     "memory of containers.",
     "true"},
    {"status.address", "", "`host:port`, or empty", "127.0.0.1:9401",
     "Where the status page is. It shows all pods of the node to whoever reaches it: on loopback "
     "`kubectl port-forward` does. Empty: nowhere.",
     "127.0.0.1:9401"},
    {"probes.address", "", "`host:port`, or empty", "''",
     "Where the kubelet's probes find `/healthz` and `/readyz`, apart from metrics, so that no "
     "scraper can hold up a probe. Without a host: on all addresses. Empty: nowhere. The chart "
     "has `:9402`.",
     ":9402"},
    {"log.level", "", "`debug`, `info`, `warning` or `error`", "info", "The least that is logged.",
     "debug"},
    {"log.format", "", "`text` or `json`", "text", "How log lines look.", "json"},
};

// One that needs a restart, and where it is kept.
struct Fixed {
  std::string_view key;
  bool (*same)(const PluginConfig&, const PluginConfig&);
  void (*copy)(const PluginConfig& from, PluginConfig& to);
};

template <auto Member>
constexpr Fixed At(std::string_view key) {
  return {key, [](const PluginConfig& a, const PluginConfig& b) { return Member(a) == Member(b); },
          [](const PluginConfig& from, PluginConfig& to) { Member(to) = Member(from); }};
}

// unit: what is bound counts in units, also in the specs on disk. The others are read once.
constexpr Fixed kFixed[] = {
    At<[](auto& c) -> auto& { return c.rules.unit_bytes; }>("unit"),
    At<[](auto& c) -> auto& { return c.strategy; }>("strategy"),
    At<[](auto& c) -> auto& { return c.driver_root; }>("driver-root"),
    At<[](auto& c) -> auto& { return c.host_root; }>("host-root"),
    At<[](auto& c) -> auto& { return c.coexist; }>("coexist"),
    At<[](auto& c) -> auto& { return c.kubelet; }>("kubelet"),
    At<[](auto& c) -> auto& { return c.kubelet_folder; }>("kubelet-folder"),
    At<[](auto& c) -> auto& { return c.pod_resources_socket; }>("pod-resources-socket"),
    At<[](auto& c) -> auto& { return c.plugins_registry_folder; }>("plugins-registry-folder"),
    At<[](auto& c) -> auto& { return c.not_gpus; }>("not-gpus"),
    At<[](auto& c) -> auto& { return c.cdi_folder; }>("cdi-folder"),
    At<[](auto& c) -> auto& { return c.state_folder; }>("state-folder"),
    At<[](auto& c) -> auto& { return c.allocations; }>("allocations"),
    At<[](auto& c) -> auto& { return c.monitoring.metrics_address; }>("metrics.address"),
    At<[](auto& c) -> auto& { return c.monitoring.host_pids; }>("metrics.host-pids"),
    At<[](auto& c) -> auto& { return c.monitoring.status_address; }>("status.address"),
    At<[](auto& c) -> auto& { return c.monitoring.probes_address; }>("probes.address"),
};

}  // namespace

bool NeedsRestart(std::string_view key) {
  return std::ranges::find(kFixed, key, &Fixed::key) != std::end(kFixed);
}

std::span<const KeyInfo> PluginKeys() { return kKeys; }

TakenOver TakeOver(const PluginConfig& now, const PluginConfig& next) {
  TakenOver taken{next, {}};
  for (const Fixed& fixed : kFixed) {
    if (fixed.same(now, next)) continue;
    taken.restart.push_back(fixed.key);
    fixed.copy(now, taken.config);
  }
  return taken;
}

}  // namespace gpushm::plugin
