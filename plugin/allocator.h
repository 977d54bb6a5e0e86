// Answers the kubelet: decides with the book, and does what follows in an order that a crash at any
// step leaves right.
//
//   Allocate   the IDs go to a new pod: what stood behind them is taken away, then the answer.
//              Strategy "devices" decides here already (docs/design/plugin.md)
//   PreStart   whose they are (podresources), which GPUs nobody else hands out, which of them
//              (book), the spec and the link, then the answer; after it the container may start
//   Reconcile  whose end is proven: spec, link and what was kept go
//
// Invariants
//   (1) No spec exists under an ID's name between its Allocate and its PreStart: a container that
//       the kubelet starts without asking (it may, while no plugin is registered) fails, and does
//       not get its predecessor's GPU.
//   (2) No listing of podresources begins while an Allocate is open here: the kubelet can lose a
//       reservation then (k/k PR #137534). Where one of them begins during a listing, or is
//       forwarded by the plugin before this one, the loss shows as an ID at two containers, and the
//       book refuses both.
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
#include "plugin/kubelet/handler.h"
#include "plugin/kubelet/pod_resources.h"

namespace gpushm::plugin {

// What deciding leads to. Called one at a time, and they must not call the Allocator.
class Effects {
 public:
  virtual ~Effects() = default;
  virtual Result<kubelet::PodList> ListPods(const Deadline& deadline) = 0;
  // Looks who else hands out GPUs of this node. The one that is called beside others.
  virtual Result<void> LookAtOthers(const kubelet::PodList& pods, const Deadline& deadline) = 0;
  // What is known of it: by UUID, who hands it out.
  virtual std::map<std::string, std::string> Taken() const = 0;
  // The names under which the runtime will find what Publish wrote.
  virtual std::vector<std::string> CdiNames(Resource resource, const std::string& name) const = 0;
  // The same for runtimes without CDI: what Publish made, as the kubelet's own list.
  virtual Result<Edits> EditsOf(const Binding& binding) const = 0;
  // Everything that the container needs to start on that GPU. Repeatable.
  virtual Result<void> Publish(const Binding& binding) = 0;
  // The allocation of that name is history: its spec, its link, what was kept under it.
  virtual void Retract(Resource resource, const std::string& name) = 0;
};

struct AllocatorOptions {
  uint64_t unit_bytes = uint64_t{1} << 30;
  bool early = false;    // Strategy "devices".
  bool coexist = false;  // See Book::SetCoexist.
  // The pod that this plugin runs in; a list without it is too young to prove anything. Empty: not
  // in a pod.
  std::optional<Pod> own_pod = std::nullopt;
  // Of one PreStart: listing, and waiting for what passes by itself. The kubelet gives it 30 s.
  int64_t list_timeout_ms = 5000;
  int64_t settle_timeout_ms = 2000;
  // So long at most takes an Allocate, for a decision that is under way or a disk that hangs. The
  // kubelet gives it no deadline, and admits no other pod meanwhile.
  int64_t allocate_timeout_ms = 5000;
};

class Allocator final : public kubelet::Handler {
 public:
  Allocator(AllocatorOptions options, Effects* effects);

  // From what an earlier run wrote down; before anything else.
  void Restore(const std::vector<Binding>& bindings);

  // From then on nothing is decided and no effect has any; a decision under way is waited for, at
  // most as long as Allocate waits.
  void Close();

  void SetGpus(std::vector<Gpu> gpus);
  // As the book has them now.
  std::vector<Gpu> gpus() const;
  void SetHealth(const std::string& gpu, bool healthy);
  // Whether the broker behind the memory allocation of that name is there. Never waits.
  void NoteLink(const std::string& name, bool open);

  Result<kubelet::Grant> Allocate(Resource resource, const DeviceIds& ids) override;
  Result<void> PreStart(Resource resource, const DeviceIds& ids) override;
  DeviceIds Prefer(Resource resource, const DeviceIds& available, const DeviceIds& must_include,
                   size_t count) override;

  // A look at the kubelet's list; to be called every few seconds, and soon again while
  // WaitsForProof(). What was released.
  Result<std::vector<Binding>> Reconcile(int64_t now_ms);

  bool WaitsForProof() const;
  // Of `all` IDs, those to be told unhealthy.
  DeviceIds Unhealthy(Resource resource, const DeviceIds& all) const;
  std::vector<Binding> bindings() const;
  // For who must not wait: nothing while a decision is under way.
  std::optional<BookView> TryLook() const;
  uint32_t FreeUnits(const std::string& gpu) const;

 private:
  Result<kubelet::PodList> ListWhenQuiet(const Deadline& deadline);
  // mutex_ is held.
  Result<kubelet::Grant> Admit(Resource resource, const DeviceIds& ids);
  void ApplyLinks();
  void ApplyTaken();

  const AllocatorOptions options_;
  Effects* const effects_;

  mutable std::timed_mutex mutex_;  // Guards the book, and is held through effects.
  std::condition_variable_any changed_;
  Book book_;
  std::vector<Gpu> gpus_;
  std::atomic<bool> closed_ = false;

  std::mutex quiet_mutex_;  // Guards open_allocates_.
  std::condition_variable quiet_;
  int open_allocates_ = 0;

  std::mutex links_mutex_;  // Guards links_; the keeper's thread never waits for the book.
  std::vector<std::pair<std::string, bool>> links_;

  // Admits, and is what Allocate waits for no longer than it may. Ends first.
  Worker admissions_{1, Worker::Threads::kLeave};
};

}  // namespace gpushm::plugin
