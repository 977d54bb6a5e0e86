#include "plugin/metrics/node_view.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace gpushm::plugin::metrics {
namespace {

using AttachmentKey = std::pair<std::string, std::string>;  // Container and access.

// `bytes` x `part` / `whole`, without overflow.
uint64_t ShareOf(uint64_t bytes, uint64_t part, uint64_t whole) {
  return bytes / whole * part + bytes % whole * part / whole;
}

// The same as registry::ContentBytes, from what the broker shows.
uint64_t ContentOf(const keeper::BufferView& buffer, const keeper::GenerationView& generation) {
  const bool there = buffer.state == registry::BufferState::kReady ||
                     buffer.state == registry::BufferState::kWriterDied;
  const uint64_t loaded_bytes = std::min(buffer.loaded_bytes, generation.size_bytes);
  if (!there) return loaded_bytes;
  return generation.content_bytes.value_or(generation.size_bytes);
}

// Builds one pool: the buffers on that GPU first, then their meaning for containers.
class PoolBuilder {
 public:
  // `may_show` decides on the name of another pod that shares the claim.
  PoolBuilder(const keeper::LinkView& link, const binding::Pod& pod, uint32_t number,
              const std::function<bool(const std::string&)>& may_show)
      : link_(link) {
    for (const keeper::ClientView& client : link.clients) {
      const size_t slash = client.container.find('/');
      const bool shown = slash == std::string::npos || may_show(client.container.substr(0, slash));
      holders_.push_back(shown ? client.container : protocol::kOtherPods);
    }
    pool_.allocation = link.name;
    pool_.pod = pod;
    pool_.gpu = link.gpus[number].uuid;
    pool_.number = number;
    pool_.pod_gpus = static_cast<uint32_t>(link.gpus.size());
    pool_.size_bytes = link.pool_bytes;
    pool_.allocated_bytes = link.gpus[number].bytes.pooled;
    if (number == 0) {
      pool_.kept_heap_bytes = link.kept_heap_bytes;
      pool_.exhausted = link.exhausted;
      pool_.mps = link.mps;
    }
    pool_.broker = link.connected ? "connected" : link.open ? "away" : "none";
  }

  PoolView Build() {
    ChooseContainers();
    for (const keeper::LeaseView& lease : link_.leases) {
      if (link_.clients[lease.client].alive) leases_[lease.generation].push_back(&lease);
    }
    // The sidecar is listed even if it holds nothing.
    Container(std::string(kSidecarName));
    if (pool_.number == 0) AddWhatThePodHasOnce();
    for (const keeper::ContainerCounters& counted : link_.counters) {
      PoolContainer& container = Container(counted.container);
      if (shown_.contains(counted.container)) container.private_limit_bytes = counted.private_bytes;
    }
    for (const keeper::BufferView& buffer : link_.buffers) {
      const bool here =
          std::ranges::any_of(buffer.generations, [this](const keeper::GenerationView& generation) {
            return generation.gpu == pool_.number;
          });
      if (here || (buffer.generations.empty() && pool_.number == 0)) AddBuffer(buffer);
    }
    BoundBuffers();
    BoundAttachments();
    AddReasons();
    for (auto& [name, container] : containers_) {
      container.name = name;
      pool_.containers.push_back(std::move(container));
    }
    return std::move(pool_);
  }
  uint64_t saved_bytes() const { return saved_bytes_; }
  uint64_t physical_bytes() const { return physical_bytes_; }

 private:
  void AddWhatThePodHasOnce() {
    for (size_t i = 0; i < holders_.size(); ++i) {
      if (link_.clients[i].alive) ++Container(holders_[i]).clients;
    }
    for (const keeper::ContainerCounters& counted : link_.counters) {
      PoolContainer& container = Container(counted.container);
      if (!container.counters) container.counters.emplace();
      protocol::AddCounters(counted.values, &*container.counters);
    }
    for (const keeper::SyncView& sync : link_.syncs) {
      ++pool_.syncs[sync.kind][static_cast<size_t>(sync.state)];
    }
  }

  // The first containers by name, so that the choice does not depend on activity and counters
  // continue.
  void ChooseContainers() {
    std::set<std::string> all;
    std::set<std::string> of_others;
    for (const std::string& holder : holders_) {
      (holder.contains('/') ? of_others : all).insert(holder);
    }
    for (const keeper::ContainerCounters& counted : link_.counters) all.insert(counted.container);
    for (const keeper::BufferView& buffer : link_.buffers) {
      if (!buffer.creator.empty()) all.insert(buffer.creator);
    }
    // Those of other pods last: they choose their names themselves.
    for (const auto* const names : {&all, &of_others}) {
      for (const std::string& name : *names) {
        if (shown_.size() < kShownContainers) shown_.insert(name);
      }
    }
    shown_.insert(std::string(kSidecarName));
  }
  std::string Shown(const std::string& container) const {
    return shown_.contains(container) ? container : std::string(kOthers);
  }
  PoolContainer& Container(const std::string& name) { return containers_[Shown(name)]; }

  void AddBuffer(const keeper::BufferView& buffer) {
    status::Buffer shown;
    shown.name = buffer.name;
    shown.creator = buffer.creator;
    shown.state = buffer.current == 0 ? "unpublished" : registry::BufferStateName(buffer.state);
    if (buffer.state == registry::BufferState::kLoading) shown.loaded_bytes = buffer.loaded_bytes;
    std::map<AttachmentKey, status::Attachment> attachments;
    for (const keeper::GenerationView& generation : buffer.generations) {
      if (generation.gpu != pool_.number) continue;
      ++shown.generations;
      shown.allocated_bytes += generation.mapped_bytes;
      physical_bytes_ += generation.mapped_bytes;
      if (generation.generation == buffer.current || buffer.current == 0) {
        shown.size_bytes = generation.size_bytes;
        shown.content_bytes = ContentOf(buffer, generation);
        shown.created_unix_ms = generation.created_unix_ns / 1'000'000;
        shown.transport = generation.transport == protocol::Transport::kCuIpc ? "cuipc" : "vmm";
      }
      AddGeneration(buffer, generation, &attachments);
    }
    for (auto& [key, view] : attachments) shown.attachments.push_back(std::move(view));
    pool_.buffers.push_back(std::move(shown));
  }

  void AddGeneration(const keeper::BufferView& buffer, const keeper::GenerationView& generation,
                     std::map<AttachmentKey, status::Attachment>* attachments) {
    const auto found = leases_.find(generation.generation);
    if (found == leases_.end()) {
      const bool offered = !generation.pooled && !buffer.creator.empty();
      Container(offered ? buffer.creator : std::string(kSidecarName)).proportional_bytes +=
          generation.mapped_bytes;
      return;
    }
    const std::vector<const keeper::LeaseView*>& leases = found->second;
    std::map<AttachmentKey, uint64_t> counts;
    for (const keeper::LeaseView* const lease : leases) {
      ++counts[{Shown(holders_[lease->client]), AccessName(lease->access)}];
    }
    saved_bytes_ += generation.mapped_bytes * (leases.size() - 1);
    // The remainder of the division goes to the first container, so that the sum is exact.
    uint64_t left = generation.mapped_bytes;
    for (const auto& [key, count] : counts) {
      left -= ShareOf(generation.mapped_bytes, count, leases.size());
    }
    for (const auto& [key, count] : counts) {
      const uint64_t share =
          ShareOf(generation.mapped_bytes, count, leases.size()) + std::exchange(left, 0);
      PoolContainer& container = containers_[key.first];
      container.proportional_bytes += share;
      container.mapped_bytes += count * generation.mapped_bytes;
      Merge({.container = key.first,
             .access = key.second,
             .count = count,
             .mapped_bytes = count * generation.mapped_bytes,
             .proportional_bytes = share},
            &(*attachments)[key]);
    }
  }

  static void Merge(const status::Attachment& more, status::Attachment* into) {
    into->container = more.container;
    into->access = more.access;
    into->count += more.count;
    into->mapped_bytes += more.mapped_bytes;
    into->proportional_bytes += more.proportional_bytes;
  }

  // Shows the largest buffers, sorted by name, and sums up the others, which have no state of their
  // own.
  void BoundBuffers() {
    std::vector<status::Buffer>& all = pool_.buffers;
    if (all.size() <= kShownBuffers) return;
    const auto end = all.begin() + kShownBuffers;
    std::ranges::partial_sort(all, end, [](const status::Buffer& a, const status::Buffer& b) {
      return std::tie(b.allocated_bytes, a.name) < std::tie(a.allocated_bytes, b.name);
    });
    status::Buffer others;
    others.name = kOthers;
    std::map<AttachmentKey, status::Attachment> attachments;
    for (auto buffer = end; buffer != all.end(); ++buffer) {
      others.size_bytes += buffer->size_bytes;
      others.content_bytes += buffer->content_bytes;
      others.allocated_bytes += buffer->allocated_bytes;
      others.generations += buffer->generations;
      for (const status::Attachment& view : buffer->attachments) {
        Merge(view, &attachments[{view.container, view.access}]);
      }
    }
    for (auto& [key, view] : attachments) others.attachments.push_back(std::move(view));
    all.erase(end, all.end());
    std::ranges::sort(all, {}, &status::Buffer::name);
    all.push_back(std::move(others));
    all.shrink_to_fit();
  }

  // Only of what is shown. The registry is the pod's, and its reader checks what it says.
  void AddReasons() {
    if (link_.registry == nullptr) return;
    for (status::Buffer& buffer : pool_.buffers) {
      if (buffer.state != "loading" && buffer.state != "failed") continue;
      const auto found = link_.registry->Find(buffer.name);
      std::string reason = found ? link_.registry->ReasonOf(*found) : std::string();
      if (reason.empty()) continue;
      buffer.reason = std::move(reason);
      buffer.reason_code = CodeName(static_cast<Code>(registry::ReasonCode(found->record)));
    }
  }

  // If there are too many attachments, those of each buffer are summed up by access.
  void BoundAttachments() {
    size_t all = 0;
    for (const status::Buffer& buffer : pool_.buffers) all += buffer.attachments.size();
    if (all <= kShownAttachments) return;
    for (status::Buffer& buffer : pool_.buffers) {
      std::map<std::string, status::Attachment> summed;
      for (status::Attachment& view : buffer.attachments) {
        view.container = kOthers;
        Merge(view, &summed[view.access]);
      }
      buffer.attachments.clear();
      for (auto& [access, view] : summed) buffer.attachments.push_back(std::move(view));
    }
  }

  const keeper::LinkView& link_;
  std::vector<std::string> holders_;  // Names of containers, by the index of the client.
  PoolView pool_;
  std::set<std::string> shown_;                                       // Names of containers.
  std::map<uint64_t, std::vector<const keeper::LeaseView*>> leases_;  // Keyed by generation.
  std::map<std::string, PoolContainer> containers_;
  uint64_t saved_bytes_ = 0;
  uint64_t physical_bytes_ = 0;
};

std::map<std::string, binding::Binding> MemoryByName(
    const std::vector<binding::Binding>& bindings) {
  std::map<std::string, binding::Binding> by_name;
  for (const binding::Binding& binding : bindings) {
    if (binding.resource == binding::Resource::kMemory) by_name.emplace(binding.name(), binding);
  }
  return by_name;
}

std::vector<GpuView> GpusOf(const NodeFacts& facts) {
  std::vector<GpuView> gpus;
  gpus.reserve(facts.devices.size());
  for (size_t i = 0; i < facts.devices.size(); ++i) {
    GpuView gpu{.device = facts.devices[i],
                .reason = {},
                .taken_by = {},
                .drained = {},
                .exclusive_to = {},
                .sample = {}};
    const auto alone = std::ranges::find_if(facts.bindings, [&](const binding::Binding& binding) {
      return binding.Has(gpu.device.uuid) && !binding.exclusive.empty();
    });
    if (alone != facts.bindings.end()) gpu.exclusive_to = alone->owner.pod.ToString();
    if (i < facts.gpus.size()) {
      gpu.allocatable_bytes = facts.gpus[i].units * facts.unit_bytes;
      gpu.taken_by = facts.gpus[i].taken_by;
      gpu.drained = facts.gpus[i].drained;
    }
    const auto health =
        std::ranges::find(facts.health, gpu.device.uuid, &inventory::DeviceHealth::uuid);
    if (health != facts.health.end()) {
      gpu.healthy = health->healthy;
      gpu.reason = health->reason;
    }
    const auto sample = facts.samples.find(gpu.device.uuid);
    if (sample != facts.samples.end()) gpu.sample = sample->second;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace

NodeViewBuilder::NodeViewBuilder(const NodeFacts& facts)
    : facts_(facts),
      bindings_(MemoryByName(facts.bindings)),
      node_{.gpus = GpusOf(facts), .pools = {}} {
  for (const auto& [name, binding] : bindings_) pods_.emplace(binding.owner.pod, name);
}

void NodeViewBuilder::Add(const keeper::LinkView& link) {
  if (!link.allocated) return;
  const auto binding = bindings_.find(link.name);
  // Without Kubernetes, or if another pod now has these device IDs, the allocation's name
  // identifies the pool.
  binding::Pod pod{"", link.name};
  if (binding != bindings_.end() && !binding->second.owner.pod.name.empty()) {
    pod = binding->second.owner.pod;
    // Of a claim that pods share, the book knows only the pod for which it was prepared.
    if (binding->second.others != claims::Others::kNone && !link.broker_pod.empty()) {
      const binding::Pod stated{pod.name_space, link.broker_pod};
      if (MayShow(link, stated)) pod = stated;
    }
  }
  for (uint32_t number = 0; number < link.gpus.size(); ++number) AddPool(link, pod, number);
}

bool NodeViewBuilder::MayShow(const keeper::LinkView& link, const binding::Pod& pod) {
  return pods_.emplace(pod, link.name).first->second == link.name;
}

void NodeViewBuilder::AddPool(const keeper::LinkView& link, const binding::Pod& pod,
                              uint32_t number) {
  PoolBuilder builder(link, pod, number, [&](const std::string& name) {
    return name != pod.name && MayShow(link, {pod.name_space, name});
  });
  PoolView pool = builder.Build();
  const auto gpu =
      std::ranges::find(node_.gpus, pool.gpu, [](const GpuView& view) { return view.device.uuid; });
  if (gpu != node_.gpus.end()) {
    gpu->bound_bytes += link.pool_bytes;
    if (!link.open) gpu->kept_bytes += builder.physical_bytes();
  }
  if (!link.open && facts_.unlisted.contains(link.name)) return;  // Invariant 4.
  if (gpu != node_.gpus.end()) {
    gpu->buffers_bytes += builder.physical_bytes();
    gpu->saved_bytes += builder.saved_bytes();
    if (gpu->sample) {
      for (PoolContainer& container : pool.containers) {
        const auto found = gpu->sample->private_bytes.find({link.name, container.name});
        if (found != gpu->sample->private_bytes.end()) container.private_bytes = found->second;
      }
    }
  }
  node_.pools.push_back(std::move(pool));
  // The pod's processes outside MPS on any of its GPUs; one that uses two counts once.
  PoolView& first = *(node_.pools.end() - 1 - number);
  if (!first.mps || gpu == node_.gpus.end() || !gpu->sample) return;
  const auto outside = gpu->sample->outside_mps.find(link.name);
  if (outside == gpu->sample->outside_mps.end()) return;
  first.mps->outside_processes =
      std::max(first.mps->outside_processes.value_or(0), outside->second);
}

NodeView NodeViewBuilder::Finish() {
  for (GpuView& gpu : node_.gpus) {
    const bool full = !gpu.taken_by.empty() || !gpu.drained.empty() || !gpu.exclusive_to.empty();
    if (full) gpu.allocatable_bytes = gpu.bound_bytes;
  }
  return std::move(node_);
}

}  // namespace gpushm::plugin::metrics
