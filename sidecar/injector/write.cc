#include "sidecar/injector/write.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contract/annotations/keys.h"
#include "sidecar/injector/affinity.h"
#include "sidecar/injector/loader.h"
#include "sidecar/injector/mps.h"
#include "sidecar/injector/sidecar.h"

namespace gpushm::injector {
namespace {

const Pointer kInitContainers("/spec/initContainers");

// The uids are above those that distributions and images give to users. The kernel counts
// descriptors in flight per uid over the whole node, so each sidecar gets its own. A user namespace
// has only 65,536 uids, but these belong to the pod alone. Empty if the platform assigns them.
std::optional<int64_t> UidFor(const Pod& pod, const std::function<uint64_t()>& random) {
  if (!pod.settings->assign_uid) return std::nullopt;
  const Json* const host_users = Find(pod.json(), Pointer("/spec/hostUsers"));
  const bool own_users = host_users != nullptr && *host_users == false;
  const uint64_t first = own_users ? 10'000 : 1'000'000'000;
  const uint64_t count = own_users ? 50'000 : 1'000'000'000;
  return static_cast<int64_t>(first + random() % count);
}

void Mount(const Container& container, const Json& mount, Patch* patch) {
  for (const Container::Mount& there : container.Mounts()) {
    // Added by gpushm, or denied earlier.
    if (there.path == mount["mountPath"].get<std::string>()) return;
  }
  patch->Append(container.at / "volumeMounts", mount);
}

// Adds the `entries` that the list does not have yet.
void PutEntries(const Pointer& list, const std::vector<Json>& entries, Patch* patch) {
  for (const Json& entry : entries) patch->AppendMissing(list, entry);
}

// `at`: where the container is in the patch's document.
void PutRequest(const Container& container, const Pointer& at, const GpuRequest& request,
                std::initializer_list<const char*> lists, Patch* patch) {
  const Pointer resources = at / "resources";
  for (const char* const list : lists) {
    for (const auto& [resource, count] : request.resources) {
      if (IsNumber(container.Resource(list, resource), count)) continue;
      patch->Set(resources / list / resource, std::to_string(count));
    }
  }
  PutEntries(resources / "claims", request.claims, patch);
}

void PutIntoContainers(const Pod& pod, Patch* patch) {
  const GpuRequest request = pod.RequestOf(Asker::kApplication);
  for (const Container* const container : pod.Attaching()) {
    const std::string& name = container->name;
    PutRequest(*container, container->at, request, {"limits"}, patch);
    if (pod.UsesOthers()) {
      // The plugin mounts the folder, because it is not the pod's.
      if (container->Variable(kFolderVariable) == nullptr) {
        PutEntries(container->at / "env", ClaimVariables(name), patch);
      }
    } else {
      Mount(*container, SocketMount(name), patch);
    }
    if (pod.spec.cuda_ipc) {
      for (const Json& mount : CudaIpcMounts()) Mount(*container, mount, patch);
    }
    if (pod.spec.gpus > 1 && container->Variable(kDeviceOrderVariable) == nullptr) {
      PutEntries(container->at / "env", {DeviceOrder()}, patch);
    }
    if (!pod.mps) continue;
    if (!pod.SharesMps()) Mount(*container, MpsMount(/*writable=*/false), patch);
    std::vector<Json> variables;
    for (const auto& [variable, value] : MpsVariables(pod, name)) {
      variables.push_back({{"name", variable}, {"value", value}});
    }
    PutEntries(container->at / "env", variables, patch);
  }
}

// Of a copied pod, the claim may be for other annotations.
void PutClaim(const Pod& pod, Patch* patch) {
  const Pointer list("/spec/resourceClaims");
  const Json& claims = Items(pod.json(), list);
  for (size_t i = 0; i < claims.size(); ++i) {
    if (!claims[i].is_object() || claims[i].value("name", "") != kClaimName) continue;
    return patch->Set(list / i, PodClaim(pod));
  }
  patch->Append(list, PodClaim(pod));
}

void PutIntoPod(const Pod& pod, Patch* patch) {
  const Settings& settings = *pod.settings;
  if (pod.UsesClaim()) PutClaim(pod, patch);
  if (!pod.UsesOthers() && pod.Volume(kVolumeName) == nullptr) {
    patch->Append(Pointer("/spec/volumes"), SocketVolume());
  }
  std::vector<Json> secrets;
  for (const std::string& name : settings.pull_secrets) {
    if (!pod.UsesOthers() || pod.mps) secrets.push_back({{"name", name}});
  }
  PutEntries(Pointer("/spec/imagePullSecrets"), secrets, patch);
  std::vector<Json> tolerations;
  for (const std::string& key : settings.tolerations) {
    tolerations.push_back({{"key", key}, {"operator", "Exists"}, {"effect", "NoSchedule"}});
  }
  PutEntries(Pointer("/spec/tolerations"), tolerations, patch);
  // With this group, every container of such a pod may open what the sidecars of other such pods
  // put there.
  if (pod.spec.host_ipc) {
    PutEntries(Pointer("/spec/securityContext/supplementalGroups"), {settings.host_ipc_group},
               patch);
  }
  // With a claim, the scheduler knows each GPU and what is free on it.
  if (pod.UsesClaim()) return;
  if (pod.spec.gpus > 1) RequireGpus(pod, patch);
  if (settings.largest_free == LargestFree::kPrefer) PreferRoom(pod, patch);
}

// A container of gpushm as it is in the pod, with what another webhook may have removed.
Json Restored(const Container& there, bool always, const GpuRequest& request) {
  Patch patch(*there.json);
  if (always) patch.Set(Pointer("/restartPolicy"), "Always");
  PutRequest(there, Pointer(), request, {"limits", "requests"}, &patch);
  return patch.document();
}

// The init containers as the pod must have them. The loaders start behind those that may serve a
// volume, such as gcsfuse's, which mounts nothing that names it. Containers that attach serve none,
// and may wait for what the loaders load. Other webhooks may have put containers before or behind
// the loaders since the last call, so their place is found again each time.
std::vector<Json> InitContainers(const Pod& pod, const Json& now,
                                 const std::function<uint64_t()>& random) {
  std::vector<Json> all;
  std::ranges::copy_if(now, std::back_inserter(all),
                       [](const Json& container) { return !IsLoader(*TextOf(container, "name")); });
  const auto former = [&](std::string_view name) { return pod.redo ? nullptr : pod.Find(name); };
  const auto find = [&](const char* name) {
    return std::ranges::find_if(all, [&](const Json& it) { return *TextOf(it, "name") == name; });
  };
  size_t place = 0;  // Behind what was put last.
  const auto put = [&](const char* name, Json container) {
    auto at = find(name);
    if (at == all.end()) {
      at = all.insert(all.begin() + static_cast<ptrdiff_t>(place), std::move(container));
    } else {
      *at = std::move(container);
    }
    place = std::max(place, static_cast<size_t>(at - all.begin()) + 1);
  };
  if (!pod.UsesOthers()) {
    const Container* const there = former(kSidecarName);
    put(kSidecarName, there != nullptr ? Restored(*there, true, pod.RequestOf(Asker::kBroker))
                                       : SidecarContainer(pod, UidFor(pod, random)));
  }
  if (pod.mps) {  // Behind the sidecar, which makes its folder.
    const Container* const there = former(kMpsName);
    put(kMpsName, there != nullptr ? Restored(*there, pod.RunsMps(), pod.RequestOf(pod.MpsAsker()))
                                   : MpsContainer(pod));
  }
  for (size_t i = place; i < all.size(); ++i) {
    const std::string* const policy = TextOf(all[i], "restartPolicy");
    const bool native = policy != nullptr && *policy == "Always";
    if (native && !pod.Attaches(*TextOf(all[i], "name"))) place = i + 1;
  }
  if (pod.loaded.empty()) return all;
  std::optional<int64_t> uid;
  const Json* const user = Find(*find(kSidecarName), Pointer("/securityContext/runAsUser"));
  if (user != nullptr && user->is_number_integer()) uid = user->get<int64_t>();
  std::vector<Json> loaders;
  for (const std::string& buffer : pod.loaded) {
    const Container* const there = former(annotations::LoaderOf(buffer));
    loaders.push_back(there != nullptr ? Restored(*there, true, pod.RequestOf(Asker::kApplication))
                                       : LoaderContainer(pod, *pod.spec.Find(buffer), uid));
  }
  all.insert(all.begin() + static_cast<ptrdiff_t>(place), loaders.begin(), loaders.end());
  return all;
}

void PutInitContainers(const Pod& pod, const std::function<uint64_t()>& random, Patch* patch) {
  const auto there = [&]() -> const Json& { return Items(patch->document(), kInitContainers); };
  std::vector<Json> all = InitContainers(pod, there(), random);
  const auto is_at = [&](size_t i, const Json& container) {
    return i < there().size() && *TextOf(there()[i], "name") == *TextOf(container, "name");
  };
  size_t in_order = 0;
  for (const Json& container : all) in_order += is_at(in_order, container) ? 1 : 0;
  // A loader moved, or its buffer went.
  if (in_order < there().size()) return patch->Set(kInitContainers, std::move(all));
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_at(i, all[i])) {
      patch->Set(kInitContainers / i, std::move(all[i]));
    } else {
      patch->Insert(kInitContainers, i, std::move(all[i]));
    }
  }
}

}  // namespace

Json WritePatch(const Pod& pod, const std::function<uint64_t()>& random) {
  Patch patch(pod.json());
  PutIntoContainers(pod, &patch);
  PutIntoPod(pod, &patch);
  PutInitContainers(pod, random, &patch);
  patch.Set(Pointer("/metadata/annotations") / std::string(annotations::kStatusKey), pod.Status());
  return std::move(patch).operations();
}

}  // namespace gpushm::injector
