// The book of bindings: which GPU for whom (docs/design/plugin.md).
//
// Pure: no I/O, no clock, no thread. The caller brings what it saw and the time, and does what
// comes back: writes or unlinks a CDI spec, drops descriptors.
//
// Words: an *allocation* is the set of device IDs that the kubelet gave to one container; its
// *name* is the smallest of them. A *binding* ties an allocation to a GPU.
//
// Invariants
//   (1) The units of a GPU's memory bindings, superseded ones included, are at most its units, as
//       long as it has not lost any.
//   (2) An ID is in at most one binding that is not superseded.
//   (3) A memory binding leaves the book only when its owner's end is proven: its link is closed,
//       and either the kubelet gave one of its IDs to another container, or two looks lacked it:
//       kSeenProofMs apart when this very run of the kubelet had listed it before, kProofMs apart
//       when it had not (its list may still be young).
//   (4) All containers of a pod are bound to one GPU.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "plugin/binding/snapshot.h"

namespace gpushm::plugin {

struct Gpu {
  std::string uuid;
  uint32_t units = 0;   // What it can back.
  uint32_t tokens = 0;  // Attach IDs that stand for it.
  bool healthy = true;
  // Somebody else hands it out too, such as "nvidia.com/gpu": who is bound there stays, nobody new
  // comes. Empty: nobody does.
  std::string taken_by = {};
};

// Which of the GPUs with room. kBest leaves the largest blocks whole; the others are what it is
// compared with (binding_bench).
enum class Fit { kBest, kFirst, kSpread };

struct Binding {
  Resource resource = Resource::kMemory;
  DeviceIds ids;
  std::string gpu;  // UUID.
  Owner owner;
  const std::string& name() const { return *ids.begin(); }
  friend bool operator==(const Binding&, const Binding&) = default;
};

// What a book says to who shows it.
struct BookView {
  std::vector<Binding> bindings;
  std::set<std::string> unlisted;  // As Book::Unlisted.
};

class Book {
 public:
  explicit Book(uint64_t unit_bytes, Fit fit = Fit::kBest) : unit_bytes_(unit_bytes), fit_(fit) {}

  // As long as a kubelet's list may be young and miss pods.
  static constexpr int64_t kProofMs = 30'000;
  // What one kubelet has listed and lists no more has ended; twice, so that one odd answer does not
  // decide.
  static constexpr int64_t kSeenProofMs = 2'000;

  // What there is now, in a fixed order. GPUs that are no longer named keep their bindings, and
  // nothing new is bound there.
  void SetGpus(std::vector<Gpu> gpus);

  // Whether a container may also hold GPUs of NVIDIA's plugin. By default it may not: it would see
  // two GPUs or more, and its pod's buffers lie on one.
  void SetCoexist(bool coexist) { coexist_ = coexist; }

  // From what an earlier run of the plugin wrote down.
  void Restore(Binding binding);

  // A memory Allocate, the only sign of a new pod: names of bindings that these IDs were in. They
  // are superseded; whoever keeps something under those names drops it.
  std::vector<std::string> Supersede(const DeviceIds& ids);

  // PreStartContainer. The same answer again for a container that starts again.
  // kNotFound, kContended: ask again with a newer snapshot. kBusy: a former owner is not proven to
  // be gone. kExhausted: no GPU has room now. kUnsupported: none of this node ever will.
  // kUnavailable: the pod's sidecar has no GPU yet. kDeviceLost: its GPU is sick or gone.
  // kInvalidArgument: the pod is wrong, and stays so.
  Result<Binding> Bind(Resource resource, const DeviceIds& ids, const Snapshot& now);

  // ---- strategy "devices": the GPU is chosen in Allocate, when nobody says whose the IDs are.

  // A memory allocation gets a GPU with room, an attach allocation that of the memory allocation
  // before it: the kubelet admits one pod at a time, its sidecar first (measured; research:
  // k8s-facts). The owner is empty until Prove. Errors as of Bind; there they end the pod.
  Result<Binding> BindEarly(Resource resource, const DeviceIds& ids);
  // PreStartContainer of such an allocation: whose it is, and that its pod has one GPU.
  // kInvalidArgument: it has two. kUnavailable: nothing is known of these IDs. Else as Bind.
  Result<Binding> Prove(Resource resource, const DeviceIds& ids, const Snapshot& now);

  // ----

  // Whether the broker of the memory allocation of that name is connected.
  void NoteLink(const std::string& name, bool open);

  // A look at the kubelet's list that is known to be whole. What was proven to be gone.
  std::vector<Binding> Observe(const Snapshot& now, int64_t now_ms);
  // Whether another look may prove something: a binding was missed and is still in the book.
  bool WaitsForProof() const;

  // Of `all` IDs of the resource, as many as the sick GPUs stand for, those bound there first, and
  // as many as are free on GPUs that somebody else hands out.
  DeviceIds Unhealthy(Resource resource, const DeviceIds& all) const;

  std::vector<Binding> bindings() const;  // Without superseded ones.
  // Names of those memory bindings that the last look of the kubelet's run that had listed them
  // lacked. For who shows them; one look proves nothing.
  std::set<std::string> Unlisted() const;
  uint32_t FreeUnits(const std::string& gpu) const;

 private:
  struct Entry {
    Binding binding;
    bool superseded = false;
    bool link_open = false;
    std::optional<int64_t> missing_since_ms = std::nullopt;
    uint64_t listed_by = 0;  // The kubelet's run that did last; 0: none that is known.
    bool unlisted = false;   // It looked again since, and did not.
  };

  Result<Owner> OwnerOf(Resource resource, const DeviceIds& ids, const Snapshot& now) const;
  Result<void> Release(const DeviceIds& ids, const std::string& who);
  Result<Binding> BindMemory(const DeviceIds& ids, const Owner& owner, const Snapshot& now);
  Result<Binding> BindAttach(const DeviceIds& ids, const Owner& owner, const Snapshot& now);
  Result<std::string> Choose(uint32_t units, const std::string& who) const;
  void ForgetAttach(const DeviceIds& ids);
  static bool SeenBy(const Entry& entry, const Snapshot& now);
  const Entry* Find(Resource resource, const DeviceIds& ids, const Owner& owner) const;
  const Gpu* FindGpu(const std::string& uuid) const;
  Result<void> CheckHealth(const std::string& uuid) const;
  std::string Amount(uint32_t units) const;

  uint64_t unit_bytes_;
  Fit fit_;
  bool coexist_ = false;
  std::vector<Gpu> gpus_;
  std::vector<Entry> entries_;
  std::string early_gpu_;  // Of the last memory allocation of BindEarly.
};

}  // namespace gpushm::plugin
