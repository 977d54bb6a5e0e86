#include "plugin/binding/book.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "contract/limits.h"
#include "plugin/binding/gpu_sets.h"

namespace gpushm::plugin::binding {
namespace {

bool Overlap(const DeviceIds& a, const DeviceIds& b) {
  return std::any_of(a.begin(), a.end(), [&b](const std::string& id) { return b.contains(id); });
}

// Calls visit(id, gpu) for each ID with the GPU that it stands for: with several GPUs, equal parts
// of the IDs in their order. Fewer IDs than GPUs, such as the one of a container that attaches, all
// stand for the first GPU.
template <typename Visit>
void ForEachPart(const DeviceIds& ids, const std::vector<std::string>& gpus, Visit visit) {
  const size_t part = std::max<size_t>(ids.size() / gpus.size(), 1);
  const bool parts = ids.size() >= gpus.size();
  size_t index = 0;
  for (const std::string& id : ids) {
    visit(id, parts ? gpus[std::min(index / part, gpus.size() - 1)] : gpus.front());
    ++index;
  }
}

// Which of the GPUs have NVLink between them. Both sides must say it.
void SetLinks(const std::vector<const Gpu*>& gpus, std::vector<Candidate>* candidates) {
  for (size_t i = 0; i < gpus.size(); ++i) {
    for (size_t j = 0; j < std::min(gpus.size(), kMostCandidates); ++j) {
      if (i == j || !gpus[i]->nvlink.contains(gpus[j]->uuid) ||
          !gpus[j]->nvlink.contains(gpus[i]->uuid)) {
        continue;
      }
      (*candidates)[i].nvlink |= uint64_t{1} << j;
    }
  }
}

}  // namespace

std::string Binding::GpuList() const { return CommaList(gpus); }

void Book::SetGpus(std::vector<Gpu> gpus) { gpus_ = std::move(gpus); }

void Book::Restore(Binding binding) { entries_.push_back({.binding = std::move(binding)}); }

std::vector<std::string> Book::Supersede(const DeviceIds& ids) {
  std::vector<std::string> names;
  for (Entry& entry : entries_) {
    if (entry.binding.resource != Resource::kMemory || !Overlap(entry.binding.ids, ids)) continue;
    entry.superseded = true;
    names.push_back(entry.binding.name());
  }
  return names;
}

Result<Binding> Book::Bind(Resource resource, const DeviceIds& ids, const Snapshot& now) {
  if (ids.empty()) return Fail(Code::kInvalidArgument, "container without device IDs");
  const Result<Owner> owner = OwnerOf(resource, ids, now);
  if (!owner) return std::unexpected(owner.error());
  Result<Binding> binding =
      resource == Resource::kMemory ? BindMemory(ids, *owner, now) : BindAttach(ids, *owner, now);
  if (!binding) return binding;
  if (auto healthy = CheckHealth(*binding); !healthy) return std::unexpected(healthy.error());
  if (Find(resource, ids, *owner) == nullptr) {
    entries_.push_back({.binding = *binding, .listed_by = now.kubelet_run});
  }
  return binding;
}

Result<Owner> Book::OwnerOf(Resource resource, const DeviceIds& ids, const Snapshot& now) const {
  const std::vector<Owner> owners = now.OwnersOf(resource, ids);
  if (owners.size() > 1) {
    return Fail(
        Code::kContended,
        Concat("the kubelet lists device ID ", *ids.begin(), " of ", ResourceName(resource),
               " for two containers: ", owners[0].ToString(), " and ", owners[1].ToString()),
        "wait until one of them ends; if neither does, delete the younger pod");
  }
  if (owners.empty() || now.IdsOf(owners[0], resource) != ids) {
    return Fail(
        Code::kNotFound,
        Concat("the kubelet lists no container with exactly these ", ids.size(), " device IDs of ",
               ResourceName(resource), " (the first is ", *ids.begin(), ")"),
        "the kubelet tries again by itself");
  }
  if (const std::string other = now.OtherGpuOf(owners[0]); !other.empty() && !coexist_) {
    return Fail(
        Code::kInvalidArgument,
        Concat(owners[0].ToString(), " requests both ", other, " and ", ResourceName(resource)),
        "request only one of them, or set `coexist: true` in the plugin's configuration");
  }
  return owners[0];
}

const Book::Entry* Book::Find(Resource resource, const DeviceIds& ids, const Owner& owner) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return !entry.superseded && entry.binding.resource == resource && entry.binding.ids == ids &&
           entry.binding.owner == owner;
  });
  return found == entries_.end() ? nullptr : &*found;
}

// The kubelet gave these IDs to `who`, so for the kubelet their former holders have ended. A holder
// whose broker is still connected has not ended for the plugin.
Result<void> Book::Release(const DeviceIds& ids, const std::string& who) {
  const auto had_one = [&ids](const Entry& entry) {
    return entry.binding.resource == Resource::kMemory && Overlap(entry.binding.ids, ids);
  };
  for (const Entry& entry : entries_) {
    if (had_one(entry) && entry.link_open) {
      return Fail(Code::kBusy,
                  Concat("device IDs of ", who, " belonged to ", entry.binding.owner.ToString(),
                         ", whose broker is still running"),
                  "the container starts when that process has ended");
    }
  }
  std::erase_if(entries_, had_one);
  return {};
}

Result<Binding> Book::BindMemory(const DeviceIds& ids, const Owner& owner, const Snapshot& now) {
  if (const Entry* entry = Find(Resource::kMemory, ids, owner)) return entry->binding;
  const std::vector<Owner> others = now.OwnersIn(owner.pod, Resource::kMemory);
  if (others.size() > 1) {
    return Fail(
        Code::kInvalidArgument,
        Concat("two containers of pod ", owner.pod.ToString(),
               " request gpushm.io/memory: ", others[0].container, " and ", others[1].container),
        "request gpushm.io/memory for the sidecar only, and gpushm.io/attach: 1 for the others");
  }
  if (auto released = Release(ids, owner.ToString()); !released)
    return std::unexpected(released.error());
  const Result<Need> need = NeedOf(ids, owner, now);
  if (!need) return std::unexpected(need.error());
  Result<std::vector<std::string>> gpus = Choose(*need);
  if (!gpus) return std::unexpected(gpus.error());
  return Binding{.resource = Resource::kMemory,
                 .ids = ids,
                 .gpus = std::move(*gpus),
                 .owner = owner,
                 .exclusive = now.IdsOf(owner, Resource::kExclusive),
                 .nvlink = now.IdsOf(owner, Resource::kNvlink)};
}

// What the sidecar's resources say together.
Result<Book::Need> Book::NeedOf(const DeviceIds& ids, const Owner& owner,
                                const Snapshot& now) const {
  const size_t stated = now.IdsOf(owner, Resource::kGpus).size();
  const size_t gpus = std::max<size_t>(stated, 1);
  const size_t exclusive = now.IdsOf(owner, Resource::kExclusive).size();
  const bool nvlink = !now.IdsOf(owner, Resource::kNvlink).empty();
  const std::string requests =
      Concat(owner.ToString(), " requests ", ids.size(), " units of gpushm.io/memory");
  if (gpus > limits::kPodGpus || ids.size() % gpus != 0) {
    return Fail(
        Code::kInvalidArgument,
        Concat(requests, " and gpushm.io/gpus: ", stated,
               "; each GPU gives the same part, and a pod has at most ", limits::kPodGpus, " GPUs"),
        "annotate the pod with gpushm.io/gpus, and the webhook requests both; by hand, "
        "request a multiple, such as gpushm.io/memory: 16 with gpushm.io/gpus: 2");
  }
  if (exclusive != 0 && exclusive != gpus) {
    return Fail(Code::kInvalidArgument,
                Concat(requests, ", gpushm.io/exclusive: ", exclusive, " and gpushm.io/gpus: ",
                       stated, "; a pod has all of its GPUs alone, or none"),
                Concat("request gpushm.io/exclusive: ", gpus, ", or none"));
  }
  if (nvlink && gpus == 1) {
    return Fail(Code::kInvalidArgument,
                Concat(requests,
                       " and gpushm.io/nvlink without gpushm.io/gpus; one GPU has no "
                       "NVLink to another GPU of the pod"),
                "request gpushm.io/gpus: 2 or more, or leave gpushm.io/nvlink out");
  }
  return Need{.units = static_cast<uint32_t>(ids.size() / gpus),
              .gpus = gpus,
              .nvlink = nvlink,
              .who = owner.ToString(),
              .name_space = owner.pod.name_space,
              .exclusive = exclusive != 0};
}

Result<Binding> Book::BindAttach(const DeviceIds& ids, const Owner& owner, const Snapshot& now) {
  const std::vector<Owner> sidecars = now.OwnersIn(owner.pod, Resource::kMemory);
  if (sidecars.empty()) {
    return Fail(Code::kInvalidArgument,
                Concat("no container of pod ", owner.pod.ToString(), " requests gpushm.io/memory"),
                "gpushm.io/attach needs a sidecar; annotate the pod with "
                "buffers.gpushm.io/<name>: <size>, and the webhook adds both");
  }
  const Entry* const sidecar =
      Find(Resource::kMemory, now.IdsOf(sidecars[0], Resource::kMemory), sidecars[0]);
  if (sidecar == nullptr) {
    return Fail(Code::kUnavailable,
                Concat("the sidecar of pod ", owner.pod.ToString(), " has no GPU yet"),
                "the container starts after its sidecar");
  }
  // Read from the sidecar each time: a successor can have the name and the token of a former pod.
  Binding binding{Resource::kAttach, ids, sidecar->binding.gpus, owner};
  ForgetAttach(ids);
  return binding;
}

Result<void> Book::CheckSidecar(Resource resource, const DeviceIds& ids,
                                const Snapshot& now) const {
  const Result<Owner> owner = OwnerOf(resource, ids, now);
  if (!owner) return std::unexpected(owner.error());
  if (!now.IdsOf(*owner, Resource::kMemory).empty()) return {};
  return Fail(
      Code::kInvalidArgument,
      Concat(owner->ToString(), " requests ", ResourceName(resource), " without gpushm.io/memory"),
      "request both for the sidecar only; the webhook does that for the annotations "
      "gpushm.io/exclusive: \"true\", gpushm.io/gpus: \"2\" and gpushm.io/topology: nvlink");
}

void Book::ForgetAttach(const DeviceIds& ids) {
  std::erase_if(entries_, [&ids](const Entry& entry) {
    return entry.binding.resource == Resource::kAttach && Overlap(entry.binding.ids, ids);
  });
}

std::optional<Book::Obstacle> Book::ObstacleOn(const Gpu& gpu, const Need& need) const {
  if (!gpu.taken_by.empty()) {
    return Obstacle{
        Concat("GPU ", gpu.uuid, " is handed out by ", gpu.taken_by),
        "let only one plugin hand out the GPU (docs/guides/operations.md, other device plugins), "
        "or wait until there is room"};
  }
  if (!gpu.drained.empty()) {
    return Obstacle{Concat("GPU ", gpu.uuid, " is drained: ", gpu.drained),
                    Concat("the container starts when another GPU has room, or after `gpushmctl "
                           "gpu undrain ",
                           gpu.uuid, "` in the plugin's pod")};
  }
  for (const Entry& entry : entries_) {
    const Binding& binding = entry.binding;
    if (binding.resource != Resource::kMemory || !binding.Has(gpu.uuid)) continue;
    const Pod& pod = binding.owner.pod;
    if (!binding.exclusive.empty()) {
      return Obstacle{
          Concat("pod ", pod.ToString(), " has GPU ", gpu.uuid, " alone (gpushm.io/exclusive)"),
          "the container starts when another GPU has room, or when that pod has ended"};
    }
    if (need.exclusive) {
      return Obstacle{Concat("pod ", pod.ToString(), " is on GPU ", gpu.uuid),
                      "the container starts when a GPU has no pod (gpushm.io/exclusive)"};
    }
    if (tenancy_ == Tenancy::kShared || pod.name_space == need.name_space) continue;
    return Obstacle{Concat("GPU ", gpu.uuid, " has pods of namespace ", pod.name_space,
                           " (binding.tenancy: namespace)"),
                    Concat("the container starts when a GPU has room and only pods of namespace ",
                           need.name_space)};
  }
  return std::nullopt;
}

Result<std::vector<std::string>> Book::Choose(const Need& need) const {
  if (need.gpus > 1) return ChooseSeveral(need);
  const uint32_t units = need.units;
  const Gpu* chosen = nullptr;
  uint32_t chosen_free = 0;
  uint32_t largest = 0;
  uint32_t largest_free = 0;
  std::optional<Obstacle> obstacle;
  for (const Gpu& gpu : gpus_) {
    largest = std::max(largest, gpu.units);
    if (auto found = ObstacleOn(gpu, need)) {
      if (gpu.units >= units) obstacle = std::move(found);
      continue;
    }
    if (!gpu.healthy) continue;
    const uint32_t free = FreeUnits(gpu.uuid);
    largest_free = std::max(largest_free, free);
    if (free < units) continue;
    if (chosen != nullptr && free >= chosen_free) continue;
    chosen = &gpu;
    chosen_free = free;
  }
  if (chosen != nullptr) return std::vector{chosen->uuid};
  const std::string needs = Concat(need.who, " needs ", Amount(units), " on one GPU");
  if (units > largest) {
    return Fail(Code::kUnsupported,
                Concat(needs, ", but the largest GPU of this node has ", Amount(largest),
                       " in all: it never starts here"),
                "request less memory, or delete the pod and select a node with larger GPUs");
  }
  const std::string lacks = Concat(needs, ", but the largest free block is ", Amount(largest_free));
  if (obstacle) {
    return Fail(Code::kExhausted, Concat(lacks, "; ", obstacle->reason), obstacle->remedy);
  }
  return Fail(Code::kExhausted, lacks, "the container starts when there is room");
}

Result<std::vector<std::string>> Book::ChooseSeveral(const Need& need) const {
  std::vector<const Gpu*> gpus;
  std::vector<Candidate> candidates;
  for (const Gpu& gpu : gpus_) {
    if (gpu.instance || !gpu.healthy || ObstacleOn(gpu, need)) continue;
    const uint32_t free = FreeUnits(gpu.uuid);
    if (free < need.units) continue;
    gpus.push_back(&gpu);
    candidates.push_back({.cost = free});
  }
  SetLinks(gpus, &candidates);
  auto set = CheapestSet(candidates, need.gpus, /*nvlink=*/true);
  if (!set && !need.nvlink) set = CheapestSet(candidates, need.gpus, /*nvlink=*/false);
  if (!set) return NoSet(need);
  std::vector<std::string> chosen;
  for (const size_t i : *set) chosen.push_back(gpus[i]->uuid);
  return chosen;
}

// Why no set of GPUs has room: whether any ever can, and which is nearest to it.
std::unexpected<Status> Book::NoSet(const Need& need) const {
  const std::string needs = Concat(need.who, " needs ", Amount(need.units), " on each of ",
                                   need.gpus, need.nvlink ? " GPUs with NVLink" : " GPUs");
  struct State {
    std::string lack;  // Empty: it could be taken.
    std::string remedy;
  };
  std::vector<const Gpu*> gpus;
  std::vector<Candidate> candidates;
  std::vector<State> states;
  for (const Gpu& gpu : gpus_) {
    if (gpu.instance || gpu.units < need.units) continue;
    const uint32_t free = FreeUnits(gpu.uuid);
    uint32_t missing = need.units - std::min(need.units, free);
    State state;
    if (auto obstacle = ObstacleOn(gpu, need)) {
      state = {std::move(obstacle->reason), std::move(obstacle->remedy)};
      missing = gpu.units + 1;  // More than any GPU that is only full.
    } else if (!gpu.healthy) {
      state.lack = Concat("GPU ", gpu.uuid, " is unhealthy");
      missing = gpu.units + 1;
    } else if (missing > 0) {
      state.lack =
          Concat("GPU ", gpu.uuid, " has ", Amount(free), " free and lacks ", Amount(missing));
    }
    gpus.push_back(&gpu);
    candidates.push_back({.cost = missing});
    states.push_back(std::move(state));
  }
  SetLinks(gpus, &candidates);
  const auto set = CheapestSet(candidates, need.gpus, need.nvlink);
  if (!set) {
    return Fail(
        Code::kUnsupported,
        Concat(needs, ", but this node has ", gpus.size(), gpus.size() == 1 ? " GPU" : " GPUs",
               " of that size",
               need.nvlink && gpus.size() >= need.gpus ? " without NVLink between that many" : "",
               " (MIG instances cannot be used together): it never starts here"),
        "request fewer GPUs or less memory, or delete the pod and select a node with more GPUs");
  }
  std::string nearest;
  std::string remedy = "the container starts when there is room";
  for (const size_t i : *set) {
    nearest += Concat(nearest.empty() ? "" : ", ", gpus[i]->uuid);
    if (!states[i].remedy.empty()) remedy = states[i].remedy;
  }
  for (const size_t i : *set) {
    if (!states[i].lack.empty()) nearest += Concat("; ", states[i].lack);
  }
  return Fail(Code::kExhausted, Concat(needs, "; the nearest set is ", nearest), remedy);
}

Result<Binding> Book::BindClaim(const ClaimedGpus& claim) {
  const std::string who = Concat("claim ", claim.uid, " of pod ", claim.pod.ToString());
  const auto known = FindClaim(claim.uid);
  if (known != entries_.end()) {
    const Binding& binding = known->binding;
    if (binding.gpus == claim.gpus && binding.claim_bytes == claim.bytes) return binding;
    return Fail(Code::kInvalidArgument,
                Concat(who, " was prepared with ", binding.claim_bytes, " bytes on ",
                       binding.GpuList(), ", but is now allocated otherwise"),
                "delete its pods; the claim is then allocated and prepared anew");
  }
  if (claim.uid.empty() || claim.gpus.empty() || claim.gpus.size() > limits::kPodGpus ||
      claim.bytes == 0) {
    return Fail(Code::kInvalidArgument,
                Concat(who, " has ", claim.bytes, " bytes on each of ", claim.gpus.size(),
                       " GPUs; it needs memory, on 1 to ", limits::kPodGpus, " GPUs"),
                "ask for memory in the request named broker, such as capacity: {requests: "
                "{memory: 8Gi}}");
  }
  for (const std::string& uuid : claim.gpus) {
    const Gpu* const gpu = FindGpu(uuid);
    if (std::ranges::count(claim.gpus, uuid) > 1 ||
        (gpu != nullptr && gpu->instance && claim.gpus.size() > 1)) {
      return Fail(
          Code::kInvalidArgument,
          Concat(who, " has GPU ", uuid,
                 gpu != nullptr && gpu->instance
                     ? " and another one; a MIG instance cannot be used together with others"
                     : " twice"),
          "tie the requests of brokers by distinctAttribute: gpushm.io/uuid, and select "
          "whole GPUs");
    }
    if (auto healthy = CheckHealth(uuid); !healthy) {
      return std::unexpected(healthy.error().WithContext(who));
    }
    const Need need{.who = who, .name_space = claim.pod.name_space};
    if (auto obstacle = ObstacleOn(*gpu, need)) {
      return Fail(Code::kExhausted, Concat(who, ": ", obstacle->reason), obstacle->remedy);
    }
    if (const uint64_t free = FreeBytes(uuid); free < claim.bytes) {
      return Fail(Code::kExhausted,
                  Concat(who, " needs ", claim.bytes, " bytes of GPU ", uuid, ", which has ", free,
                         " free: another pod there has not ended yet"),
                  "the pod starts when that pod has ended");
    }
  }
  entries_.push_back({.binding = {.resource = Resource::kMemory,
                                  .ids = {claim.uid},
                                  .gpus = claim.gpus,
                                  .owner = {.pod = claim.pod, .container = {}},
                                  .claim_bytes = claim.bytes,
                                  .others = claim.others,
                                  .mps = claim.mps}});
  return entries_.back().binding;
}

std::vector<Book::Entry>::const_iterator Book::FindClaim(const std::string& uid) const {
  return std::ranges::find_if(entries_, [&uid](const Entry& entry) {
    return entry.binding.IsClaim() && entry.binding.name() == uid;
  });
}

Result<Binding> Book::ReleaseClaim(const std::string& uid) {
  const auto found = FindClaim(uid);
  if (found == entries_.end()) {
    return Fail(Code::kNotFound, Concat("claim ", uid, " is not prepared on this node"));
  }
  if (found->link_open) {
    return Fail(Code::kBusy,
                Concat("claim ", uid, " of pod ", found->binding.owner.pod.ToString(),
                       " has a broker that is still running"),
                "the claim is released when that process has ended");
  }
  Binding binding = found->binding;
  entries_.erase(found);
  return binding;
}

void Book::NoteLink(const std::string& name, bool open) {
  for (Entry& entry : entries_) {
    const Binding& binding = entry.binding;
    if (binding.resource == Resource::kMemory && binding.name() == name) entry.link_open = open;
  }
}

std::vector<Binding> Book::Observe(const Snapshot& now, int64_t now_ms) {
  std::vector<Binding> released;
  for (Entry& entry : entries_) {
    const Binding& binding = entry.binding;
    if (binding.IsClaim()) continue;  // Invariant 8.
    const bool listed =
        !entry.superseded && Overlap(now.IdsOf(binding.owner, binding.resource), binding.ids);
    if (listed) {
      entry.missing_since_ms.reset();
      entry.listed_by = now.kubelet_run;
      entry.unlisted = false;
      continue;
    }
    if (!entry.missing_since_ms) entry.missing_since_ms = now_ms;
    entry.unlisted |= SeenBy(entry, now);
  }
  std::erase_if(entries_, [&](const Entry& entry) {
    const bool seen = SeenBy(entry, now);
    const int64_t proof_ms = seen ? kSeenProofMs : kProofMs;
    const bool gone = entry.missing_since_ms && now_ms - *entry.missing_since_ms >= proof_ms;
    if (!gone || entry.link_open) return false;
    released.push_back(entry.binding);
    return true;
  });
  return released;
}

std::set<std::string> Book::Unlisted() const {
  std::set<std::string> names;
  for (const Entry& entry : entries_) {
    const bool memory = entry.binding.resource == Resource::kMemory;
    if (memory && !entry.superseded && entry.unlisted) names.insert(entry.binding.name());
  }
  return names;
}

// Whether the running kubelet process has listed it before.
bool Book::SeenBy(const Entry& entry, const Snapshot& now) {
  return entry.listed_by != 0 && entry.listed_by == now.kubelet_run;
}

bool Book::WaitsForProof() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.missing_since_ms.has_value(); });
}

DeviceIds Book::Unhealthy(Resource resource, const DeviceIds& all) const {
  if (resource == Resource::kGpus || resource == Resource::kNvlink) return {};
  if (resource == Resource::kExclusive) return UnhealthyExclusive(all);
  size_t count = 0;
  DeviceIds sick;
  DeviceIds bound_elsewhere;
  std::map<std::string, size_t> bound;  // By GPU.
  std::set<std::string> alone;          // GPUs that a pod has alone.
  for (const Entry& entry : entries_) {
    const Binding& binding = entry.binding;
    if (!binding.exclusive.empty()) alone.insert(binding.gpus.begin(), binding.gpus.end());
    if (binding.resource != resource || binding.IsClaim()) continue;
    ForEachPart(binding.ids, binding.gpus, [&](const std::string& id, const std::string& gpu) {
      (CheckHealth(gpu) ? bound_elsewhere : sick).insert(id);
      ++bound[gpu];
    });
  }
  for (const Gpu& gpu : gpus_) {
    const size_t stands_for = resource == Resource::kMemory ? gpu.units : gpu.tokens;
    if (!gpu.healthy) count += stands_for;
    const bool full = gpu.closed() || alone.contains(gpu.uuid);
    if (gpu.healthy && full) count += stands_for - std::min(stands_for, bound[gpu.uuid]);
  }
  for (const std::string& id : all) {
    if (sick.size() >= count) break;
    if (!bound_elsewhere.contains(id)) sick.insert(id);
  }
  return sick;
}

DeviceIds Book::UnhealthyExclusive(const DeviceIds& all) const {
  DeviceIds sick;
  DeviceIds held;
  std::set<std::string> shared;
  std::set<std::string> alone;
  for (const Entry& entry : entries_) {
    const Binding& binding = entry.binding;
    if (binding.resource != Resource::kMemory) continue;
    (binding.exclusive.empty() ? shared : alone).insert(binding.gpus.begin(), binding.gpus.end());
    ForEachPart(binding.exclusive, binding.gpus,
                [&](const std::string& id, const std::string& gpu) {
                  (CheckHealth(gpu) ? held : sick).insert(id);
                });
  }
  const auto count = static_cast<size_t>(std::ranges::count_if(gpus_, [&](const Gpu& gpu) {
    if (!gpu.healthy) return true;
    return !alone.contains(gpu.uuid) && (gpu.closed() || shared.contains(gpu.uuid));
  }));
  for (const std::string& id : all) {
    if (sick.size() >= count) break;
    if (!held.contains(id)) sick.insert(id);
  }
  return sick;
}

std::vector<Binding> Book::bindings() const {
  std::vector<Binding> current;
  for (const Entry& entry : entries_) {
    if (!entry.superseded) current.push_back(entry.binding);
  }
  return current;
}

uint32_t Book::FreeUnits(const std::string& gpu) const {
  const Gpu* const found = FindGpu(gpu);
  if (found == nullptr) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(found->units, FreeBytes(gpu) / unit_bytes_));
}

uint64_t Book::FreeBytes(const std::string& gpu) const {
  const Gpu* const found = FindGpu(gpu);
  if (found == nullptr) return 0;
  uint64_t used = 0;
  for (const Entry& entry : entries_) {
    const Binding& binding = entry.binding;
    if (binding.resource != Resource::kMemory || !binding.Has(gpu)) continue;
    used += binding.BytesOfEach(unit_bytes_);
  }
  const uint64_t all = std::max(found->bytes, found->units * unit_bytes_);
  return used >= all ? 0 : all - used;
}

std::vector<uint32_t> Book::LargestFree() const {
  const auto alone = [this](const Gpu& gpu) {
    return std::ranges::any_of(entries_, [&gpu](const Entry& entry) {
      return !entry.binding.exclusive.empty() && entry.binding.Has(gpu.uuid);
    });
  };
  uint32_t largest = 0;
  std::vector<uint32_t> whole;
  for (const Gpu& gpu : gpus_) {
    const bool open = gpu.healthy && !gpu.closed() && !alone(gpu);
    const uint32_t free = open ? FreeUnits(gpu.uuid) : 0;
    largest = std::max(largest, free);
    if (!gpu.instance) whole.push_back(free);
  }
  std::ranges::sort(whole, std::greater());
  whole.resize(std::clamp<size_t>(whole.size(), 1, limits::kPodGpus));
  whole.front() = largest;
  return whole;
}

const Gpu* Book::FindGpu(const std::string& uuid) const {
  const auto found = std::find_if(gpus_.begin(), gpus_.end(),
                                  [&uuid](const Gpu& gpu) { return gpu.uuid == uuid; });
  return found == gpus_.end() ? nullptr : &*found;
}

Result<void> Book::CheckHealth(const Binding& binding) const {
  for (const std::string& gpu : binding.gpus) {
    if (auto healthy = CheckHealth(gpu); !healthy) return healthy;
  }
  return {};
}

Result<void> Book::CheckHealth(const std::string& uuid) const {
  const Gpu* const gpu = FindGpu(uuid);
  if (gpu != nullptr && gpu->healthy) return {};
  return Fail(
      Code::kDeviceLost, Concat("GPU ", uuid, gpu == nullptr ? " is gone" : " is unhealthy"),
      "the container starts when the GPU is healthy again; delete the pod to have it placed "
      "again");
}

std::string Book::Amount(uint32_t units) const {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const uint64_t bytes = units * unit_bytes_;
  return bytes % (kMiB << 10) == 0 ? Concat(bytes >> 30, " GiB") : Concat(bytes / kMiB, " MiB");
}

}  // namespace gpushm::plugin::binding
