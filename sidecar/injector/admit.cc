#include "sidecar/injector/admit.h"

#include <algorithm>
#include <utility>

#include "contract/annotations/keys.h"
#include "sidecar/injector/affinity.h"
#include "sidecar/injector/plan.h"
#include "sidecar/injector/pod.h"
#include "sidecar/injector/sidecar.h"

namespace gpushm::injector {
namespace {

constexpr char kDocument[] = "docs/reference/annotations.md";

Verdict Admit(std::string outcome) {
  Verdict verdict;
  verdict.outcome = std::move(outcome);
  return verdict;
}

Verdict Deny(std::string outcome, std::string message) {
  Verdict verdict = Admit(std::move(outcome));
  verdict.allowed = false;
  verdict.message = std::move(message);
  return verdict;
}

Verdict Deny(const std::vector<yaml::ConfigError>& errors) {
  const bool annotations = std::ranges::any_of(
      errors, [](const yaml::ConfigError& error) { return !error.annotation.empty(); });
  const Status status = yaml::ToStatus(errors, kDocument);
  return Deny(annotations ? "annotations" : "pod", Concat(status.what(), ". ", status.remedy()));
}

// The uids are above those that distributions and images give to users. The kernel counts
// descriptors in flight per uid over the whole node, so each sidecar gets its own. A user namespace
// has only 65,536 uids, but these belong to the pod alone.
int64_t UidFor(const PodView& pod, uint64_t random) {
  const Json* const host_users = Find(pod.json(), Pointer("/spec/hostUsers"));
  const bool own_users = host_users != nullptr && *host_users == false;
  const uint64_t first = own_users ? 10'000 : 1'000'000'000;
  const uint64_t count = own_users ? 50'000 : 1'000'000'000;
  return static_cast<int64_t>(first + random % count);
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

void PutRequest(const Container& container, const GpuRequest& request,
                std::initializer_list<const char*> lists, Patch* patch) {
  const Pointer resources = container.at / "resources";
  for (const char* const list : lists) {
    for (const auto& [resource, count] : request.resources) {
      if (IsNumber(container.Resource(list, resource), count)) continue;
      patch->Set(resources / list / resource, std::to_string(count));
    }
  }
  PutEntries(resources / "claims", request.claims, patch);
}

// Of a copied pod, the claim may be for other annotations.
void PutClaim(const PodView& pod, const Plan& plan, Patch* patch) {
  const Json& claims = Items(pod.json(), Pointer("/spec/resourceClaims"));
  for (size_t i = 0; i < claims.size(); ++i) {
    if (!claims[i].is_object() || claims[i].value("name", "") != kClaimName) continue;
    if (claims[i] == PodClaim(plan)) return;
    return patch->Set(Pointer("/spec/resourceClaims") / i, PodClaim(plan));
  }
  patch->Append(Pointer("/spec/resourceClaims"), PodClaim(plan));
}

void PutIntoPod(const PodView& pod, const Plan& plan, const Settings& settings, Patch* patch) {
  if (plan.UsesClaim()) PutClaim(pod, plan, patch);
  if (!plan.UsesOthers() && pod.Volume(kVolumeName) == nullptr) {
    patch->Append(Pointer("/spec/volumes"), SocketVolume());
  }
  std::vector<Json> secrets;
  for (const std::string& name : settings.pull_secrets) {
    if (!plan.UsesOthers() || plan.mps) secrets.push_back({{"name", name}});
  }
  PutEntries(Pointer("/spec/imagePullSecrets"), secrets, patch);
  std::vector<Json> tolerations;
  for (const std::string& key : settings.tolerations) {
    tolerations.push_back({{"key", key}, {"operator", "Exists"}, {"effect", "NoSchedule"}});
  }
  PutEntries(Pointer("/spec/tolerations"), tolerations, patch);
  // With this group, every container of such a pod may open what the sidecars of other such pods
  // put there.
  if (plan.spec.host_ipc) {
    PutEntries(Pointer("/spec/securityContext/supplementalGroups"), {settings.host_ipc_group},
               patch);
  }
}

// Restores what another webhook may have removed from the sidecar. Makes the sidecar again if it
// was made for other annotations or before an upgrade.
void PutSidecar(const PodView& pod, const Plan& plan, const Settings& settings,
                const std::function<uint64_t()>& random, Patch* patch) {
  if (plan.UsesOthers()) return;
  const Container* const there = pod.Find(kSidecarName);
  if (there != nullptr && !plan.redo) {
    patch->Set(there->at / "restartPolicy", "Always");
    PutRequest(*there, RequestOf(plan, Asker::kBroker), {"limits", "requests"}, patch);
    return;
  }
  std::optional<int64_t> uid;
  if (settings.assign_uid) uid = UidFor(pod, random());
  Json container = SidecarContainer(pod, plan, settings, uid);
  if (there != nullptr) return patch->Set(there->at, std::move(container));
  patch->Prepend(Pointer("/spec/initContainers"), std::move(container));
}

// For whom the container gpushm-mps asks.
Asker MpsAsker(const Plan& plan) {
  return plan.SharesMps() && plan.RunsMps() ? Asker::kMps : Asker::kApplication;
}

// After PutSidecar: the container follows the sidecar, which makes its folder.
void PutMps(const Plan& plan, const Settings& settings, Patch* patch) {
  if (!plan.mps) return;
  const Result<PodView> now = PodView::Of(patch->document());
  if (!now) return;
  const Container* const there = now->Find(kMpsName);
  const Container* const sidecar = now->Find(kSidecarName);
  if (there != nullptr && !plan.redo) {
    if (plan.RunsMps()) patch->Set(there->at / "restartPolicy", "Always");
    if (plan.UsesClaim()) PutRequest(*there, RequestOf(plan, MpsAsker(plan)), {}, patch);
    return;
  }
  Json container =
      plan.RunsMps() ? MpsContainer(*now, plan, settings) : MpsWaitContainer(*now, plan, settings);
  if (there != nullptr) return patch->Set(there->at, std::move(container));
  const size_t index =
      sidecar == nullptr ? 0 : static_cast<size_t>(std::stoul(sidecar->at.back())) + 1;
  patch->Insert(Pointer("/spec/initContainers"), index, std::move(container));
}

// The number of init containers behind which the loaders start: those that may serve a volume, such
// as gcsfuse's, which mounts nothing that names it. Containers that attach serve none, and may wait
// for what the loaders load.
size_t PlaceOfLoaders(const PodView& pod, const Plan& plan) {
  size_t place = 0;
  size_t index = 0;
  for (const Container& container : pod.containers()) {
    if (container.kind == Kind::kApplication || IsLoader(container.name)) continue;
    ++index;
    const bool attaches = std::ranges::count(plan.done.containers, container.name) > 0;
    const bool serves = container.kind == Kind::kNativeSidecar && !attaches;
    if (serves || IsOurContainer(container.name)) place = index;
  }
  return place;
}

// The uid of a container; empty if the platform assigns it.
std::optional<int64_t> OwnUid(const Container& container) {
  const Json* const uid = Find(*container.json, Pointer("/securityContext/runAsUser"));
  if (uid == nullptr || !uid->is_number_integer()) return std::nullopt;
  return uid->get<int64_t>();
}

// After PutSidecar and PutMps. Other webhooks may have put containers before or behind the loaders
// since the last call, so their place is found again each time.
void PutLoaders(const Plan& plan, const Settings& settings, Patch* patch) {
  if (plan.UsesOthers()) return;
  const Result<PodView> now = PodView::Of(patch->document());
  if (!now) return;
  const Container* const sidecar = now->Find(kSidecarName);
  if (sidecar == nullptr) return;
  const auto is_loader = [](const Container& container) { return IsLoader(container.name); };
  const Pointer list("/spec/initContainers");
  size_t index = PlaceOfLoaders(*now, plan);
  const auto loader_of = [&](const std::string& buffer) {
    return LoaderContainer(*now, plan, *plan.spec.Find(buffer), settings, OwnUid(*sidecar));
  };
  if (std::ranges::none_of(now->containers(), is_loader)) {
    std::vector<Json> loaders;
    for (const std::string& buffer : plan.loaded) loaders.push_back(loader_of(buffer));
    for (Json& loader : loaders) patch->Insert(list, index++, std::move(loader));
    return;
  }
  const Json& there = Items(now->json(), list);
  Json next = Json::array();
  for (const Json& container : there) {
    if (!container.is_object() || !IsLoader(container.value("name", ""))) next.push_back(container);
  }
  auto place = next.begin() + static_cast<ptrdiff_t>(index);
  for (const std::string& buffer : plan.loaded) {
    const Container* const former = now->Find(annotations::LoaderOf(buffer));
    Json loader;
    if (former != nullptr && !plan.redo) {
      Patch kept(*former->json);
      Container alone = *former;
      alone.at = Pointer();
      kept.Set(Pointer("/restartPolicy"), "Always");
      PutRequest(alone, RequestOf(plan, Asker::kApplication), {"limits"}, &kept);
      loader = kept.document();
    } else {
      loader = loader_of(buffer);
    }
    place = std::next(next.insert(place, std::move(loader)));
  }
  if (next != there) patch->Set(list, std::move(next));
}

// Called before PutSidecar, because adding the sidecar moves the places of the init containers.
void PutMounts(const PodView& pod, const Plan& plan, Patch* patch) {
  for (const std::string& name : plan.done.containers) {
    const Container* const container = pod.Find(name);
    if (container == nullptr) continue;  // Another webhook removed it.
    PutRequest(*container, RequestOf(plan, Asker::kApplication), {"limits"}, patch);
    if (plan.UsesOthers()) {
      // The plugin mounts the folder, because it is not the pod's.
      if (container->Variable(kFolderVariable) == nullptr) {
        PutEntries(container->at / "env", ClaimVariables(name), patch);
      }
    } else {
      Mount(*container, SocketMount(name), patch);
    }
    if (plan.spec.cuda_ipc) {
      for (const Json& mount : CudaIpcMounts()) Mount(*container, mount, patch);
    }
    if (plan.spec.gpus > 1 && container->Variable(kDeviceOrderVariable) == nullptr) {
      PutEntries(container->at / "env", {DeviceOrder()}, patch);
    }
    if (!plan.mps) continue;
    if (!plan.SharesMps()) Mount(*container, MpsMount(/*writable=*/false), patch);
    std::vector<Json> variables;
    for (const auto& [variable, value] : MpsVariables(plan, name)) {
      variables.push_back({{"name", variable}, {"value", value}});
    }
    PutEntries(container->at / "env", variables, patch);
  }
}

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
std::string BrokenSidecar(const PodView& pod, const Plan& plan) {
  if (plan.UsesOthers()) return {};
  const Container* const sidecar = pod.Find(kSidecarName);
  if (sidecar == nullptr || pod.Volume(kVolumeName) == nullptr) {
    return "it has no sidecar. Check that gpushm's MutatingWebhookConfiguration exists, "
           "and that no other webhook removes what it adds";
  }
  if (sidecar->kind != Kind::kNativeSidecar) {
    return "the sidecar lost its restartPolicy. Another webhook was built with a Kubernetes "
           "version older than 1.28 and drops fields that it does not know; update that webhook";
  }
  if (plan.stale)
    return "its sidecar was made for other annotations: another webhook changed the annotations";
  if (const auto missing = MissingOf(*sidecar, RequestOf(plan, Asker::kBroker)); !missing.empty()) {
    return Concat("its sidecar ", missing);
  }
  if (!sidecar->Mounts({{"name", kVolumeName}, {"mountPath", kSocketFolder}})) {
    return "its sidecar must mount the volume gpushm, but another webhook removed the mount";
  }
  return {};
}

std::string BrokenMps(const PodView& pod, const Plan& plan) {
  if (!plan.mps) return {};
  const Container* const mps = pod.Find(kMpsName);
  const Kind kind = plan.RunsMps() ? Kind::kNativeSidecar : Kind::kInit;
  if (mps == nullptr || mps->kind != kind) {
    return "it asks for MPS, but another webhook removed the container gpushm-mps or changed its "
           "restartPolicy";
  }
  if (!plan.UsesClaim()) return {};
  const std::string missing = MissingOf(*mps, RequestOf(plan, MpsAsker(plan)));
  return missing.empty() ? missing : Concat("its container gpushm-mps ", missing);
}

std::string BrokenLoaders(const PodView& pod, const Plan& plan) {
  for (const std::string& buffer : plan.loaded) {
    const std::string name = annotations::LoaderOf(buffer);
    const Container* const loader = pod.Find(name);
    if (loader == nullptr || loader->kind != Kind::kNativeSidecar) {
      return Concat("another webhook removed the container ", name,
                    ", which loads a file, or changed its restartPolicy");
    }
    if (const auto missing = MissingOf(*loader, RequestOf(plan, Asker::kApplication));
        !missing.empty()) {
      return Concat("container ", name, " ", missing);
    }
    const std::string volume(plan.spec.Find(buffer)->FileVolume());
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
    if (IsLoader(container.name) && std::ranges::none_of(plan.loaded, is_it)) {
      return Concat("container ", container.name, " loads the file of no buffer");
    }
  }
  return {};
}

// Why a pod that Mutate has patched cannot run in its current form; empty if it can.
std::string ChangedByOthers(const PodView& pod, const Plan& plan) {
  if (plan.UsesClaim() &&
      std::ranges::count(Items(pod.json(), Pointer("/spec/resourceClaims")), PodClaim(plan)) == 0) {
    return Concat("it must have the claim ", PodClaim(plan).dump(),
                  " in its resourceClaims, but another webhook removed it");
  }
  if (auto why = BrokenSidecar(pod, plan); !why.empty()) return why;
  if (auto why = BrokenMps(pod, plan); !why.empty()) return why;
  if (auto why = BrokenLoaders(pod, plan); !why.empty()) return why;
  for (const std::string& name : plan.done.containers) {
    const Container* const container = pod.Find(name);
    if (container == nullptr) continue;
    const auto missing = MissingOf(*container, RequestOf(plan, Asker::kApplication));
    if (!missing.empty()) return Concat("container ", name, " ", missing);
  }
  if (plan.UsesOthers()) {
    return plan.stale ? "it was prepared for other annotations: another webhook changed them" : "";
  }
  for (const std::string& name : plan.done.containers) {
    const Container* const container = pod.Find(name);
    if (container == nullptr || container->Mounts(SocketMount(name))) continue;
    return Concat(
        "container ", name,
        " must mount the volume gpushm at /run/gpushm, but another webhook removed the mount");
  }
  return {};
}

}  // namespace

Admission::Admission(Settings settings, std::function<uint64_t()> random)
    : settings_(std::move(settings)), random_(std::move(random)) {}

Verdict Admission::Mutate(const Json& pod,
                          std::optional<annotations::Allocation> of_namespace) const {
  const Result<PodView> view = PodView::Of(pod);
  if (!view) return Deny("pod", view.error().what());
  if (!view->Concerns()) return Admit("not-ours");
  const auto plan = MakePlan(*view, settings_, of_namespace);
  if (!plan) return Deny(plan.error());
  if (!*plan) {
    if (OptsOut(*view)) return Admit("opted-out");
    Verdict verdict = Admit("nothing-asked");
    verdict.warnings.push_back("gpushm: nothing in the annotations requests GPU memory");
    return verdict;
  }
  Patch patch(pod);
  PutMounts(*view, **plan, &patch);
  PutIntoPod(*view, **plan, settings_, &patch);
  // With a claim, the scheduler knows each GPU and what is free on it.
  if (!(*plan)->UsesClaim()) PutAffinity(*view, **plan, settings_, &patch);
  PutSidecar(*view, **plan, settings_, random_, &patch);
  PutMps(**plan, settings_, &patch);
  PutLoaders(**plan, settings_, &patch);
  patch.Set(Pointer("/metadata/annotations") / std::string(annotations::kStatusKey),
            (*plan)->Status());
  Verdict verdict = Admit(patch.operations().empty() ? "unchanged" : "injected");
  verdict.patch = std::move(patch).operations();
  verdict.warnings = (*plan)->warnings;
  if (!(*plan)->template_name.empty()) verdict.needs = TemplateFor(**plan);
  return verdict;
}

Verdict Admission::Validate(const Json& pod,
                            std::optional<annotations::Allocation> of_namespace) const {
  const Result<PodView> view = PodView::Of(pod);
  if (!view) return Deny("pod", view.error().what());
  if (!view->Concerns()) return Admit("not-ours");
  const auto plan = MakePlan(*view, settings_, of_namespace);
  if (!plan) return Deny(plan.error());
  if (!*plan) return Admit(OptsOut(*view) ? "opted-out" : "nothing-asked");
  const std::string why = ChangedByOthers(*view, **plan);
  if (!why.empty()) return Deny("changed-by-others", Concat("gpushm: the pod cannot run: ", why));
  return Admit("unchanged");
}

Verdict Admission::ValidateEphemeral(const Json& pod) const {
  const Result<PodView> view = PodView::Of(pod);
  if (!view) return Deny("pod", view.error().what());
  const Container* const sidecar = view->Find(kSidecarName);
  if (sidecar == nullptr) return Admit("not-ours");
  // The annotations of a running pod may have changed. The sidecar's environment has not.
  const Result<annotations::PodSpec> told = ReadBuffersVariable(*sidecar);
  if (!told && told.error().code() == Code::kNotFound &&
      sidecar->Resource("limits", kMemoryResource) == nullptr) {
    return Admit("not-ours");  // An unrelated container that has this name.
  }
  if (told && !told->HasAccessLists()) return Admit("unchanged");
  for (const Json& container : Items(pod, Pointer("/spec/ephemeralContainers"))) {
    const Json* const target = Find(container, Pointer("/targetContainerName"));
    const bool targets = target != nullptr && *target != Json("");
    const bool mounts_it = std::ranges::any_of(
        Items(container, Pointer("/volumeMounts")),
        [](const Json& at) { return at.is_object() && at.value("name", "") == kVolumeName; });
    if (!targets && !mounts_it) continue;
    if (!told) {
      return Deny(
          "ephemeral-container",
          Concat("gpushm: the sidecar's environment does not show whether the pod's "
                 "buffers have lists of containers or writers, because it cannot be read (",
                 told.error().what(),
                 "). An ephemeral container that targets a container "
                 "or mounts the volume gpushm would bypass such lists; leave out --target"));
    }
    return Deny("ephemeral-container",
                "gpushm: the pod's buffers have lists of containers or writers. "
                "An ephemeral container that targets a container "
                "or mounts the volume gpushm would bypass them; leave out --target");
  }
  return Admit("unchanged");
}

}  // namespace gpushm::injector
