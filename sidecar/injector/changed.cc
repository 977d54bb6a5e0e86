#include "sidecar/injector/changed.h"

#include <algorithm>

#include "sidecar/injector/claim.h"
#include "sidecar/injector/sidecar.h"

namespace gpushm::injector {
namespace {

// What the container lacks of what it must request; empty if it has all.
std::string MissingOf(const Container& container, const GpuRequest& request) {
  for (const auto& [resource, count] : request.resources) {
    const Json* const there = container.Resource("limits", resource);
    if (IsNumber(there, count)) continue;
    return Concat("must request ", count, " ", resource, ", but another webhook changed that to ",
                  Shown(there));
  }
  for (const Json& entry : request.claims) {
    const Json& there = container.Claims();
    if (std::ranges::count(there, entry) > 0) continue;
    return Concat("must have ", entry.dump(),
                  " in its resources.claims, but another webhook "
                  "removed it");
  }
  return {};
}

// What the sidecar of the pod lacks; empty if it has all, or if the pod needs none.
std::string BrokenSidecar(const Pod& pod) {
  if (pod.UsesOthers()) return {};
  const Container* const sidecar = pod.Find(kSidecarName);
  if (sidecar == nullptr || pod.Volume(kVolumeName) == nullptr) {
    return "it has no sidecar. Check that gpushm's MutatingWebhookConfiguration exists, "
           "and that no other webhook removes what it adds";
  }
  if (sidecar->kind != Kind::kNativeSidecar) {
    return "the sidecar lost its restartPolicy. Another webhook was built with a Kubernetes "
           "version older than 1.28 and drops fields that it does not know; update that webhook";
  }
  if (pod.stale)
    return "its sidecar was made for other annotations: another webhook changed the annotations";
  if (const auto missing = MissingOf(*sidecar, pod.RequestOf(Asker::kBroker)); !missing.empty()) {
    return Concat("its sidecar ", missing);
  }
  if (!sidecar->Mounts({{"name", kVolumeName}, {"mountPath", kSocketFolder}})) {
    return "its sidecar must mount the volume gpushm, but another webhook removed the mount";
  }
  return {};
}

std::string BrokenMps(const Pod& pod) {
  if (!pod.mps) return {};
  const Container* const mps = pod.Find(kMpsName);
  const Kind kind = pod.RunsMps() ? Kind::kNativeSidecar : Kind::kInit;
  if (mps == nullptr || mps->kind != kind) {
    return "it asks for MPS, but another webhook removed the container gpushm-mps or changed its "
           "restartPolicy";
  }
  if (!pod.UsesClaim()) return {};
  const std::string missing = MissingOf(*mps, pod.RequestOf(pod.MpsAsker()));
  return missing.empty() ? missing : Concat("its container gpushm-mps ", missing);
}

std::string BrokenLoaders(const Pod& pod) {
  for (const std::string& buffer : pod.loaded) {
    const std::string name = annotations::LoaderOf(buffer);
    const Container* const loader = pod.Find(name);
    if (loader == nullptr || loader->kind != Kind::kNativeSidecar) {
      return Concat("another webhook removed the container ", name,
                    ", which loads a file, or changed its restartPolicy");
    }
    if (const auto missing = MissingOf(*loader, pod.RequestOf(Asker::kApplication));
        !missing.empty()) {
      return Concat("container ", name, " ", missing);
    }
    const std::string volume(pod.spec.Find(buffer)->FileVolume());
    if (!loader->Mounts(SocketMount(name)) ||
        std::ranges::count(loader->Mounts(), volume, &Container::Mount::volume) == 0) {
      return Concat("container ", name, " must mount the volumes gpushm and ", volume,
                    ", but another webhook removed a mount");
    }
  }
  for (const Container& container : pod.containers()) {
    const auto is_it = [&](const auto& buffer) {
      return annotations::LoaderOf(buffer) == container.name;
    };
    if (IsLoader(container.name) && std::ranges::none_of(pod.loaded, is_it)) {
      return Concat("container ", container.name, " loads the file of no buffer");
    }
  }
  return {};
}

}  // namespace

std::string ChangedByOthers(const Pod& pod) {
  if (pod.UsesClaim() &&
      std::ranges::count(Items(pod.json(), Pointer("/spec/resourceClaims")), PodClaim(pod)) == 0) {
    return Concat("it must have the claim ", PodClaim(pod).dump(),
                  " in its resourceClaims, but another webhook removed it");
  }
  if (auto why = BrokenSidecar(pod); !why.empty()) return why;
  if (auto why = BrokenMps(pod); !why.empty()) return why;
  if (auto why = BrokenLoaders(pod); !why.empty()) return why;
  const GpuRequest request = pod.RequestOf(Asker::kApplication);
  for (const Container* const container : pod.Attaching()) {
    const auto missing = MissingOf(*container, request);
    if (!missing.empty()) return Concat("container ", container->name, " ", missing);
  }
  if (pod.UsesOthers()) {
    return pod.stale ? "it was prepared for other annotations: another webhook changed them" : "";
  }
  for (const Container* const container : pod.Attaching()) {
    if (container->Mounts(SocketMount(container->name))) continue;
    return Concat(
        "container ", container->name,
        " must mount the volume gpushm at /run/gpushm, but another webhook removed the mount");
  }
  return {};
}

}  // namespace gpushm::injector
