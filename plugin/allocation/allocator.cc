#include "plugin/allocation/allocator.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "platform/daemon/log.h"

namespace gpushm::plugin::allocation {
namespace {

constexpr auto kSettleStep = std::chrono::milliseconds(100);

// Errors that a newer list, or the end of another process, resolves within a moment.
bool Passes(Code code) {
  return code == Code::kNotFound || code == Code::kContended || code == Code::kBusy;
}

}  // namespace

Allocator::Allocator(AllocatorOptions options, Effects* effects)
    : options_(std::move(options)), effects_(effects), book_(options_.unit_bytes) {
  book_.SetCoexist(options_.coexist);
  book_.SetTenancy(options_.tenancy);
}

void Allocator::Restore(const std::vector<binding::Binding>& bindings) {
  const std::lock_guard lock(mutex_);
  for (const binding::Binding& binding : bindings) {
    book_.Restore(binding);
    // Publish again: the files that the spec names may have moved, and the link's socket is gone.
    if (auto published = effects_->Publish(binding); !published) {
      LogError("not-published", {{"resource", binding::ResourceName(binding.resource)},
                                 {"allocation", binding.name()},
                                 {"pod", binding.owner.pod.ToString()},
                                 {"reason", published.error().ToString()}});
    }
  }
}

void Allocator::Close() {
  const std::unique_lock lock(mutex_, std::chrono::milliseconds(options_.allocate_timeout_ms));
  closed_ = true;  // Also if a decision hangs: nobody has to undo what it does then.
}

void Allocator::SetGpus(std::vector<binding::Gpu> gpus) {
  const std::lock_guard lock(mutex_);
  gpus_ = std::move(gpus);
  ApplyClosed();
}

std::vector<binding::Gpu> Allocator::gpus() const {
  const std::lock_guard lock(mutex_);
  return gpus_;
}

void Allocator::LookAtClosed() {
  const std::lock_guard lock(mutex_);
  ApplyClosed();
}

void Allocator::ApplyClosed() {
  const std::map<std::string, std::string> taken = effects_->Taken();
  const std::map<std::string, std::string> drained = effects_->Drained();
  const auto reason_in = [](const std::map<std::string, std::string>& closed,
                            const binding::Gpu& gpu) {
    const auto found = closed.find(gpu.uuid);
    return found == closed.end() ? std::string() : found->second;
  };
  for (binding::Gpu& gpu : gpus_) {
    gpu.taken_by = reason_in(taken, gpu);
    const std::string before = std::exchange(gpu.drained, reason_in(drained, gpu));
    if (gpu.drained == before) continue;
    if (gpu.drained.empty()) {
      LogInfo("gpu-undrained", {{"gpu", gpu.uuid}});
    } else {
      LogWarning("gpu-drained", {{"gpu", gpu.uuid}, {"reason", gpu.drained}});
    }
  }
  book_.SetGpus(gpus_);
}

void Allocator::SetHealth(const std::string& gpu, bool healthy) {
  const std::lock_guard lock(mutex_);
  for (binding::Gpu& known : gpus_) {
    if (known.uuid == gpu) known.healthy = healthy;
  }
  book_.SetGpus(gpus_);
}

void Allocator::NoteLink(const std::string& name, bool open) {
  {
    const std::lock_guard lock(links_mutex_);
    links_.emplace_back(name, open);
  }
  changed_.notify_all();
}

void Allocator::ApplyLinks() {
  const std::lock_guard lock(links_mutex_);
  for (const auto& [name, open] : links_) book_.NoteLink(name, open);
  links_.clear();
}

Result<std::vector<std::string>> Allocator::Allocate(binding::Resource resource,
                                                     const binding::DeviceIds& ids) {
  // Counts this call from before its first read to after its last.
  struct Open {
    explicit Open(Allocator* of) : allocator(of) {
      const std::lock_guard lock(allocator->quiet_mutex_);
      ++allocator->open_allocates_;
    }
    ~Open() {
      const std::lock_guard lock(allocator->quiet_mutex_);
      --allocator->open_allocates_;
      allocator->quiet_.notify_all();
    }
    Allocator* allocator;
  };
  const Open open(this);
  if (ids.empty()) return Fail(Code::kInvalidArgument, "Allocate request without device IDs");
  struct Admission {
    std::mutex mutex;
    std::condition_variable changed;
    bool given_up = false;  // A decision that has not started by then has no effect.
    std::optional<Result<std::vector<std::string>>> answer;
  };
  const auto admission = std::make_shared<Admission>();
  admissions_.Run([this, admission, resource, ids] {
    const std::lock_guard deciding(mutex_);
    {
      const std::lock_guard lock(admission->mutex);
      if (admission->given_up) return;
    }
    Result<std::vector<std::string>> answer = Admit(resource, ids);
    const std::lock_guard lock(admission->mutex);
    admission->answer = std::move(answer);
    admission->changed.notify_all();
  });
  std::unique_lock lock(admission->mutex);
  if (admission->changed.wait_for(lock, std::chrono::milliseconds(options_.allocate_timeout_ms),
                                  [&] { return admission->answer.has_value(); })) {
    return std::move(*admission->answer);
  }
  admission->given_up = true;
  return Fail(Code::kTimeout,
              Concat("no decision within ", options_.allocate_timeout_ms, " ms about ", ids.size(),
                     " device IDs (", *ids.begin(), " to ", *ids.rbegin(),
                     "): the plugin is still deciding about this or another container"),
              "delete the pod; its controller creates another one. Check the plugin's log and the "
              "node's disk for what hangs");
}

Result<std::vector<std::string>> Allocator::Admit(binding::Resource resource,
                                                  const binding::DeviceIds& ids) {
  const std::string& name = *ids.begin();
  if (closed_) return Fail(Code::kUnavailable, "this plugin is shutting down");
  ApplyLinks();
  if (resource == binding::Resource::kMemory) {
    for (const std::string& former : book_.Supersede(ids)) {
      if (former != name) effects_->Retract(resource, former);
    }
  }
  if (binding::BindsNothing(resource)) return std::vector<std::string>();  // See PreStart.
  effects_->Retract(resource, name);
  return effects_->CdiNames(resource, name);
}

Result<kubelet::PodList> Allocator::ListWhenQuiet(const Deadline& deadline) {
  {
    const int64_t wait_ns = deadline.RemainingNs();
    std::unique_lock lock(quiet_mutex_);
    if (!quiet_.wait_for(lock, std::chrono::nanoseconds(wait_ns),
                         [this] { return open_allocates_ == 0; })) {
      return Fail(Code::kTimeout,
                  Concat(open_allocates_, " Allocate calls are still in progress after ",
                         wait_ns / 1'000'000, " ms"),
                  "the kubelet tries again; if it lasts, check the plugin's log "
                  "and the node's disk for what hangs");
    }
  }
  return effects_->ListPods(deadline);
}

Result<void> Allocator::PreStart(binding::Resource resource, const binding::DeviceIds& ids) {
  const Deadline settled = Deadline::AfterMs(options_.settle_timeout_ms);
  for (;;) {
    if (closed_) return Fail(Code::kUnavailable, "this plugin is shutting down");
    const auto pods = ListWhenQuiet(Deadline::AfterMs(options_.list_timeout_ms));
    if (!pods) return std::unexpected(pods.error());
    // Another plugin can start between two checks of Reconcile, for example after a reboot.
    // Containers that attach get their sidecar's GPU, whoever advertises it now.
    if (resource == binding::Resource::kMemory) {
      const Result<void> looked =
          effects_->LookAtOthers(*pods, Deadline::AfterMs(options_.list_timeout_ms));
      if (!looked) return std::unexpected(looked.error());
    }
    std::unique_lock lock(mutex_);
    if (closed_) return Fail(Code::kUnavailable, "this plugin is shutting down");
    if (binding::BindsNothing(resource)) {
      const Result<void> checked = book_.CheckSidecar(resource, ids, pods->snapshot);
      if (checked || !Passes(checked.error().code()) || settled.Passed()) return checked;
      changed_.wait_for(lock, kSettleStep);
      continue;
    }
    ApplyLinks();
    ApplyClosed();
    const Result<binding::Binding> binding = book_.Bind(resource, ids, pods->snapshot);
    if (binding) {
      auto published = effects_->Publish(*binding);
      if (!published) {
        LogError("not-published", {{"resource", binding::ResourceName(resource)},
                                   {"allocation", binding->name()},
                                   {"pod", binding->owner.pod.ToString()},
                                   {"reason", published.error().ToString()}});
        return published;
      }
      LogInfo("bound", {{"resource", binding::ResourceName(resource)},
                        {"allocation", binding->name()},
                        {"ids", ids.size()},
                        {"gpu", binding->GpuList()},
                        {"pod", binding->owner.pod.ToString()},
                        {"container", binding->owner.container}});
      return {};
    }
    if (!Passes(binding.error().code()) || settled.Passed()) {
      LogWarning("not-bound", {{"resource", binding::ResourceName(resource)},
                               {"allocation", ids.empty() ? "" : *ids.begin()},
                               {"reason", binding.error().ToString()}});
      return std::unexpected(binding.error());
    }
    changed_.wait_for(lock, kSettleStep);
  }
}

// One try. `lock` of mutex_ is held on return.
Result<void> Allocator::TryPrepare(const binding::ClaimedGpus& claim,
                                   const std::function<bool()>& given_up,
                                   std::unique_lock<std::timed_mutex>* lock) {
  if (!book_.HasClaim(claim.uid)) {
    // Another plugin can start between two checks of Reconcile.
    lock->unlock();
    const auto pods = effects_->ListPods(Deadline::AfterMs(options_.list_timeout_ms));
    const Result<void> looked =
        pods ? effects_->LookAtOthers(*pods, Deadline::AfterMs(options_.list_timeout_ms))
             : std::unexpected(pods.error());
    lock->lock();
    if (!looked) return looked;
  }
  if (closed_) return Fail(Code::kUnavailable, "this plugin is shutting down");
  if (given_up()) {
    return Fail(Code::kEnded, Concat("claim ", claim.uid,
                                     " was unprepared meanwhile, or the "
                                     "kubelet has given up this call"));
  }
  ApplyLinks();
  ApplyClosed();
  const Result<binding::Binding> binding = book_.BindClaim(claim);
  if (!binding) return std::unexpected(binding.error());
  // Again for a known claim: somebody may have emptied a folder. If it fails, the claim stays in
  // the book until the kubelet unprepares it, which it also does for a claim that failed.
  return effects_->Publish(*binding);
}

Result<void> Allocator::PrepareClaim(const binding::ClaimedGpus& claim, const Deadline& deadline,
                                     const std::function<bool()>& given_up) {
  std::unique_lock lock(mutex_);
  ++preparing_[claim.uid].calls;
  const auto preparing = preparing_.find(claim.uid);
  const auto ended = [&, before = preparing->second.unprepares] {
    return preparing->second.unprepares != before || given_up();
  };
  Result<void> done;
  for (bool told = false;;) {
    done = TryPrepare(claim, ended, &lock);
    if (done) break;
    const Code code = done.error().code();
    const bool useless = code == Code::kInvalidArgument || code == Code::kUnsupported ||
                         code == Code::kEnded || closed_;
    if (useless || deadline.Passed()) break;
    if (!std::exchange(told, true)) {
      LogInfo("claim-waits", {{"allocation", claim.uid},
                              {"pod", claim.pod.ToString()},
                              {"reason", done.error().ToString()}});
    }
    changed_.wait_for(lock, kSettleStep);
  }
  if (--preparing->second.calls == 0) preparing_.erase(preparing);
  return done;
}

Result<void> Allocator::UnprepareClaim(const std::string& uid, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (closed_) return Fail(Code::kUnavailable, "this plugin is shutting down");
    ApplyLinks();
    // A kubelet before 1.37 may call while some pods of a shared claim are still ending.
    const Result<void> unused = effects_->CheckClaimIsUnused(uid);
    const Result<binding::Binding> released =
        unused ? book_.ReleaseClaim(uid) : std::unexpected(unused.error());
    const bool unknown = !released && released.error().code() == Code::kNotFound;
    if (released || unknown) {
      if (const auto preparing = preparing_.find(uid); preparing != preparing_.end()) {
        ++preparing->second.unprepares;
      }
      // Also of an unknown one: its spec may have been damaged.
      effects_->RetractClaim(uid);
      changed_.notify_all();
      return {};
    }
    if (deadline.Passed()) return std::unexpected(released.error());
    changed_.wait_for(lock, kSettleStep);
  }
}

Result<std::vector<binding::Binding>> Allocator::Reconcile(int64_t now_ms) {
  if (closed_) return std::vector<binding::Binding>();
  const auto pods = ListWhenQuiet(Deadline::AfterMs(options_.list_timeout_ms));
  if (!pods) return std::unexpected(pods.error());
  const Result<void> looked =
      effects_->LookAtOthers(*pods, Deadline::AfterMs(options_.list_timeout_ms));
  if (!looked) return std::unexpected(looked.error());
  const bool whole = !options_.own_pod || pods->pods.contains(*options_.own_pod);
  const std::lock_guard lock(mutex_);
  if (closed_) return std::vector<binding::Binding>();
  ApplyLinks();
  ApplyClosed();
  if (!whole) return std::vector<binding::Binding>();
  std::vector<binding::Binding> released = book_.Observe(pods->snapshot, now_ms);
  const std::vector<binding::Binding> current = book_.bindings();
  for (const binding::Binding& binding : released) {
    // A successor may already use the name.
    const bool succeeded =
        std::any_of(current.begin(), current.end(), [&](const binding::Binding& other) {
          return other.resource == binding.resource && other.name() == binding.name();
        });
    if (!succeeded) effects_->Retract(binding.resource, binding.name());
    LogInfo("released", {{"resource", binding::ResourceName(binding.resource)},
                         {"allocation", binding.name()},
                         {"gpu", binding.GpuList()},
                         {"pod", binding.owner.pod.ToString()},
                         {"container", binding.owner.container}});
  }
  if (!released.empty()) changed_.notify_all();
  return released;
}

bool Allocator::WaitsForProof() const {
  const std::lock_guard lock(mutex_);
  return book_.WaitsForProof();
}

binding::DeviceIds Allocator::Unhealthy(binding::Resource resource,
                                        const binding::DeviceIds& all) const {
  const std::lock_guard lock(mutex_);
  return book_.Unhealthy(resource, all);
}

std::vector<binding::Binding> Allocator::bindings() const {
  const std::lock_guard lock(mutex_);
  return book_.bindings();
}

std::optional<binding::BookView> Allocator::TryLook() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  return binding::BookView{.bindings = book_.bindings(), .unlisted = book_.Unlisted()};
}

uint32_t Allocator::FreeUnits(const std::string& gpu) const {
  const std::lock_guard lock(mutex_);
  return book_.FreeUnits(gpu);
}

std::vector<uint32_t> Allocator::LargestFree() const {
  const std::lock_guard lock(mutex_);
  return book_.LargestFree();
}

}  // namespace gpushm::plugin::allocation
