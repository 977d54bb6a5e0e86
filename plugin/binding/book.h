// The book of bindings: which pod has which GPUs (docs/design/plugin.md).
//
// Pure: no I/O, no clock, no threads. The caller supplies what it observed and the time. It carries
// out the result: writes or removes a CDI spec, drops descriptors.
//
// Terms: an *allocation* is the set of device IDs that the kubelet gave to one container; its
// *name* is the smallest of them. A *binding* ties an allocation to one GPU or several.
//   With several, each GPU gives the same part of the memory.
//
// Invariants
//   (1) The memory bindings of a GPU, including superseded ones, have at most as many units as the
//       GPU, as long as the GPU has not lost units.
//   (2) An ID is in at most one binding that is not superseded.
//   (3) A memory binding leaves the book only when its owner's end is proven. First, its link must
//       be closed. Second, the kubelet must have given one of its IDs to another container, or two
//       listings must lack it. The two are kSeenProofMs apart if this run of the kubelet had listed
//       it before. Otherwise they are kProofMs apart, because the list may still be incomplete.
//   (4) All containers of a pod are bound to the same GPUs, in the same order.
//   (5) With Tenancy::kNamespace, no memory binding is made on a GPU that has one of another
//       namespace.
//   (6) No memory binding is made on a GPU that a pod has alone, nor one that is exclusive on a GPU
//       that has another.
//   (7) A binding of several GPUs has no MIG instance, because CUDA uses only one in a process. If
//       it asked for NVLink, each two of its GPUs have it. If it did not, but GPUs with it have
//       room, it has such ones.
//   (8) The binding of a ResourceClaim has the GPUs that the scheduler chose, and leaves the book
//       only in ReleaseClaim. It counts in (1) with its bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "contract/claims.h"
#include "platform/base/status.h"
#include "plugin/binding/snapshot.h"

namespace gpushm::plugin::binding {

struct Gpu {
  std::string uuid;
  uint32_t units = 0;   // Units of memory that it can back.
  uint32_t tokens = 0;  // Number of attach tokens.
  bool healthy = true;
  // Who else hands it out, such as "nvidia.com/gpu". Bindings stay, but no new one is made. Empty:
  // nobody else.
  std::string taken_by = {};
  std::string drained = {};  // Why an operator took it out of service, with the same effect.
  bool instance = false;     // It is a MIG instance.
  // The same memory as `units`, but not rounded to units; 0: units only. Claims count in bytes.
  uint64_t bytes = 0;
  std::set<std::string> nvlink = {};  // UUIDs of GPUs that it reaches over NVLink.
  bool closed() const { return !taken_by.empty() || !drained.empty(); }
};

// Which pods may have a GPU together.
enum class Tenancy {
  kShared,     // All.
  kNamespace,  // Those of one namespace.
};

using claims::Others;
using claims::Part;

struct Binding {
  Resource resource = Resource::kMemory;
  DeviceIds ids;
  std::vector<std::string> gpus;  // UUIDs, in the order of their numbers; at least one.
  Owner owner;
  // Of memory: the container's IDs of kExclusive. If it has any, no other pod gets the GPU.
  DeviceIds exclusive = {};
  // Of a ResourceClaim: the bytes that each GPU gives. Then `ids` holds only the claim's UID, and
  // the owner has no container. 0: a device plugin's binding, which counts in units.
  uint64_t claim_bytes = 0;
  bool IsClaim() const { return claim_bytes != 0; }
  Others others = Others::kNone;  // Of a ResourceClaim.
  bool mps = false;               // One of its pods may run an MPS daemon for all of them.
  DeviceIds nvlink = {};          // Of memory: the container's IDs of kNvlink.
  const std::string& name() const { return *ids.begin(); }
  bool Has(const std::string& gpu) const {
    return std::find(gpus.begin(), gpus.end(), gpu) != gpus.end();
  }
  // Its GPUs, separated by commas.
  std::string GpuList() const;
  // Of memory: how many bytes each GPU gives.
  uint64_t BytesOfEach(uint64_t unit_bytes) const {
    return IsClaim() ? claim_bytes : ids.size() / gpus.size() * unit_bytes;
  }
  friend bool operator==(const Binding&, const Binding&) = default;
};

// What the scheduler gave to a ResourceClaim on this node (docs/design/dra.md).
struct ClaimedGpus {
  std::string uid;
  Pod pod;                        // The first one that the claim is reserved for.
  std::vector<std::string> gpus;  // UUIDs, in the order of their numbers.
  uint64_t bytes = 0;             // On each GPU; at least one.
  Others others = Others::kNone;
  bool mps = false;
};

// A snapshot of the book for display.
struct BookView {
  std::vector<Binding> bindings;
  std::set<std::string> unlisted;  // As Book::Unlisted.
};

class Book {
 public:
  explicit Book(uint64_t unit_bytes) : unit_bytes_(unit_bytes) {}

  // How long a kubelet's list may be incomplete after its start.
  static constexpr int64_t kProofMs = 30'000;
  // What one kubelet has listed and no longer lists has ended. Two listings must lack it, so that a
  // single wrong answer does not decide.
  static constexpr int64_t kSeenProofMs = 2'000;

  // The GPUs that exist now, in a fixed order. GPUs that are no longer in the list keep their
  // bindings, but get no new one.
  void SetGpus(std::vector<Gpu> gpus);

  // Whether a container may also hold GPUs of NVIDIA's plugin. By default it may not, because it
  // would see two or more GPUs, and its pod's buffers are on only one of them.
  void SetCoexist(bool coexist) { coexist_ = coexist; }

  void SetTenancy(Tenancy tenancy) { tenancy_ = tenancy; }

  // Takes over a binding that an earlier run of the plugin wrote down.
  void Restore(Binding binding);

  // For a memory Allocate, which is the only sign of a new pod. Supersedes the bindings that
  // contained these IDs and returns their names; the caller drops what is kept under these names.
  std::vector<std::string> Supersede(const DeviceIds& ids);

  // For PreStartContainer. Returns the same binding again when a container restarts.
  // kNotFound, kContended: try again with a newer snapshot. kBusy: the end of a former owner is not
  // proven. kExhausted: no GPU has room now. kUnsupported: no GPU of this node can ever have room.
  // kUnavailable: the pod's sidecar has no GPU yet. kDeviceLost: its GPU is unhealthy or gone.
  // kInvalidArgument: the pod is invalid, and a retry does not help.
  // `resource` is kMemory or kAttach. What the others say is part of the memory binding.
  Result<Binding> Bind(Resource resource, const DeviceIds& ids, const Snapshot& now);

  // ---- dynamic resource allocation: the scheduler has chosen, and the book verifies.

  // Returns the same binding again for a UID that it knows. kExhausted: a GPU has no room yet, for
  // example because a pod that was deleted by force still ends, or it takes no new pod.
  // kDeviceLost: a GPU is unhealthy or gone. kInvalidArgument: the claim can never be bound.
  Result<Binding> BindClaim(const ClaimedGpus& claim);
  bool HasClaim(const std::string& uid) const { return FindClaim(uid) != entries_.end(); }
  // Removes the binding and returns it. kNotFound: there is none. kBusy: its broker still runs.
  Result<Binding> ReleaseClaim(const std::string& uid);

  // ----

  // Whether the broker of the memory allocation of that name is connected.
  void NoteLink(const std::string& name, bool open);

  // Evaluates a listing of the kubelet that is known to be complete. Returns the bindings whose end
  // is proven.
  std::vector<Binding> Observe(const Snapshot& now, int64_t now_ms);
  // Whether another listing may prove an end: a binding was missing and is still in the book.
  bool WaitsForProof() const;

  // For PreStartContainer of a resource that binds nothing: checks that the container is a sidecar.
  // kInvalidArgument: it is not. kNotFound, kContended: as for Bind.
  Result<void> CheckSidecar(Resource resource, const DeviceIds& ids, const Snapshot& now) const;

  // The IDs to report unhealthy: as many of `all` as the unhealthy GPUs have, starting with those
  // bound there, plus as many as are free on GPUs that take no new pod: somebody else hands them
  // out, they are drained, or a pod has them alone. Of kExclusive also those of GPUs with pods that
  // share them, because no pod can have them alone now. Of kGpus and kNvlink none: their number
  // says what the node has, not what is free.
  DeviceIds Unhealthy(Resource resource, const DeviceIds& all) const;

  std::vector<Binding> bindings() const;  // Without superseded ones.
  // Names of the memory bindings that a kubelet listed and then, in its latest listing, lacked. For
  // display only; one listing proves nothing.
  std::set<std::string> Unlisted() const;
  uint32_t FreeUnits(const std::string& gpu) const;
  uint64_t FreeBytes(const std::string& gpu) const;
  // At index N-1: how many units a new pod of N GPUs can get on each of them, if it shares them
  // and needs no NVLink. With Tenancy::kNamespace, in the namespace for which that is most. Never
  // empty; ends with the number of GPUs that a pod can have.
  std::vector<uint32_t> LargestFree() const;

 private:
  struct Entry {
    Binding binding;
    bool superseded = false;
    bool link_open = false;
    std::optional<int64_t> missing_since_ms = std::nullopt;
    uint64_t listed_by = 0;  // The kubelet run that listed it last; 0 if unknown.
    bool unlisted = false;   // That run has since listed pods without it.
  };

  Result<Owner> OwnerOf(Resource resource, const DeviceIds& ids, const Snapshot& now) const;
  Result<void> Release(const DeviceIds& ids, const std::string& part);
  Result<Binding> BindMemory(const DeviceIds& ids, const Owner& owner, const Snapshot& now);
  Result<Binding> BindAttach(const DeviceIds& ids, const Owner& owner, const Snapshot& now);
  struct Need {
    uint32_t units = 0;  // On each GPU.
    size_t gpus = 1;
    bool nvlink = false;
    std::string who;         // For errors.
    std::string name_space;  // Of the pod.
    bool exclusive = false;
  };
  Result<Need> NeedOf(const DeviceIds& ids, const Owner& owner, const Snapshot& now) const;
  // Best fit: the GPU with the least room that is enough, which leaves the largest blocks whole.
  Result<std::vector<std::string>> Choose(const Need& need) const;
  Result<std::vector<std::string>> ChooseSeveral(const Need& need) const;
  std::unexpected<Status> NoSet(const Need& need) const;
  // Why no pod with that need may be bound there, and the remedy; nothing if it may be.
  struct Obstacle {
    std::string reason;
    std::string remedy;
  };
  std::optional<Obstacle> ObstacleOn(const Gpu& gpu, const Need& need) const;
  DeviceIds UnhealthyExclusive(const DeviceIds& all) const;
  void ForgetAttach(const DeviceIds& ids);
  std::vector<Entry>::const_iterator FindClaim(const std::string& uid) const;
  static bool SeenBy(const Entry& entry, const Snapshot& now);
  const Entry* Find(Resource resource, const DeviceIds& ids, const Owner& owner) const;
  const Gpu* FindGpu(const std::string& uuid) const;
  Result<void> CheckHealth(const std::string& uuid) const;
  Result<void> CheckHealth(const Binding& binding) const;
  std::string Amount(uint32_t units) const;

  uint64_t unit_bytes_;
  bool coexist_ = false;
  Tenancy tenancy_ = Tenancy::kShared;
  std::vector<Gpu> gpus_;
  std::vector<Entry> entries_;
};

}  // namespace gpushm::plugin::binding
