#include "sidecar/injector/check.h"

#include <fnmatch.h>

#include <algorithm>
#include <string_view>

#include "contract/annotations/keys.h"
#include "contract/annotations/sizing.h"
#include "contract/limits.h"
#include "contract/protocol/link.h"
#include "platform/yaml/quantity.h"
#include "sidecar/injector/claim.h"
#include "sidecar/injector/loader.h"
#include "sidecar/injector/mps.h"
#include "sidecar/injector/sidecar.h"

namespace gpushm::injector {
namespace {

// A pod without a sidecar of its own may not bring one: it would act as the owner's broker.
void CheckUser(const Pod& pod, Findings* found) {
  for (const Container& container : pod.containers()) {
    if (pod.UsesOthers() && (container.name == kSidecarName || IsLoader(container.name))) {
      found->Deny(container.Field(),
                  "only the owner of a claim has this container, which gpushm adds",
                  Concat("remove it, or ", annotations::kRoleKey, ": owner"));
    }
    if (!pod.spec.claim.empty() && container.name == protocol::kOtherPods) {
      found->Deny(container.Field(), "gpushm means the other pods of the claim by this name",
                  "name: server");
    }
    const Json* const folder = container.Variable(kFolderVariable);
    const Json* const value = folder == nullptr ? nullptr : Find(*folder, Pointer("/value"));
    if (!pod.UsesOthers() && value != nullptr && *value == protocol::kClaimFolder) {
      found->Deny(Concat(container.Field(), ".env.", kFolderVariable),
                  "this container would use what another pod declares, and the pod has "
                  "buffers of its own",
                  "remove it");
    }
  }
}

// Only gpushm may name the pod's claim: with its name, a container could have the broker's part.
void CheckClaims(const Pod& pod, Findings* found) {
  const bool ours = pod.earlier && pod.UsesClaim();
  const Json& claims = Items(pod.json(), Pointer("/spec/resourceClaims"));
  for (size_t i = 0; i < claims.size(); ++i) {
    if (!claims[i].is_object()) continue;
    if (claims[i].value("name", "") != kClaimName) {
      if (pod.spec.claim.empty() || claims[i].value("resourceClaimName", "") != pod.spec.claim) {
        continue;
      }
      found->Deny(Concat("spec.resourceClaims[", i, "]"),
                  "gpushm adds this claim, and gives each container its part", "remove it");
      continue;
    }
    if (ours) continue;
    found->Deny(Concat("spec.resourceClaims[", i, "]"),
                pod.UsesClaim()
                    ? "the name gpushm is reserved for the claim that gpushm adds"
                    : "the pod gets its GPU memory as extended resources, not by a claim",
                "remove it; gpushm.io/allocation: dra makes gpushm add a claim");
  }
  for (const Container& container : pod.containers()) {
    if (container.name == kSidecarName) continue;
    const bool daemon = container.name == kMpsName && pod.mps;
    const bool asks = ours && (IsOurContainer(container.name) || pod.Attaches(container.name));
    const GpuRequest allowed =
        asks ? pod.RequestOf(daemon ? pod.MpsAsker() : Asker::kApplication) : GpuRequest();
    for (const Json& entry : container.Claims()) {
      if (!entry.is_object() || entry.value("name", "") != kClaimName) continue;
      if (std::ranges::count(allowed.claims, entry) > 0) continue;
      found->Deny(Concat(container.Field(), ".resources.claims"),
                  "only gpushm may give the claim gpushm to a container",
                  Concat("remove it; ", annotations::kPrivatePrefix, container.name,
                         ": 1Gi makes a container attach"));
    }
  }
}

// Checks that the names and places that the sidecar needs are free.
void CheckFree(const Pod& pod, Findings* found) {
  const Container* const taken = pod.Find(kSidecarName);
  if (taken != nullptr && !pod.earlier) {
    if (taken->Variable(annotations::kBuffersVariable) != nullptr) {
      found->Deny(taken->Field(),
                  "is the sidecar of a pod that was copied without its annotation gpushm.io/status",
                  "remove the init container gpushm, or keep gpushm.io/status");
    } else {
      found->Deny(taken->Field(), "this name is reserved for the sidecar that gpushm adds",
                  "name: my-gpushm");
    }
  }
  for (const Container& container : pod.containers()) {
    if (!IsLoader(container.name) || pod.earlier) continue;
    found->Deny(container.Field(),
                "names that begin with gpushm-load- are reserved for the containers that "
                "load files, which gpushm adds",
                "name: my-loader");
  }
  if (const Container* const mps = pod.Find(kMpsName); mps != nullptr && !pod.earlier) {
    found->Deny(mps->Field(), "this name is reserved for the MPS daemon that gpushm adds",
                "name: my-mps");
  }
  const Json* const volume = pod.Volume(kVolumeName);
  if (volume != nullptr && *volume != SocketVolume()) {
    found->Deny("spec.volumes", "the name gpushm is reserved for the volume with gpushm's sockets",
                "name: my-gpushm");
  }
}

bool IsCudaIpc(const Container::Mount& mount) {
  return std::ranges::any_of(CudaIpcMounts(), [&](const Json& ours) { return mount.Is(ours); });
}

// Each container may mount only its own part of the volume. A container that mounted the whole
// volume could reach every socket.
void CheckMounts(const Pod& pod, Findings* found) {
  for (const Container& container : pod.containers()) {
    if (IsOurContainer(container.name)) continue;
    const bool served = pod.Attaches(container.name);
    for (const Container::Mount& mount : container.Mounts()) {
      const std::string field = Concat(container.Field(), ".volumeMounts");
      if (mount.volume == kVolumeName) {
        if (mount.Is(SocketMount(container.name)) ||
            (served && (mount.Is(MpsMount(/*writable=*/false)) || IsCudaIpc(mount)))) {
          continue;
        }
        found->Deny(field, "only gpushm may mount the volume gpushm", "remove this mount");
      } else if (served && pod.spec.cuda_ipc && mount.path == kPreloadFile) {
        found->Deny(field, Concat(kPreloadFile, " is where gpushm.io/cuda-ipc mounts its own file"),
                    "name the library in the container's LD_PRELOAD instead");
      } else if (served && (mount.path == kSocketFolder || mount.path == kMpsFolder ||
                            mount.path == annotations::kCudaIpcFolder)) {
        found->Deny(field, Concat(mount.path, " is reserved for gpushm's sockets"),
                    "mountPath: /run/my-gpushm");
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
// that is not in the pod.
void CheckResources(const Pod& pod, Findings* found) {
  for (const Container& container : pod.containers()) {
    if (IsOurContainer(container.name)) continue;
    const bool attaches = pod.Attaches(container.name);
    for (const char* const list : {"limits", "requests"}) {
      const Json* const resources = Find(*container.json, Pointer("/resources") / list);
      if (resources == nullptr || !resources->is_object()) continue;
      for (const auto& [key, value] : resources->items()) {
        const std::string field = Concat(container.Field(), ".resources.", list, ".", key);
        if (key == kAttachResource && attaches && !pod.UsesClaim()) {
          if (IsNumber(&value, 1)) continue;
          found->Deny(field, "a container can attach only once",
                      "remove it; gpushm adds a request for 1");
        } else if (IsNumber(&value, 0)) {
          continue;  // Requests none.
        } else if (key == kMemoryResource || key == kAttachResource || key == kExclusiveResource ||
                   key == kGpusResource || key == kNvlinkResource) {
          found->Deny(
              field,
              "only gpushm may request this resource, for the containers that the annotations name",
              Concat("remove it; ", annotations::kPrivatePrefix, container.name,
                     ": 1Gi makes a container attach"));
        } else if (attaches && !pod.settings->coexist && IsOtherGpu(key)) {
          found->Deny(
              field,
              "the container gets the GPU of its pod's buffers, so it may not request another GPU",
              "remove it, or set the chart's value coexist: true, which allows both");
        }
      }
    }
  }
}

void CheckRuntimeClass(const Pod& pod, Findings* found) {
  const Json* const named = Find(pod.json(), Pointer("/spec/runtimeClassName"));
  if (named == nullptr || !named->is_string()) return;
  const auto& name = named->get_ref<const std::string&>();
  const auto matches = [&name](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  };
  if (!std::ranges::any_of(pod.settings->denied_runtime_classes, matches)) return;
  found->Deny("spec.runtimeClassName",
              Concat(yaml::Quote(name),
                     " runs containers in a virtual machine or on a user-space kernel, "
                     "so a descriptor of a GPU buffer cannot be passed to them"),
              "leave runtimeClassName out, or name one that uses the node's kernel, "
              "such as runtimeClassName: nvidia");
}

// A container that chooses another order of its GPUs gets it, but then gpushm's numbers are not
// CUDA's.
void CheckDeviceOrder(const Pod& pod, Findings* found) {
  if (pod.spec.gpus == 1) return;
  for (const Container* const container : pod.Attaching()) {
    const Json* const there = container->Variable(kDeviceOrderVariable);
    const Json* const value = there == nullptr ? nullptr : Find(*there, Pointer("/value"));
    if (there == nullptr || (value != nullptr && *value == kDeviceOrder)) continue;
    found->warnings.push_back(Concat("gpushm: ", container->Field(), ".env.", kDeviceOrderVariable,
                                     " is not ", kDeviceOrder,
                                     ", so CUDA may number the GPUs in another order than gpushm"));
  }
}

// Checks the annotations against the rest of the pod.
void CheckPod(const Pod& pod, Findings* found) {
  for (const char* const flag : {"shareProcessNamespace", "hostPID"}) {
    if (!pod.spec.HasAccessLists() || !pod.Flag(flag)) continue;
    found->Deny(Concat("spec.", flag),
                "containers that share a process namespace can take each other's sockets, "
                "so the lists `containers` and `writers` could not be enforced",
                Concat(flag, ": false, or remove these lists"));
  }
  if (pod.spec.host_ipc && !pod.Flag("hostIPC")) {
    found->Deny(std::string(annotations::kHostIpcKey), "the pod itself must set hostIPC: true",
                "hostIPC: true");
  }
  if (const Json* const os = Find(pod.json(), Pointer("/spec/os/name"))) {
    if (*os != "linux") {
      found->Deny("spec.os.name", Concat(Shown(os), ": gpushm needs Linux"), "linux");
    }
  }
}

void CheckLimits(const Pod& pod, Findings* found) {
  if (pod.done.containers.empty()) {
    found->Deny("spec.containers", "no container would attach", "name: model");
  }
  const size_t served = pod.done.containers.size() + pod.loaded.size();
  if (served > limits::kContainers) {
    found->Deny("spec.containers",
                Concat(served, " containers would be served; at most ", limits::kContainers),
                "name the containers that attach: containers: [decoder, model]");
  }
  if (pod.UsesClaim() && pod.spec.claim.empty() && !pod.settings->makes_claims) {
    found->Deny(Concat("metadata.annotations.", annotations::kAllocationKey),
                "the pod would need a ResourceClaim, and this installation makes none",
                "device-plugin, or the chart's value injector.claims: true");
  }
  // Of a shared claim, its author decides.
  if (pod.settings->max_pod_bytes == 0 || !pod.spec.claim.empty()) return;
  // The device plugin allocates only whole units, so the rest of the GPU is not available.
  const uint64_t most_units =
      pod.settings->max_pod_bytes / pod.settings->unit_bytes;  // Of one GPU.
  const uint64_t most =
      pod.UsesClaim() ? pod.settings->max_pod_bytes : most_units * pod.settings->unit_bytes;
  const auto fits = annotations::CheckFits(pod.spec, most, "the largest GPU of the cluster");
  if (fits) return;
  const std::string units =
      pod.UsesClaim() ? ""
                      : Concat("That is ", pod.units, " ", kMemoryResource, ", but at most ",
                               most_units * pod.spec.gpus, " are possible; ");
  found->Deny("metadata.annotations",
              Concat(fits.error().what(), ". ", units, fits.error().remedy()), "");
}

// What needs MPS, in a pod with and without it.
void CheckNeedsOfMps(const Pod& pod, Findings* found) {
  const annotations::MpsSpec& mps = pod.spec.mps;
  const bool wanted = pod.WantsMps();
  const auto needs = [&](std::string key) {
    found->Deny(Concat("metadata.annotations.", key),
                "needs MPS, and the pod does not run under it",
                Concat(annotations::kMpsKey, ": \"true\""));
  };
  for (const auto& [container, percent] : mps.compute_percent) {
    const std::string key = Concat(annotations::kComputePrefix, container);
    if (!wanted) needs(key);
    if (pod.Attaches(container)) continue;
    found->Deny(Concat("metadata.annotations.", key),
                Concat("the container ", yaml::Quote(container), " does not attach"),
                Concat(annotations::kPrivatePrefix, container, ": 1Gi makes it attach"));
  }
  if (!wanted && mps.enforce_private) needs(std::string(annotations::kEnforcePrivateKey));
  if (wanted && mps.enforce_private && pod.spec.host_ipc) {
    found->Deny(std::string(annotations::kEnforcePrivateKey),
                "memory of other pods counts against the limit, and how much there will be "
                "is not known",
                Concat("remove it, or ", annotations::kHostIpcKey));
  }
  if (!wanted && (mps.uid || mps.any_uid)) needs(std::string(annotations::kMpsUidKey));
}

// The MPS daemon of a pod that was copied, or whose annotations were changed by another webhook.
void CheckNoDaemon(const Pod& pod, Findings* found) {
  const Container* const there = pod.Find(kMpsName);
  if (there == nullptr || pod.mps) return;
  found->Deny(there->Field(), "the pod does not ask for MPS any more",
              Concat("remove this container, or set ", annotations::kMpsKey, ": \"true\""));
}

// A container before the sidecar would wait for it indefinitely.
void CheckOrder(const Pod& pod, Findings* found) {
  const Container* const sidecar = pod.Find(kSidecarName);
  if (sidecar == nullptr) return;
  std::vector<std::string> names = pod.done.containers;
  for (const std::string& buffer : pod.loaded) names.push_back(annotations::LoaderOf(buffer));
  for (const std::string& name : names) {
    const Container* const container = pod.Find(name);
    if (container == nullptr || container >= sidecar) continue;
    found->Deny(container->Field(),
                "was put before the sidecar, and would wait for it indefinitely",
                "initContainers begin with gpushm");
  }
}

}  // namespace

Findings Check(const Pod& pod) {
  Findings found;
  CheckNeedsOfMps(pod, &found);
  if (pod.WantsMps()) CheckMps(pod, &found);
  CheckFree(pod, &found);
  CheckClaims(pod, &found);
  CheckUser(pod, &found);
  CheckOrder(pod, &found);
  CheckNoDaemon(pod, &found);
  CheckMounts(pod, &found);
  if (!pod.loaded.empty()) CheckFiles(pod, &found);
  CheckPod(pod, &found);
  CheckResources(pod, &found);
  CheckRuntimeClass(pod, &found);
  CheckLimits(pod, &found);
  CheckDeviceOrder(pod, &found);
  return found;
}

}  // namespace gpushm::injector
