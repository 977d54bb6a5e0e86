#include "sidecar/injector/mps.h"

#include <algorithm>
#include <cstdint>
#include <expected>

#include "contract/annotations/sizing.h"
#include "sidecar/injector/sidecar.h"

namespace gpushm::injector {
namespace {

using yaml::ConfigError;

// The limits leave room for the server: 64 MiB of the host on an H100.
constexpr HostResources kDaemon = {
    .cpu_millis = {.request = 10, .limit = 500},
    .memory_bytes = {.request = uint64_t{96} << 20, .limit = uint64_t{256} << 20}};
// As little as possible: the pod requests the largest of its init containers.
constexpr HostResources kWait = {
    .cpu_millis = {.request = 10, .limit = 10},
    .memory_bytes = {.request = uint64_t{32} << 20, .limit = uint64_t{32} << 20}};

// The uid as which the container runs; nullptr if its image decides.
const Json* UidOf(const Pod& pod, const Container& container) {
  const Json* const own = Find(*container.json, Pointer("/securityContext/runAsUser"));
  return own != nullptr ? own : Find(pod.json(), Pointer("/spec/securityContext/runAsUser"));
}

// The uid as which the MPS daemon must run: that of all containers that attach. On failure, why
// there is none.
std::expected<int64_t, ConfigError> MpsUid(const Pod& pod) {
  std::optional<int64_t> common;
  if (pod.spec.mps.uid) common = *pod.spec.mps.uid;
  for (const Container* const container : pod.Attaching()) {
    const Json* const uid = UidOf(pod, *container);
    const std::string field = Concat(container->Field(), ".securityContext.runAsUser");
    if (uid == nullptr && pod.spec.mps.uid) continue;
    if (uid == nullptr || !uid->is_number_integer()) {
      return std::unexpected(PodError(
          field, "is not set, and an MPS daemon serves only containers that run as its own uid",
          "runAsUser: 1000 in the pod's securityContext, or gpushm.io/mps-uid: \"1000\" if the images "
          "run as that uid"));
    }
    if (common && *common != uid->get<int64_t>()) {
      return std::unexpected(
          PodError(field,
                   Concat("is ", uid->dump(),
                          ", and another container of the pod or gpushm.io/mps-uid says ", *common,
                          ": an MPS daemon serves only containers that run as its own uid"),
                   Concat("runAsUser: ", *common,
                          ", or gpushm.io/mps-uid: any in a namespace that allows the "
                          "capabilities SETUID and SETGID")));
    }
    common = uid->get<int64_t>();
  }
  return common.value_or(0);
}

// A variable of MPS that the container sets itself would win over gpushm's.
void CheckVariables(const Pod& pod, Findings* found) {
  for (const Container* const container : pod.Attaching()) {
    for (const auto& [variable, value] : MpsVariables(pod, container->name)) {
      for (const Json& there : Items(*container->json, Pointer("/env"))) {
        if (!there.is_object() || there.value("name", "") != variable) continue;
        if (there.value("value", "") == value) continue;
        found->Deny(Concat(container->Field(), ".env.", variable),
                    "gpushm sets this variable, because the pod asks for MPS", "remove it");
      }
    }
  }
}

}  // namespace

std::optional<MpsPlan> PlanMps(const Pod& pod) {
  if (pod.spec.mps.any_uid) return MpsPlan{};
  const auto uid = MpsUid(pod);
  return uid ? std::optional(MpsPlan{*uid}) : std::nullopt;
}

void CheckMps(const Pod& pod, Findings* found) {
  if (pod.mps) return CheckVariables(pod, found);
  const ConfigError why = MpsUid(pod).error();
  if (pod.spec.mps.wanted || pod.spec.role == annotations::ClaimRole::kMps) {
    return found->errors.Add(why);
  }
  found->warnings.push_back(Concat(
      "gpushm: the pod runs without MPS, so its busy containers take turns on the GPU: ", why.field,
      " ", why.reason));
}

Json MpsContainer(const Pod& pod) {
  constexpr int64_t kNobody = 65534;
  const std::optional<int64_t> uid = pod.mps->uid;
  const bool runs = pod.RunsMps();
  Json container =
      AddedContainer(pod, kMpsName, pod.RequestOf(pod.MpsAsker()), {}, runs ? kDaemon : kWait);
  Json& context = container["securityContext"];
  context["runAsUser"] = uid.value_or(runs ? 0 : kNobody);
  context["runAsNonRoot"] = context["runAsUser"] != 0;
  const Json wait =
      Json::array({"/usr/bin/gpushm-mps", "wait", "--pipe-folder", kMpsFolder, "--timeout", "60"});
  if (!runs) {
    container["command"] = wait;
    return container;
  }
  container["restartPolicy"] = "Always";
  container["command"] = Json::array({"/usr/bin/gpushm-mps", "--pipe-folder", kMpsFolder});
  if (uid) {
    container["command"].push_back("--server-uid");
    container["command"].push_back(std::to_string(*uid));
  } else {
    // A daemon that serves several uids starts the server of each as that uid.
    context["capabilities"]["add"] = Json::array({"SETUID", "SETGID"});
  }
  container["lifecycle"]["postStart"]["exec"]["command"] = wait;
  // The plugin mounts the folder of a claim's daemon.
  if (!pod.SharesMps()) container["volumeMounts"] = Json::array({MpsMount(/*writable=*/true)});
  // The limits of its clients name GPUs by the daemon's numbers.
  if (pod.spec.gpus > 1) container["env"] = Json::array({DeviceOrder()});
  return container;
}

std::vector<std::pair<std::string, std::string>> MpsVariables(const Pod& pod,
                                                              const std::string& container) {
  if (!pod.mps) return {};
  std::vector<std::pair<std::string, std::string>> variables = {
      {"CUDA_MPS_PIPE_DIRECTORY", kMpsFolder}};
  if (pod.spec.mps.enforce_private) {
    std::string limits;
    for (uint32_t gpu = 0; gpu < pod.spec.gpus; ++gpu) {
      const uint64_t mebibytes = annotations::ContainerBytes(pod.spec, container, gpu) >> 20;
      limits += Concat(gpu == 0 ? "" : ",", gpu, "=", mebibytes, "M");
    }
    variables.emplace_back("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits);
  }
  if (const auto percent = pod.spec.mps.compute_percent.find(container);
      percent != pod.spec.mps.compute_percent.end()) {
    variables.emplace_back("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", std::to_string(percent->second));
  }
  return variables;
}

Json MpsMount(bool writable) {
  Json mount = {{"name", kVolumeName}, {"mountPath", kMpsFolder}, {"subPath", kMpsPart}};
  if (!writable) mount["readOnly"] = true;
  return mount;
}

}  // namespace gpushm::injector
