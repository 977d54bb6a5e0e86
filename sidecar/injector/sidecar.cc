#include "sidecar/injector/sidecar.h"

#include <algorithm>
#include <utility>

#include "contract/annotations/keys.h"
#include "contract/annotations/sizing.h"
#include "contract/protocol/link.h"
#include "platform/yaml/quantity.h"

namespace gpushm::injector {
namespace {

constexpr char kFiles[] = "/run/gpushm-files";
constexpr char kLink[] = "/run/gpushm-link";
constexpr char kMpsPart[] = ".mps";  // No container's name begins with a dot.
constexpr char kCudaIpcPart[] = ".cuda-ipc";
constexpr char kReadyTimeout[] = "60s";
constexpr uint64_t kMpsCpuMillis = 500;
constexpr uint64_t kMpsCpuRequestMillis = 10;
constexpr uint64_t kMpsMemoryBytes = uint64_t{256} << 20;
constexpr uint64_t kMpsMemoryRequestBytes = uint64_t{96} << 20;
constexpr uint64_t kMpsWaitMemoryBytes = uint64_t{32} << 20;

std::string Cpus(uint64_t millis) { return Concat(millis, "m"); }

Json FieldVariable(const char* name, const char* path) {
  return {{"name", name}, {"valueFrom", {{"fieldRef", {{"fieldPath", path}}}}}};
}

std::string Written(const Json& quantity) {
  return quantity.is_string() ? quantity.get<std::string>() : quantity.dump();
}

// Whether the pod would be of QoS class Guaranteed without the sidecar: each container has limits
// for CPU and memory, and no request differs from its limit. A limit of 0 counts as no limit.
bool IsGuaranteed(const PodView& pod) {
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
bool PodHas(const PodView& pod, const char* resource) {
  const Pointer at("/spec/resources");
  return Find(pod.json(), at / "requests" / resource) != nullptr ||
         Find(pod.json(), at / "limits" / resource) != nullptr;
}

// The kubelet expands $(NAME) and turns $$ into $.
std::string Unexpanded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '$') out += c;
  }
  return out;
}

Json GpuResources(const GpuRequest& request) {
  Json resources = Json::object();
  for (const auto& [resource, count] : request.resources) {
    resources["requests"][resource] = resources["limits"][resource] = std::to_string(count);
  }
  if (!request.claims.empty()) resources["claims"] = request.claims;
  return resources;
}

struct Amount {
  uint64_t request;
  uint64_t limit;
};

// The resources of a container that the injector adds. What the pod's annotation asks is request
// and limit, because a LimitRange may allow no other value.
Json Resources(const PodView& pod, const GpuRequest& gpu,
               const annotations::ContainerResources& asked, Amount cpu_millis,
               Amount memory_bytes) {
  Json resources = GpuResources(gpu);
  const bool guaranteed = IsGuaranteed(pod);
  const auto put = [&](const char* name, std::optional<uint64_t> own, Amount amount, auto write) {
    if (own) amount = {*own, *own};
    if (!own && PodHas(pod, name)) return;
    const uint64_t limit = std::max(amount.request, amount.limit);
    resources["limits"][name] = write(limit);
    resources["requests"][name] = write(guaranteed ? limit : amount.request);
  };
  put("cpu", asked.cpu_millis, cpu_millis, Cpus);
  put("memory", asked.memory_bytes, memory_bytes, yaml::FormatBytes);
  return resources;
}

// What Pod Security "restricted" asks for.
Json Restricted() {
  return {{"allowPrivilegeEscalation", false},
          {"capabilities", {{"drop", Json::array({"ALL"})}}},
          {"privileged", false},
          {"readOnlyRootFilesystem", true},
          {"runAsNonRoot", true},
          {"seccompProfile", {{"type", "RuntimeDefault"}}}};
}

Json SecurityContext(const PodView& pod, const Plan& plan, const Settings& settings,
                     std::optional<int64_t> uid) {
  Json context = Restricted();
  if (uid) {
    context["runAsUser"] = *uid;
    // If the pod sets a group of its own, that group lets the loaders read the files in the pod's
    // volumes.
    if (Find(pod.json(), Pointer("/spec/securityContext/runAsGroup")) == nullptr) {
      context["runAsGroup"] = *uid;
    }
  }
  if (plan.spec.host_ipc) context["runAsGroup"] = settings.host_ipc_group;
  return context;
}

Json Arguments(const Plan& plan) {
  Json words = Json::array();
  for (const std::string& name : plan.done.containers) {
    words.push_back("--container");
    words.push_back(name);
  }
  words.push_back("--link");
  words.push_back(kLink);
  if (plan.spec.host_ipc) words.push_back("--pod-uid=$(GPUSHM_POD_UID)");
  if (plan.spec.cuda_ipc) {
    words.push_back("--cuda-ipc");
    words.push_back(Concat(kSocketFolder, "/", kCudaIpcPart));
  }
  if (plan.mps) {
    words.push_back("--mps-folder");
    words.push_back(plan.SharesMps() ? kMpsFolder : Concat(kSocketFolder, "/", kMpsPart));
  }
  return words;
}

}  // namespace

GpuRequest RequestOf(const Plan& plan, Asker asker) {
  GpuRequest request;
  if (plan.UsesClaim()) {
    request.claims = ClaimEntries(plan, asker);
    return request;
  }
  if (asker != Asker::kBroker) {
    request.resources = {{kAttachResource, 1}};
    return request;
  }
  request.resources = {{kMemoryResource, plan.units}};
  if (plan.spec.gpus > 1) request.resources.emplace_back(kGpusResource, plan.spec.gpus);
  if (plan.spec.exclusive) request.resources.emplace_back(kExclusiveResource, plan.spec.gpus);
  if (plan.spec.nvlink) request.resources.emplace_back(kNvlinkResource, 1);
  return request;
}

std::vector<Json> ClaimVariables(const std::string& container) {
  return {{{"name", kFolderVariable}, {"value", protocol::kClaimFolder}},
          FieldVariable("GPUSHM_POD", "metadata.name"),
          {{"name", "GPUSHM_CONTAINER"}, {"value", container}}};
}

Json DeviceOrder() { return {{"name", kDeviceOrderVariable}, {"value", kDeviceOrder}}; }

// YAML in which each value is a JSON string, which is also a valid YAML string.
std::string BuffersVariable(const PodView& pod) {
  std::string text;
  for (const auto& [key, value] : pod.annotations()) {
    if (!annotations::IsOurKey(key) || key == annotations::kStatusKey) continue;
    text += Unexpanded(Concat(key, ": ", Json(value).dump(), "\n"));
  }
  return text;
}

Result<annotations::PodSpec> ReadBuffersVariable(const Container& sidecar) {
  for (const Json& variable : Items(*sidecar.json, Pointer("/env"))) {
    if (!variable.is_object() || variable.value("name", "") != annotations::kBuffersVariable)
      continue;
    const auto told = variable.value("value", std::string());
    std::string text;
    for (size_t i = 0; i < told.size(); ++i) {
      text += told[i];
      if (told.substr(i, 2) == "$$") ++i;
    }
    return annotations::ParseBuffersEnvironment(text);
  }
  return Fail(Code::kNotFound,
              Concat("the sidecar has no environment variable ", annotations::kBuffersVariable));
}

Json SidecarContainer(const PodView& pod, const Plan& plan, const Settings& settings,
                      std::optional<int64_t> uid) {
  Json mounts = Json::array({{{"name", kVolumeName}, {"mountPath", kSocketFolder}}});
  const std::string socket = Concat(kSocketFolder, "/", plan.done.containers.front());
  Json variables =
      Json::array({{{"name", annotations::kBuffersVariable}, {"value", BuffersVariable(pod)}},
                   FieldVariable("GPUSHM_POD_NAMESPACE", "metadata.namespace"),
                   FieldVariable("GPUSHM_POD_NAME", "metadata.name"),
                   FieldVariable("GPUSHM_POD_UID", "metadata.uid")});
  if (plan.spec.gpus > 1) variables.push_back(DeviceOrder());
  return {
      {"name", kSidecarName},
      {"image", settings.sidecar_image},
      {"imagePullPolicy", settings.pull_policy},
      {"restartPolicy", "Always"},
      {"args", Arguments(plan)},
      {"env", variables},
      {"resources", Resources(pod, RequestOf(plan, Asker::kBroker), plan.spec.sidecar,
                              {settings.cpu_millis, settings.cpu_limit_millis},
                              {settings.memory_bytes, settings.memory_bytes})},
      {"volumeMounts", mounts},
      // The next container starts when the hook ends. A startupProbe would take a second longer.
      {"lifecycle",
       {{"postStart",
         {{"exec",
           {{"command", Json::array({"/usr/bin/gpushmctl", "--folder", socket, "wait", "--broker",
                                     "--timeout", kReadyTimeout})}}}}}}},
      // The broker's last log lines say why it could not start.
      {"terminationMessagePolicy", "FallbackToLogsOnError"},
      {"securityContext", SecurityContext(pod, plan, settings, uid)}};
}

Json LoaderContainer(const PodView& pod, const Plan& plan, const annotations::BufferSpec& buffer,
                     const Settings& settings, std::optional<int64_t> uid) {
  Json command = Json::array({"/usr/bin/gpushmctl", "load", "--stay"});
  if (buffer.file_bytes != 0) {
    command.push_back(Concat("--bytes=", buffer.file_bytes));
  }
  if (!buffer.digest.empty()) {
    command.push_back(Concat("--digest=", buffer.digest.ToString()));
  }
  command.push_back(Unexpanded(Concat(kFiles, "/", buffer.FilePath())));
  command.push_back(buffer.name);
  const std::string name = annotations::LoaderOf(buffer.name);
  Json loader = {
      {"name", name},
      {"image", settings.sidecar_image},
      {"imagePullPolicy", settings.pull_policy},
      {"restartPolicy", "Always"},
      {"command", std::move(command)},
      {"resources", Resources(pod, RequestOf(plan, Asker::kApplication), plan.spec.loader,
                              {settings.loader_cpu_millis, settings.loader_cpu_limit_millis},
                              {settings.loader_memory_bytes, settings.loader_memory_limit_bytes})},
      // Without the propagation it would not see what is mounted there later, as by a
      // FUSE daemon that was started again.
      {"volumeMounts", Json::array({SocketMount(name),
                                    {{"name", buffer.FileVolume()},
                                     {"mountPath", kFiles},
                                     {"readOnly", true},
                                     {"mountPropagation", "HostToContainer"}}})},
      {"terminationMessagePolicy", "FallbackToLogsOnError"},
      {"securityContext", SecurityContext(pod, plan, settings, uid)}};
  if (plan.spec.gpus > 1) loader["env"] = Json::array({DeviceOrder()});
  return loader;
}

// The limits leave room for the server: 64 MiB of the host on an H100.
Json MpsContainer(const PodView& pod, const Plan& plan, const Settings& settings) {
  const Asker asker = plan.SharesMps() ? Asker::kMps : Asker::kApplication;
  Json context = Restricted();
  Json words = Json::array({"/usr/bin/gpushm-mps", "--pipe-folder", kMpsFolder});
  context["runAsUser"] = plan.mps->uid.value_or(0);
  context["runAsNonRoot"] = plan.mps->uid.value_or(0) != 0;
  if (plan.mps->uid) {
    words.push_back("--server-uid");
    words.push_back(std::to_string(*plan.mps->uid));
  } else {
    // A daemon that serves several uids starts the server of each as that uid.
    context["capabilities"]["add"] = Json::array({"SETUID", "SETGID"});
  }
  Json daemon = {{"name", kMpsName},
                 {"image", settings.sidecar_image},
                 {"imagePullPolicy", settings.pull_policy},
                 {"restartPolicy", "Always"},
                 {"command", words},
                 {"resources",
                  Resources(pod, RequestOf(plan, asker), {}, {kMpsCpuRequestMillis, kMpsCpuMillis},
                            {kMpsMemoryRequestBytes, kMpsMemoryBytes})},
                 {"lifecycle",
                  {{"postStart",
                    {{"exec",
                      {{"command", Json::array({"/usr/bin/gpushm-mps", "wait", "--pipe-folder",
                                                kMpsFolder, "--timeout", "60"})}}}}}}},
                 {"terminationMessagePolicy", "FallbackToLogsOnError"},
                 {"securityContext", context}};
  // The plugin mounts the folder of a claim's daemon.
  if (!plan.SharesMps()) daemon["volumeMounts"] = Json::array({MpsMount(/*writable=*/true)});
  // The limits of its clients name GPUs by the daemon's numbers.
  if (plan.spec.gpus > 1) daemon["env"] = Json::array({DeviceOrder()});
  return daemon;
}

Json MpsWaitContainer(const PodView& pod, const Plan& plan, const Settings& settings) {
  constexpr int64_t kNobody = 65534;
  Json context = Restricted();
  context["runAsUser"] = plan.mps->uid.value_or(kNobody);
  context["runAsNonRoot"] = plan.mps->uid != 0;
  return {{"name", kMpsName},
          {"image", settings.sidecar_image},
          {"imagePullPolicy", settings.pull_policy},
          {"command", Json::array({"/usr/bin/gpushm-mps", "wait", "--pipe-folder", kMpsFolder,
                                   "--timeout", "60"})},
          // As little as possible: the pod requests the largest of its init containers.
          {"resources", Resources(pod, RequestOf(plan, Asker::kApplication), {},
                                  {kMpsCpuRequestMillis, kMpsCpuRequestMillis},
                                  {kMpsWaitMemoryBytes, kMpsWaitMemoryBytes})},
          {"terminationMessagePolicy", "FallbackToLogsOnError"},
          {"securityContext", context}};
}

std::vector<std::pair<std::string, std::string>> MpsVariables(const Plan& plan,
                                                              const std::string& container) {
  if (!plan.mps) return {};
  std::vector<std::pair<std::string, std::string>> variables = {
      {"CUDA_MPS_PIPE_DIRECTORY", kMpsFolder}};
  if (plan.spec.mps.enforce_private) {
    std::string limits;
    for (uint32_t gpu = 0; gpu < plan.spec.gpus; ++gpu) {
      const uint64_t mebibytes = annotations::ContainerBytes(plan.spec, container, gpu) >> 20;
      limits += Concat(gpu == 0 ? "" : ",", gpu, "=", mebibytes, "M");
    }
    variables.emplace_back("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits);
  }
  if (const auto percent = plan.spec.mps.compute_percent.find(container);
      percent != plan.spec.mps.compute_percent.end()) {
    variables.emplace_back("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", std::to_string(percent->second));
  }
  return variables;
}

Json MpsMount(bool writable) {
  Json mount = {{"name", kVolumeName}, {"mountPath", kMpsFolder}, {"subPath", kMpsPart}};
  if (!writable) mount["readOnly"] = true;
  return mount;
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
