#include "sidecar/injector/sidecar.h"

#include <algorithm>
#include <utility>

#include "contract/annotations/keys.h"
#include "contract/protocol/link.h"
#include "platform/yaml/quantity.h"

namespace gpushm::injector {
namespace {

constexpr char kLink[] = "/run/gpushm-link";
constexpr char kCudaIpcPart[] = ".cuda-ipc";
constexpr char kReadyTimeout[] = "60s";

std::string Cpus(uint64_t millis) { return Concat(millis, "m"); }

Json FieldVariable(const char* name, const char* path) {
  return {{"name", name}, {"valueFrom", {{"fieldRef", {{"fieldPath", path}}}}}};
}

std::string Written(const Json& quantity) {
  return quantity.is_string() ? quantity.get<std::string>() : quantity.dump();
}

// Whether the pod would be of QoS class Guaranteed without the sidecar: each container has limits
// for CPU and memory, and no request differs from its limit. A limit of 0 counts as no limit.
bool IsGuaranteed(const Pod& pod) {
  const auto fixed = [](const Container& container, const char* resource) {
    const Json* const limit = container.Resource("limits", resource);
    const Json* const request = container.Resource("requests", resource);
    return limit != nullptr && !yaml::IsSameQuantity(Written(*limit), "0") &&
           (request == nullptr || yaml::IsSameQuantity(Written(*request), Written(*limit)));
  };
  return std::ranges::all_of(pod.containers(), [&](const Container& container) {
    return IsOurContainer(container.name) ||
           (fixed(container, "cpu") && fixed(container, "memory"));
  });
}

// Whether the pod sets this resource for the pod as a whole (spec.resources, since Kubernetes
// 1.34). All its containers then share that amount, and the sum of their requests may not exceed
// it. With cgroup v1 no container's limit may exceed it either.
bool PodHas(const Pod& pod, const char* resource) {
  const Pointer at("/spec/resources");
  return Find(pod.json(), at / "requests" / resource) != nullptr ||
         Find(pod.json(), at / "limits" / resource) != nullptr;
}

// What the pod's annotation asks is request and limit, because a LimitRange may allow no other
// value.
Json Resources(const Pod& pod, const GpuRequest& gpu, const annotations::ContainerResources& asked,
               const HostResources& usual) {
  Json resources = Json::object();
  for (const auto& [resource, count] : gpu.resources) {
    resources["requests"][resource] = resources["limits"][resource] = std::to_string(count);
  }
  if (!gpu.claims.empty()) resources["claims"] = gpu.claims;
  const bool guaranteed = IsGuaranteed(pod);
  const auto put = [&](const char* name, std::optional<uint64_t> own, HostResources::Amount amount,
                       auto write) {
    if (own) amount = {*own, *own};
    if (!own && PodHas(pod, name)) return;
    const uint64_t limit = std::max(amount.request, amount.limit);
    resources["limits"][name] = write(limit);
    resources["requests"][name] = write(guaranteed ? limit : amount.request);
  };
  put("cpu", asked.cpu_millis, usual.cpu_millis, Cpus);
  put("memory", asked.memory_bytes, usual.memory_bytes, yaml::FormatBytes);
  return resources;
}

Json Arguments(const Pod& pod) {
  Json words = Json::array();
  for (const std::string& name : pod.done.containers) {
    words.push_back("--container");
    words.push_back(name);
  }
  words.push_back("--link");
  words.push_back(kLink);
  if (pod.spec.host_ipc) words.push_back("--pod-uid=$(GPUSHM_POD_UID)");
  if (pod.spec.cuda_ipc) {
    words.push_back("--cuda-ipc");
    words.push_back(Concat(kSocketFolder, "/", kCudaIpcPart));
  }
  if (pod.mps) {
    words.push_back("--mps-folder");
    words.push_back(pod.SharesMps() ? kMpsFolder : Concat(kSocketFolder, "/", kMpsPart));
  }
  return words;
}

}  // namespace

std::vector<Json> ClaimVariables(const std::string& container) {
  return {{{"name", kFolderVariable}, {"value", protocol::kClaimFolder}},
          FieldVariable("GPUSHM_POD", "metadata.name"),
          {{"name", "GPUSHM_CONTAINER"}, {"value", container}}};
}

Json DeviceOrder() { return {{"name", kDeviceOrderVariable}, {"value", kDeviceOrder}}; }

Json AddedContainer(const Pod& pod, const std::string& name, const GpuRequest& gpu,
                    const annotations::ContainerResources& asked, const HostResources& usual) {
  return {{"name", name},
          {"image", pod.settings->sidecar_image},
          {"imagePullPolicy", pod.settings->pull_policy},
          {"resources", Resources(pod, gpu, asked, usual)},
          // Its last log lines say why it could not start.
          {"terminationMessagePolicy", "FallbackToLogsOnError"},
          {"securityContext",
           {{"allowPrivilegeEscalation", false},
            {"capabilities", {{"drop", Json::array({"ALL"})}}},
            {"privileged", false},
            {"readOnlyRootFilesystem", true},
            {"runAsNonRoot", true},
            {"seccompProfile", {{"type", "RuntimeDefault"}}}}}};
}

void RunAs(const Pod& pod, std::optional<int64_t> uid, Json* container) {
  Json& context = (*container)["securityContext"];
  if (uid) {
    context["runAsUser"] = *uid;
    // If the pod sets a group of its own, that group lets the loaders read the files in the pod's
    // volumes.
    if (Find(pod.json(), Pointer("/spec/securityContext/runAsGroup")) == nullptr) {
      context["runAsGroup"] = *uid;
    }
  }
  if (pod.spec.host_ipc) context["runAsGroup"] = pod.settings->host_ipc_group;
}

Json SidecarContainer(const Pod& pod, std::optional<int64_t> uid) {
  const Settings& settings = *pod.settings;
  Json sidecar = AddedContainer(pod, kSidecarName, pod.RequestOf(Asker::kBroker), pod.spec.sidecar,
                                {.cpu_millis = {settings.cpu_millis, settings.cpu_limit_millis},
                                 .memory_bytes = {settings.memory_bytes, settings.memory_bytes}});
  sidecar["restartPolicy"] = "Always";
  sidecar["args"] = Arguments(pod);
  sidecar["env"] =
      Json::array({{{"name", annotations::kBuffersVariable}, {"value", pod.buffers_variable}},
                   FieldVariable("GPUSHM_POD_NAMESPACE", "metadata.namespace"),
                   FieldVariable("GPUSHM_POD_NAME", "metadata.name"),
                   FieldVariable("GPUSHM_POD_UID", "metadata.uid")});
  if (pod.spec.gpus > 1) sidecar["env"].push_back(DeviceOrder());
  sidecar["volumeMounts"] = Json::array({{{"name", kVolumeName}, {"mountPath", kSocketFolder}}});
  // The next container starts when the hook ends. A startupProbe would take a second longer.
  sidecar["lifecycle"]["postStart"]["exec"]["command"] = Json::array(
      {"/usr/bin/gpushmctl", "--folder", Concat(kSocketFolder, "/", pod.done.containers.front()),
       "wait", "--broker", "--timeout", kReadyTimeout});
  RunAs(pod, uid, &sidecar);
  return sidecar;
}

std::vector<Json> CudaIpcMounts() {
  return {{{"name", kVolumeName},
           {"mountPath", annotations::kCudaIpcFolder},
           {"subPath", kCudaIpcPart},
           {"readOnly", true}},
          {{"name", kVolumeName},
           {"mountPath", kPreloadFile},
           {"subPath", Concat(kCudaIpcPart, "/ld.so.preload")},
           {"readOnly", true}}};
}

Json SocketVolume() {
  return {{"name", kVolumeName}, {"emptyDir", {{"medium", "Memory"}, {"sizeLimit", "8Mi"}}}};
}

Json SocketMount(const std::string& container) {
  static const Json kMount = {
      {"name", kVolumeName}, {"mountPath", kSocketFolder}, {"readOnly", true}};
  Json mount = kMount;  // Kept static, because a pod may have hundreds of mounts.
  mount["subPath"] = container;
  return mount;
}

}  // namespace gpushm::injector
