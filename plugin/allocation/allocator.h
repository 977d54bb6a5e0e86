// Answers the kubelet: decides with the book, and carries out the decision in an order that a crash
// at any step leaves consistent.
//
//   Allocate   The IDs go to a new pod. Removes what their names stood for, then answers.
//   PreStart   Finds out who holds the IDs (podresources) and which GPUs nobody else hands out,
//              chooses a GPU (book), and makes spec and link. Then it answers, and the container
//              may start.
//   Reconcile  Finds out whose end is proven; removes their spec, link and kept state.
//   PrepareClaim, UnprepareClaim
//              The same for a ResourceClaim, for which the scheduler has chosen the GPU and the
//              kubelet proves the end (docs/design/dra.md).
//
// Invariants
//   (1) No spec exists under an ID's name between its Allocate and its PreStart. The kubelet may
//       start a container without a request while no plugin is registered. Such a container fails,
//       and does not get its predecessor's GPU.
//   (2) No listing of podresources begins while an Allocate is in progress here, because the
//       kubelet can lose a reservation then (k/k PR #137534). If an Allocate begins during a
//       listing, or the previous plugin forwards one, the loss shows as one ID at two containers.
//       The book refuses both of them.
//
// Threads: all calls from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/daemon/worker.h"
#include "plugin/binding/book.h"
#include "plugin/dra/handler.h"
#include "plugin/kubelet/handler.h"
#include "plugin/kubelet/pod_resources.h"

namespace gpushm::plugin::allocation {

// The effects of a decision. Called one at a time; they must not call the Allocator.
class Effects {
 public:
  virtual ~Effects() = default;
  virtual Result<kubelet::PodList> ListPods(const Deadline& deadline) = 0;
  // Checks who else hands out GPUs of this node. The only one that may run in parallel with others.
  virtual Result<void> LookAtOthers(const kubelet::PodList& pods, const Deadline& deadline) = 0;
  // The result: for each UUID of a GPU that somebody else hands out, who does.
  virtual std::map<std::string, std::string> Taken() const = 0;
  // The same for GPUs that an operator drained: why.
  virtual std::map<std::string, std::string> Drained() const = 0;
  // The CDI names under which the runtime finds what Publish wrote.
  virtual std::vector<std::string> CdiNames(binding::Resource resource,
                                            const std::string& name) const = 0;
  // Makes everything that the container needs to start on that GPU. Repeatable.
  virtual Result<void> Publish(const binding::Binding& binding) = 0;
  // Removes the spec, the link and the kept state of the allocation of that name.
  virtual void Retract(binding::Resource resource, const std::string& name) = 0;
  // The same for a claim.
  virtual void RetractClaim(const std::string& uid) = 0;
  // kBusy: processes of pods that share the claim still hold its memory.
  virtual Result<void> CheckClaimIsUnused(const std::string& uid) = 0;
};

struct AllocatorOptions {
  uint64_t unit_bytes = uint64_t{1} << 30;
  bool coexist = false;  // See Book::SetCoexist.
  binding::Tenancy tenancy = binding::Tenancy::kShared;
  // The pod that this plugin runs in; a list without it is too young to prove anything. Empty if it
  // does not run in a pod.
  std::optional<binding::Pod> own_pod = std::nullopt;
  // Limits for one PreStart: for the listing, and for waiting for conditions that pass by
  // themselves. The kubelet gives it 30 s.
  int64_t list_timeout_ms = 5000;
  int64_t settle_timeout_ms = 2000;
  // Limit for an Allocate, if a decision is in progress or the disk hangs. The kubelet gives it no
  // deadline, and admits no other pod meanwhile.
  int64_t allocate_timeout_ms = 5000;
};

class Allocator final : public kubelet::Handler, public dra::Handler {
 public:
  Allocator(AllocatorOptions options, Effects* effects);

  // Takes over what an earlier run wrote down. Only SetGpus may be called before.
  void Restore(const std::vector<binding::Binding>& bindings);

  // From then on nothing is decided, and no decision has an effect. Waits for a decision in
  // progress, at most as long as Allocate waits.
  void Close();

  // Once, before anything else.
  void SetGpus(std::vector<binding::Gpu> gpus);
  // The GPUs as the book has them now.
  std::vector<binding::Gpu> gpus() const;
  void SetHealth(const std::string& gpu, bool healthy);
  // Looks which GPUs are drained, and at what LookAtOthers saw last.
  void LookAtClosed();
  // Whether the broker of the memory allocation of that name is connected. Never waits.
  void NoteLink(const std::string& name, bool open);

  Result<std::vector<std::string>> Allocate(binding::Resource resource,
                                            const binding::DeviceIds& ids) override;
  Result<void> PreStart(binding::Resource resource, const binding::DeviceIds& ids) override;

  Result<void> PrepareClaim(const binding::ClaimedGpus& claim, const Deadline& deadline,
                            const std::function<bool()>& given_up) override;
  Result<void> UnprepareClaim(const std::string& uid, const Deadline& deadline) override;

  // Reads the kubelet's list; must be called every few seconds, and sooner while WaitsForProof().
  // Returns what was released.
  Result<std::vector<binding::Binding>> Reconcile(int64_t now_ms);

  bool WaitsForProof() const;
  // Those of `all` IDs that must be reported unhealthy.
  binding::DeviceIds Unhealthy(binding::Resource resource, const binding::DeviceIds& all) const;
  std::vector<binding::Binding> bindings() const;
  // For callers that must not wait: nothing while a decision is in progress.
  std::optional<binding::BookView> TryLook() const;
  uint32_t FreeUnits(const std::string& gpu) const;
  // As Book::LargestFree.
  std::vector<uint32_t> LargestFree() const;

 private:
  Result<void> TryPrepare(const binding::ClaimedGpus& claim, const std::function<bool()>& given_up,
                          std::unique_lock<std::timed_mutex>* lock);
  Result<kubelet::PodList> ListWhenQuiet(const Deadline& deadline);
  // Needs mutex_.
  Result<std::vector<std::string>> Admit(binding::Resource resource, const binding::DeviceIds& ids);
  void ApplyLinks();
  void ApplyClosed();

  const AllocatorOptions options_;
  Effects* const effects_;

  mutable std::timed_mutex mutex_;  // Guards the book; also held during effects.
  std::condition_variable_any changed_;
  binding::Book book_;
  std::vector<binding::Gpu> gpus_;
  // Claims for which calls wait here, by UID. A call during which the claim was unprepared must
  // have no effect, because no other Unprepare will come.
  struct Preparing {
    int calls = 0;
    uint64_t unprepares = 0;
  };
  std::map<std::string, Preparing> preparing_;
  std::atomic<bool> closed_ = false;

  std::mutex quiet_mutex_;  // Guards open_allocates_.
  std::condition_variable quiet_;
  int open_allocates_ = 0;

  std::mutex links_mutex_;  // Guards links_; the keeper's thread never waits for the book.
  std::vector<std::pair<std::string, bool>> links_;

  // Runs decisions, so that Allocate can stop waiting for one. Destroyed first.
  Worker admissions_{1, Worker::Threads::kLeave};
};

}  // namespace gpushm::plugin::allocation
