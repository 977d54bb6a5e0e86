#include "sidecar/injector/plan.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <string_view>

#include "contract/annotations/entries.h"
#include "contract/annotations/keys.h"
#include "contract/annotations/sizing.h"
#include "contract/limits.h"
#include "contract/protocol/link.h"
#include "platform/base/version.h"
#include "platform/yaml/quantity.h"
#include "sidecar/injector/claim.h"
#include "sidecar/injector/digest.h"
#include "sidecar/injector/sidecar.h"

namespace gpushm::injector {
namespace {

using yaml::ConfigError;
using yaml::ErrorList;

constexpr char kEndsTooEarly[] =
    "is an init container that ends before the pod runs, so it cannot attach: the kubelet "
    "would admit it again after a restart. Set its restartPolicy: Always, or load the buffer from "
    "its file: file: <volume>/<path>";
// A container's environment variable holds at most 128 KiB (execve(2), MAX_ARG_STRLEN).
constexpr size_t kVariableBytes = 120 * 1024;
// The most containers, and also volumes, of a pod with gpushm's annotations: far more than a node
// can run.
constexpr size_t kMostListed = 1024;
// The most of gpushm.io/status that is parsed. It is an object with lists of names, one per
// container.
constexpr char kUserRole[] = "user";  // In gpushm.io/status of a pod without a sidecar.
constexpr size_t kStatusBytes = 64 * 1024;
constexpr ptrdiff_t kStatusBrackets = 8;

std::string DigestOf(const annotations::Annotations& annotations) {
  uint64_t hash = kEmptyDigest;
  const auto add = [&hash](std::string_view text) {
    hash = AddToDigest(AddToDigest(hash, text), "\xFF");
  };
  for (const auto& [key, value] : annotations) {
    if (!annotations::IsOurKey(key) || key == annotations::kStatusKey) continue;
    add(key);
    add(value);
  }
  return HexDigits(hash);
}

ConfigError PodError(std::string field, std::string reason, std::string example) {
  ConfigError error;
  error.field = std::move(field);
  error.reason = std::move(reason);
  error.example = std::move(example);
  return error;
}

std::string FieldOf(const Container& container) {
  return Concat(container.kind == Kind::kApplication ? "spec.containers" : "spec.initContainers",
                "[", container.at.back(), "] (", container.name, ")");
}

// A pod without a sidecar of its own may not bring one: it would act as the owner's broker.
void CheckUser(const PodView& pod, const Plan& plan, ErrorList* errors) {
  for (const Container& container : pod.containers()) {
    if (plan.UsesOthers() && (container.name == kSidecarName || IsLoader(container.name))) {
      errors->Add(PodError(FieldOf(container),
                           "only the owner of a claim has this container, which gpushm adds",
                           Concat("remove it, or ", annotations::kRoleKey, ": owner")));
    }
    if (!plan.spec.claim.empty() && container.name == protocol::kOtherPods) {
      errors->Add(PodError(FieldOf(container),
                           "gpushm means the other pods of the claim by this name",
                           "name: server"));
    }
    const Json* const folder = container.Variable(kFolderVariable);
    const Json* const value = folder == nullptr ? nullptr : Find(*folder, Pointer("/value"));
    if (!plan.UsesOthers() && value != nullptr && *value == protocol::kClaimFolder) {
      errors->Add(PodError(Concat(FieldOf(container), ".env.", kFolderVariable),
                           "this container would use what another pod declares, and the pod has "
                           "buffers of its own",
                           "remove it"));
    }
  }
}

// Only gpushm may name the pod's claim: with its name, a container could have the broker's part.
void CheckClaims(const PodView& pod, const std::optional<Done>& done, const Plan& plan,
                 ErrorList* errors) {
  const bool ours = done && plan.UsesClaim();
  const Json& claims = Items(pod.json(), Pointer("/spec/resourceClaims"));
  for (size_t i = 0; i < claims.size(); ++i) {
    if (!claims[i].is_object()) continue;
    if (claims[i].value("name", "") != kClaimName) {
      if (plan.spec.claim.empty() || claims[i].value("resourceClaimName", "") != plan.spec.claim) {
        continue;
      }
      errors->Add(PodError(Concat("spec.resourceClaims[", i, "]"),
                           "gpushm adds this claim, and gives each container its part",
                           "remove it"));
      continue;
    }
    if (ours) continue;
    errors->Add(PodError(Concat("spec.resourceClaims[", i, "]"),
                         plan.UsesClaim()
                             ? "the name gpushm is reserved for the claim that gpushm adds"
                             : "the pod gets its GPU memory as extended resources, not by a claim",
                         "remove it; gpushm.io/allocation: dra makes gpushm add a claim"));
  }
  for (const Container& container : pod.containers()) {
    if (container.name == kSidecarName) continue;
    const bool daemon = container.name == kMpsName && plan.mps && plan.RunsMps();
    const bool attaches = IsOurContainer(container.name) ||
                          std::ranges::count(plan.done.containers, container.name) > 0;
    const std::vector<Json> allowed =
        ClaimEntries(plan, daemon && plan.SharesMps() ? Asker::kMps : Asker::kApplication);
    for (const Json& entry : container.Claims()) {
      if (!entry.is_object() || entry.value("name", "") != kClaimName) continue;
      if (ours && attaches && std::ranges::count(allowed, entry) > 0) continue;
      errors->Add(PodError(Concat(FieldOf(container), ".resources.claims"),
                           "only gpushm may give the claim gpushm to a container",
                           Concat("remove it; ", annotations::kPrivatePrefix, container.name,
                                  ": 1Gi makes a container attach")));
    }
  }
}

// Checks that the names and places that the sidecar needs are free.
void CheckFree(const PodView& pod, const std::optional<Done>& done, ErrorList* errors) {
  const Container* const taken = pod.Find(kSidecarName);
  if (taken != nullptr && !done) {
    const auto told = ReadBuffersVariable(*taken);
    const bool copied = told || told.error().code() != Code::kNotFound;
    errors->Add(
        copied
            ? PodError(
                  FieldOf(*taken),
                  "is the sidecar of a pod that was copied without its annotation gpushm.io/status",
                  "remove the init container gpushm, or keep gpushm.io/status")
            : PodError(FieldOf(*taken), "this name is reserved for the sidecar that gpushm adds",
                       "name: my-gpushm"));
  }
  for (const Container& container : pod.containers()) {
    if (!IsLoader(container.name) || done) continue;
    errors->Add(PodError(FieldOf(container),
                         "names that begin with gpushm-load- are reserved for the containers that "
                         "load files, which gpushm adds",
                         "name: my-loader"));
  }
  if (const Container* const mps = pod.Find(kMpsName); mps != nullptr && !done) {
    errors->Add(PodError(FieldOf(*mps), "this name is reserved for the MPS daemon that gpushm adds",
                         "name: my-mps"));
  }
  const Json* const volume = pod.Volume(kVolumeName);
  if (volume != nullptr && *volume != SocketVolume()) {
    errors->Add(PodError("spec.volumes",
                         "the name gpushm is reserved for the volume with gpushm's sockets",
                         "name: my-gpushm"));
  }
}

bool IsCudaIpc(const Container::Mount& mount) {
  return std::ranges::any_of(CudaIpcMounts(), [&](const Json& ours) { return mount.Is(ours); });
}

// Each container may mount only its own part of the volume. A container that mounted the whole
// volume could reach every socket.
void CheckMounts(const PodView& pod, const Plan& plan, ErrorList* errors) {
  for (const Container& container : pod.containers()) {
    if (IsOurContainer(container.name)) continue;
    const bool served = std::ranges::count(plan.done.containers, container.name) > 0;
    for (const Container::Mount& mount : container.Mounts()) {
      const std::string field = Concat(FieldOf(container), ".volumeMounts");
      if (mount.volume == kVolumeName) {
        if (mount.Is(SocketMount(container.name)) ||
            (served && (mount.Is(MpsMount(/*writable=*/false)) || IsCudaIpc(mount)))) {
          continue;
        }
        errors->Add(
            PodError(field, "only gpushm may mount the volume gpushm", "remove this mount"));
      } else if (served && plan.spec.cuda_ipc && mount.path == kPreloadFile) {
        errors->Add(PodError(
            field, Concat(kPreloadFile, " is where gpushm.io/cuda-ipc mounts its own file"),
            "name the library in the container's LD_PRELOAD instead"));
      } else if (served && (mount.path == kSocketFolder || mount.path == kMpsFolder ||
                            mount.path == annotations::kCudaIpcFolder)) {
        errors->Add(PodError(field, Concat(mount.path, " is reserved for gpushm's sockets"),
                             "mountPath: /run/my-gpushm"));
      }
    }
  }
}

// GPUs, shares of GPUs and MIG instances, as NVIDIA's device plugin names them. Other resources,
// such as nvidia.com/hostdev of its Network Operator, are not GPUs.
bool IsOtherGpu(std::string_view resource) {
  return resource == "nvidia.com/gpu" || resource.starts_with("nvidia.com/gpu.") ||
         resource.starts_with("nvidia.com/mig-");
}

// Only gpushm may request its own resources. A container that requested them itself would get a GPU
// that is not in the plan.
void CheckResources(const PodView& pod, const Plan& plan, const Settings& settings,
                    ErrorList* errors) {
  for (const Container& container : pod.containers()) {
    if (IsOurContainer(container.name)) continue;
    const bool attaches = std::ranges::count(plan.done.containers, container.name) > 0;
    for (const char* const list : {"limits", "requests"}) {
      const Json* const resources = Find(*container.json, Pointer("/resources") / list);
      if (resources == nullptr || !resources->is_object()) continue;
      for (const auto& [key, value] : resources->items()) {
        const std::string field = Concat(FieldOf(container), ".resources.", list, ".", key);
        if (key == kAttachResource && attaches && !plan.UsesClaim()) {
          if (IsNumber(&value, 1)) continue;
          errors->Add(PodError(field, "a container can attach only once",
                               "remove it; gpushm adds a request for 1"));
        } else if (IsNumber(&value, 0)) {
          continue;  // Requests none.
        } else if (key == kMemoryResource || key == kAttachResource || key == kExclusiveResource ||
                   key == kGpusResource || key == kNvlinkResource) {
          errors->Add(PodError(
              field,
              "only gpushm may request this resource, for the containers that the annotations name",
              Concat("remove it; ", annotations::kPrivatePrefix, container.name,
                     ": 1Gi makes a container attach")));
        } else if (attaches && !settings.coexist && IsOtherGpu(key)) {
          errors->Add(PodError(
              field,
              "the container gets the GPU of its pod's buffers, so it may not request another GPU",
              "remove it, or set the chart's value coexist: true, which allows both"));
        }
      }
    }
  }
}

// The annotation that declares the buffer. With `gpu: each` one declares a buffer of each GPU.
std::string AnnotationOf(const PodView& pod, const annotations::BufferSpec& buffer) {
  std::string key = Concat(annotations::kBuffersPrefix, buffer.name);
  return pod.annotations().contains(key) ? key : key.substr(0, key.rfind('-'));
}

// Why the loader cannot read files of the volume, as far as the pod shows it, and what to write
// instead; empty if it can.
struct Unreadable {
  std::string why = {};
  std::string example = {};
};

// What each of these modes says is for other users: the loader runs as a user of its own.
Unreadable ModeOf(const PodView& pod, const Json& source, const Settings& settings) {
  constexpr int64_t kDefaultMode = 0644;
  constexpr int64_t kOthersRead = 04;
  // The kubelet gives the files to that group. Platforms that assign uids also set it.
  const bool by_group =
      !settings.assign_uid || Find(pod.json(), Pointer("/spec/securityContext/fsGroup")) != nullptr;
  if (by_group) return {};
  const Json* const said = Find(source, Pointer("/defaultMode"));
  const int64_t mode =
      said != nullptr && said->is_number_integer() ? said->get<int64_t>() : kDefaultMode;
  if ((mode & kOthersRead) != 0) return {};
  char text[16];
  std::snprintf(text, sizeof text, "%04llo", static_cast<unsigned long long>(mode & 07777));
  return {Concat("has the defaultMode ", text, ", with which only root reads its files"),
          "defaultMode: 0444, or an fsGroup in the pod's securityContext"};
}

Unreadable WhyUnreadable(const PodView& pod, const Json& volume, const std::string& name,
                         const Settings& settings) {
  for (const char* const source : {"secret", "configMap", "downwardAPI", "projected"}) {
    const Json* const found = Find(volume, Pointer() / source);
    if (found != nullptr && found->is_object()) return ModeOf(pod, *found, settings);
  }
  const Json* const kind = Find(volume, Pointer("/hostPath/type"));
  for (const char* const other : {"File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice"}) {
    if (kind == nullptr || *kind != other) continue;
    return {Concat("is a hostPath of the type ", other, ", and files are in folders"),
            "the folder as the hostPath's path, with type: Directory"};
  }
  const Json* const mode = Find(volume, Pointer("/ephemeral/volumeClaimTemplate/spec/volumeMode"));
  Unreadable block{"is a block device, which has no files", "volumeMode: Filesystem"};
  if (mode != nullptr && *mode == "Block") return block;
  for (const Container& container : pod.containers()) {
    for (const Json& device : Items(*container.json, Pointer("/volumeDevices"))) {
      if (!device.is_object() || device.value("name", "") != name) continue;
      block.why = Concat("is a block device (volumeDevices of container ", container.name,
                         "), which has no files");
      return block;
    }
  }
  return {};
}

void CheckVolumes(const PodView& pod, const Plan& plan, const Settings& settings,
                  ErrorList* errors) {
  const std::vector<std::string> volumes = pod.Volumes();
  std::set<std::string> reported;
  for (const annotations::BufferSpec& buffer : plan.spec.buffers) {
    const std::string volume(buffer.FileVolume());
    if (volume.empty()) continue;
    const Json* const there = pod.Volume(volume);
    const Unreadable bad =
        there == nullptr ? Unreadable() : WhyUnreadable(pod, *there, volume, settings);
    if (there != nullptr && bad.why.empty()) continue;
    ConfigError error;
    error.annotation = AnnotationOf(pod, buffer);
    if (!reported.insert(error.annotation).second) continue;
    error.field = "file";
    if (there != nullptr) {
      error.reason = Concat("the volume ", yaml::Quote(volume), " ", bad.why);
      error.example = bad.example;
      errors->Add(std::move(error));
      continue;
    }
    const std::string_view nearest =
        errors->full() ? std::string_view() : Nearest(volume, std::span(volumes));
    error.reason =
        Concat("the pod has no volume ", yaml::Quote(volume),
               nearest.empty() ? std::string() : Concat("; the nearest is ", yaml::Quote(nearest)));
    error.example = Concat("file: ", nearest.empty() ? "models" : nearest, "/", buffer.FilePath());
    errors->Add(std::move(error));
  }
}

void CheckRuntimeClass(const PodView& pod, const Settings& settings, ErrorList* errors) {
  const Json* const found = Find(pod.json(), Pointer("/spec/runtimeClassName"));
  if (found == nullptr || !found->is_string()) return;
  const auto& name = found->get_ref<const std::string&>();
  const auto matches = [&name](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  };
  if (!std::ranges::any_of(settings.denied_runtime_classes, matches)) return;
  errors->Add(PodError("spec.runtimeClassName",
                       Concat(yaml::Quote(name),
                              " runs containers in a virtual machine or on a user-space kernel, "
                              "so a descriptor of a GPU buffer cannot be passed to them"),
                       "leave runtimeClassName out, or name one that uses the node's kernel, "
                       "such as runtimeClassName: nvidia"));
}

// The uid as which the container runs; nullptr if its image decides.
const Json* UidOf(const PodView& pod, const Container& container) {
  const Json* const own = Find(*container.json, Pointer("/securityContext/runAsUser"));
  return own != nullptr ? own : Find(pod.json(), Pointer("/spec/securityContext/runAsUser"));
}

// The uid as which the MPS daemon must run: that of all containers that attach. On failure, why
// there is none.
std::expected<int64_t, ConfigError> MpsUid(const PodView& pod, const Plan& plan) {
  std::optional<int64_t> common;
  if (plan.spec.mps.uid) common = *plan.spec.mps.uid;
  for (const std::string& name : plan.done.containers) {
    const Container* const container = pod.Find(name);
    if (container == nullptr) continue;
    const Json* const uid = UidOf(pod, *container);
    const std::string field = Concat(FieldOf(*container), ".securityContext.runAsUser");
    if (uid == nullptr && plan.spec.mps.uid) continue;
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
void CheckVariables(const PodView& pod, const Plan& plan, ErrorList* errors) {
  for (const std::string& name : plan.done.containers) {
    const Container* const container = pod.Find(name);
    if (container == nullptr) continue;
    for (const auto& [variable, value] : MpsVariables(plan, name)) {
      for (const Json& there : Items(*container->json, Pointer("/env"))) {
        if (!there.is_object() || there.value("name", "") != variable) continue;
        if (there.value("value", "") == value) continue;
        errors->Add(PodError(Concat(FieldOf(*container), ".env.", variable),
                             "gpushm sets this variable, because the pod asks for MPS",
                             "remove it"));
      }
    }
  }
}

void PlanMps(const PodView& pod, const Settings& settings, Plan* plan, ErrorList* errors) {
  annotations::MpsSpec& mps = plan->spec.mps;
  const bool runs_for_all = plan->spec.role == annotations::ClaimRole::kMps;
  // Only its author knows whether a claim has a daemon.
  const bool by_default = plan->SharesMps() ? runs_for_all : settings.mps;
  const bool wanted = mps.wanted.value_or(by_default);
  const auto needs = [&](std::string key) {
    errors->Add(PodError(Concat("metadata.annotations.", key),
                         "needs MPS, and the pod does not run under it",
                         Concat(annotations::kMpsKey, ": \"true\"")));
  };
  for (const auto& [container, percent] : mps.compute_percent) {
    const std::string key = Concat(annotations::kComputePrefix, container);
    if (!wanted) needs(key);
    if (std::ranges::count(plan->done.containers, container) > 0) continue;
    errors->Add(PodError(Concat("metadata.annotations.", key),
                         Concat("the container ", yaml::Quote(container), " does not attach"),
                         Concat(annotations::kPrivatePrefix, container, ": 1Gi makes it attach")));
  }
  if (!wanted && mps.enforce_private) needs(std::string(annotations::kEnforcePrivateKey));
  if (wanted && mps.enforce_private && plan->spec.host_ipc) {
    errors->Add(
        PodError(std::string(annotations::kEnforcePrivateKey),
                 "memory of other pods counts against the limit, and how much there will be "
                 "is not known",
                 Concat("remove it, or ", annotations::kHostIpcKey)));
  }
  if (!wanted && (mps.uid || mps.any_uid)) needs(std::string(annotations::kMpsUidKey));
  if (!wanted) return;
  const auto uid = MpsUid(pod, *plan);
  if (mps.any_uid) {
    plan->mps = MpsPlan{};
  } else if (uid) {
    plan->mps = MpsPlan{*uid};
  } else if (mps.wanted || runs_for_all) {
    errors->Add(uid.error());
    return;
  } else {
    plan->warnings.push_back(
        Concat("gpushm: the pod runs without MPS, so its busy containers take "
               "turns on the GPU: ",
               uid.error().field, " ", uid.error().reason));
    return;
  }
  CheckVariables(pod, *plan, errors);
}

// A container that chooses another order of its GPUs gets it, but then gpushm's numbers are not
// CUDA's.
void CheckDeviceOrder(const PodView& pod, Plan* plan) {
  if (plan->spec.gpus == 1) return;
  for (const std::string& name : plan->done.containers) {
    const Container* const container = pod.Find(name);
    const Json* const there =
        container == nullptr ? nullptr : container->Variable(kDeviceOrderVariable);
    const Json* const value = there == nullptr ? nullptr : Find(*there, Pointer("/value"));
    if (there == nullptr || (value != nullptr && *value == kDeviceOrder)) continue;
    plan->warnings.push_back(Concat("gpushm: ", FieldOf(*container), ".env.", kDeviceOrderVariable,
                                    " is not ", kDeviceOrder,
                                    ", so CUDA may number the GPUs in another order than gpushm"));
  }
}

// Checks the annotations against the rest of the pod.
void CheckPod(const PodView& pod, const Plan& plan, ErrorList* errors) {
  for (const char* const flag : {"shareProcessNamespace", "hostPID"}) {
    if (!plan.spec.HasAccessLists() || !pod.Flag(flag)) continue;
    errors->Add(PodError(Concat("spec.", flag),
                         "containers that share a process namespace can take each other's sockets, "
                         "so the lists `containers` and `writers` could not be enforced",
                         Concat(flag, ": false, or remove these lists")));
  }
  if (plan.spec.host_ipc && !pod.Flag("hostIPC")) {
    errors->Add(PodError(std::string(annotations::kHostIpcKey),
                         "the pod itself must set hostIPC: true", "hostIPC: true"));
  }
  if (const Json* const os = Find(pod.json(), Pointer("/spec/os/name"))) {
    if (*os != "linux") {
      errors->Add(PodError("spec.os.name", Concat(Shown(os), ": gpushm needs Linux"), "linux"));
    }
  }
}

void CheckLimits(const Plan& plan, const Settings& settings, ErrorList* errors) {
  if (plan.done.containers.empty()) {
    errors->Add(PodError("spec.containers", "no container would attach", "name: model"));
  }
  const size_t served = plan.done.containers.size() + plan.loaded.size();
  if (served > limits::kContainers) {
    errors->Add(
        PodError("spec.containers",
                 Concat(served, " containers would be served; at most ", limits::kContainers),
                 "name the containers that attach: containers: [decoder, model]"));
  }
  if (plan.UsesClaim() && plan.spec.claim.empty() && !settings.makes_claims) {
    errors->Add(PodError(Concat("metadata.annotations.", annotations::kAllocationKey),
                         "the pod would need a ResourceClaim, and this installation makes none",
                         "device-plugin, or the chart's value injector.claims: true"));
  }
  // Of a shared claim, its author decides.
  if (settings.max_pod_bytes == 0 || !plan.spec.claim.empty()) return;
  // The device plugin allocates only whole units, so the rest of the GPU is not available.
  const uint64_t most_units = settings.max_pod_bytes / settings.unit_bytes;  // Of one GPU.
  const uint64_t most =
      plan.UsesClaim() ? settings.max_pod_bytes : most_units * settings.unit_bytes;
  const auto fits = annotations::CheckFits(plan.spec, most, "the largest GPU of the cluster");
  if (fits) return;
  const std::string units =
      plan.UsesClaim() ? ""
                       : Concat("That is ", plan.units, " ", kMemoryResource, ", but at most ",
                                most_units * plan.spec.gpus, " are possible; ");
  errors->Add(PodError("metadata.annotations",
                       Concat(fits.error().what(), ". ", units, fits.error().remedy()), ""));
}

// This check comes first, because later checks compare names with names, and messages repeat them.
std::optional<ConfigError> TooMany(const PodView& pod) {
  const auto too_many = [](const char* field, size_t there, const char* what) {
    return PodError(field, Concat("the pod has ", there, what, "; at most ", kMostListed),
                    "split the pod, or set gpushm.io/inject: \"false\"");
  };
  const size_t containers = pod.containers().size();
  if (containers > kMostListed) return too_many("spec.containers", containers, " containers");
  const std::vector<std::string> volumes = pod.Volumes();
  if (volumes.size() > kMostListed) return too_many("spec.volumes", volumes.size(), " volumes");

  const auto too_long = [](const std::string& name) { return name.size() > limits::kNameBytes; };
  const auto long_name = [](const std::string& field, const std::string& name) {
    return PodError(field,
                    Concat("its name has ", name.size(), " bytes; at most ", limits::kNameBytes),
                    "name: model");
  };
  const auto container = std::ranges::find_if(pod.containers(), too_long, &Container::name);
  if (container != pod.containers().end()) return long_name(FieldOf(*container), container->name);
  const auto volume = std::ranges::find_if(volumes, too_long);
  if (volume == volumes.end()) return std::nullopt;
  return long_name(Concat("spec.volumes[", volume - volumes.begin(), "]"), *volume);
}

// This check comes second, because parsing a text of millions of bytes would take hundreds of times
// its size.
std::optional<ConfigError> TooLong(const PodView& pod) {
  size_t bytes = 0;
  for (const auto& [key, value] : pod.annotations()) {
    if (annotations::IsOurKey(key) && key != annotations::kStatusKey)
      bytes += key.size() + value.size();
  }
  if (bytes <= kVariableBytes) bytes = BuffersVariable(pod).size();
  if (bytes <= kVariableBytes) return std::nullopt;
  return PodError("metadata.annotations",
                  Concat("gpushm's annotations take ", bytes, " bytes; at most ", kVariableBytes),
                  "create buffers at run time, from gpushm.io/pool-extra");
}

Json ReadStatus(const std::string& text) {
  if (text.size() > kStatusBytes) return nullptr;
  const auto opens = [](char c) { return c == '[' || c == '{'; };
  if (std::ranges::count_if(text, opens) > kStatusBrackets) return nullptr;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

annotations::ParseOptions OptionsFor(const PodView& pod, const std::optional<Done>& done) {
  annotations::ParseOptions options;
  options.containers = pod.Names(Kind::kApplication);
  options.more_containers = pod.Names(Kind::kNativeSidecar);
  for (const std::string& name : pod.Names(Kind::kInit)) {
    options.unfit_containers.emplace(name, kEndsTooEarly);
  }
  for (const Container& container : pod.containers()) {
    if (!IsOurContainer(container.name)) continue;
    options.unfit_containers.emplace(container.name, "is gpushm's own container");
  }
  for (const char* const name : {kSidecarName, kMpsName}) {
    options.unfit_containers.emplace(name, "is gpushm's own container");
  }
  if (!done) return options;
  // Containers that were added later may be named, but they are not included by default.
  std::erase_if(*options.containers, [&](const std::string& name) {
    if (std::ranges::count(done->applications, name) > 0) return false;
    options.more_containers.push_back(name);
    return true;
  });
  return options;
}

// The MPS daemon of a pod that was copied, or whose annotations were changed by another webhook.
void CheckMps(const PodView& pod, const Plan& plan, ErrorList* errors) {
  const Container* const there = pod.Find(kMpsName);
  if (there == nullptr || plan.mps) return;
  errors->Add(
      PodError(FieldOf(*there), "the pod does not ask for MPS any more",
               Concat("remove this container, or set ", annotations::kMpsKey, ": \"true\"")));
}

// A container before the sidecar would wait for it indefinitely.
void CheckOrder(const PodView& pod, const Plan& plan, ErrorList* errors) {
  const Container* const sidecar = pod.Find(kSidecarName);
  if (sidecar == nullptr) return;
  std::vector<std::string> names = plan.done.containers;
  for (const std::string& buffer : plan.loaded) names.push_back(annotations::LoaderOf(buffer));
  for (const std::string& name : names) {
    const Container* const container = pod.Find(name);
    if (container == nullptr || container >= sidecar) continue;
    errors->Add(PodError(FieldOf(*container),
                         "was put before the sidecar, and would wait for it indefinitely",
                         "initContainers begin with gpushm"));
  }
}

}  // namespace

std::optional<Done> Done::Of(const PodView& pod) {
  const auto found = pod.annotations().find(std::string(annotations::kStatusKey));
  if (found == pod.annotations().end()) return std::nullopt;
  const Json status = ReadStatus(found->second);
  if (!status.is_object()) return std::nullopt;
  const bool of_other = status.value("role", Json()) == kUserRole;
  if (!of_other && pod.Find(kSidecarName) == nullptr) return std::nullopt;
  Done done;
  for (const auto& [key, text] :
       {std::pair{"version", &done.version}, std::pair{"image", &done.image},
        std::pair{"annotations", &done.annotations}}) {
    const auto at = status.find(key);
    if (at != status.end() && at->is_string()) *text = at->get<std::string>();
  }
  if (done.annotations.empty()) return std::nullopt;
  if (status.value("allocation", Json()) ==
      annotations::AllocationName(annotations::Allocation::kDra)) {
    done.allocation = annotations::Allocation::kDra;
  }
  for (const auto& [key, names] :
       {std::pair{"containers", &done.containers}, std::pair{"applications", &done.applications}}) {
    const auto list = status.find(key);
    if (list == status.end() || !list->is_array()) return std::nullopt;
    for (const Json& name : *list) {
      if (!name.is_string()) return std::nullopt;
      names->push_back(name.get<std::string>());
    }
  }
  return done;
}

std::string Plan::Status() const {
  Json status = {{"version", done.version},
                 {"image", done.image},
                 {"annotations", done.annotations},
                 {"allocation", annotations::AllocationName(done.allocation)},
                 {"applications", done.applications},
                 {"containers", done.containers}};
  if (!UsesOthers()) status["memory"] = yaml::FormatBytes(memory_bytes);
  if (!UsesClaim()) status["units"] = units;
  if (spec.gpus > 1) status["gpus"] = spec.gpus;
  if (UsesOthers()) status["role"] = kUserRole;
  return status.dump();
}

uint64_t Plan::GpuBytes() const {
  constexpr uint64_t kStep =
      annotations::kGranularityBytes;  // Of the capacity `memory` of devices.
  return std::max(annotations::RoundUp(annotations::GpuBytes(spec), kStep), kStep);
}

bool OptsOut(const PodView& pod) {
  const auto found = pod.annotations().find(std::string(annotations::kInjectKey));
  if (found == pod.annotations().end()) return false;
  const auto alone = annotations::ParseAnnotationsOrErrors({*found});
  return alone && !alone->inject;
}

yaml::OrErrors<std::optional<Plan>> MakePlan(const PodView& pod, const Settings& settings,
                                             std::optional<annotations::Allocation> of_namespace) {
  if (OptsOut(pod)) return std::nullopt;
  for (const auto& check : {TooMany, TooLong}) {
    if (auto error = check(pod)) return std::unexpected(std::vector{*std::move(error)});
  }
  const std::optional<Done> earlier = Done::Of(pod);
  const std::string digest = DigestOf(pod.annotations());
  yaml::OrErrors<annotations::PodSpec> spec =
      annotations::ParseAnnotationsOrErrors(pod.annotations(), OptionsFor(pod, earlier));
  if (!spec) return std::unexpected(std::move(spec.error()));
  if (!spec->AsksForSidecar() && spec->claim.empty()) return std::nullopt;

  Plan plan;
  plan.done.allocation = spec->allocation.value_or(of_namespace.value_or(settings.allocation));
  if (!spec->claim.empty()) plan.done.allocation = annotations::Allocation::kDra;
  const bool same =
      earlier && earlier->annotations == digest && earlier->allocation == plan.done.allocation;
  plan.done.version = kVersion;
  plan.done.image = settings.sidecar_image;
  plan.done.annotations = digest;
  plan.done.applications = earlier ? earlier->applications : pod.Names(Kind::kApplication);
  plan.stale = !same;
  plan.redo =
      plan.stale || earlier->version != plan.done.version || earlier->image != plan.done.image;
  for (const Container& container : pod.containers()) {
    const bool of_other =
        spec->UsesOthers() && std::ranges::count(plan.done.applications, container.name) > 0;
    if (of_other || (!spec->UsesOthers() && spec->private_bytes.contains(container.name))) {
      plan.done.containers.push_back(container.name);
    }
  }
  for (const annotations::BufferSpec& buffer : spec->buffers) {
    if (!buffer.file.empty()) plan.loaded.push_back(buffer.name);
  }
  plan.spec = std::move(*spec);
  ErrorList errors;
  PlanMps(pod, settings, &plan, &errors);
  plan.spec.mps.wanted = plan.mps.has_value();
  plan.memory_bytes = annotations::NodeBytes(plan.spec);
  plan.units = annotations::PodUnits(plan.spec, settings.unit_bytes);

  if (plan.UsesClaim() && plan.spec.claim.empty()) plan.template_name = TemplateFor(plan).name;

  CheckFree(pod, earlier, &errors);
  CheckClaims(pod, earlier, plan, &errors);
  CheckUser(pod, plan, &errors);
  CheckOrder(pod, plan, &errors);
  CheckMps(pod, plan, &errors);
  CheckMounts(pod, plan, &errors);
  CheckVolumes(pod, plan, settings, &errors);
  CheckPod(pod, plan, &errors);
  CheckResources(pod, plan, settings, &errors);
  CheckRuntimeClass(pod, settings, &errors);
  CheckLimits(plan, settings, &errors);
  CheckDeviceOrder(pod, &plan);
  if (!errors.empty()) return std::unexpected(errors.Take());
  return plan;
}

}  // namespace gpushm::injector
