#include "plugin/metrics/node_view.h"

#include <algorithm>
#include <utility>

namespace gpushm::plugin {
namespace {

using AttachmentKey = std::pair<std::string, protocol::WireAccess>;  // Container, access.

// `bytes` x `part` / `whole`, without the overflow.
uint64_t ShareOf(uint64_t bytes, uint64_t part, uint64_t whole) {
  return bytes / whole * part + bytes % whole * part / whole;
}

// One pool: buffers first, then what they mean for containers.
class PoolBuilder {
 public:
  PoolBuilder(const LinkView& link, const Pod& pod) : link_(link) {
    pool_.allocation = link.name;
    pool_.pod = pod;
    pool_.gpu = link.gpu;
    pool_.size_bytes = link.pool_bytes;
    pool_.allocated_bytes = link.kept.pooled_bytes;
    pool_.broker = link.connected ? "connected" : link.open ? "away" : "none";
  }

  PoolView Build() {
    for (const LeaseView& lease : link_.leases) {
      if (lease.alive) leases_[lease.generation].push_back(&lease);
    }
    // The sidecar is there also when it holds nothing.
    containers_[std::string(kSidecarName)];
    for (const ClientView& client : link_.clients) {
      if (client.alive) ++Container(client.container).clients;
    }
    for (const ContainerCounters& counted : link_.counters) {
      Container(counted.container).counters = &counted.values;
    }
    for (const SyncView& sync : link_.syncs) {
      ++pool_.syncs[sync.kind][static_cast<size_t>(sync.state)];
    }
    pool_.buffers.reserve(link_.buffers.size());
    for (const BufferView& buffer : link_.buffers) AddBuffer(buffer);
    for (auto& [name, container] : containers_) {
      container.name = name;
      pool_.containers.push_back(std::move(container));
    }
    return std::move(pool_);
  }
  uint64_t saved_bytes() const { return saved_bytes_; }
  uint64_t physical_bytes() const { return physical_bytes_; }

 private:
  PoolContainer& Container(const std::string& name) { return containers_[name]; }

  void AddBuffer(const BufferView& buffer) {
    PoolBuffer shown{
        .name = buffer.name,
        .creator = buffer.creator,
        .state = buffer.current == 0 ? "unpublished" : registry::BufferStateName(buffer.state),
        .transport = {},
        .generations = buffer.generations.size(),
        .loaded_bytes = {},
        .attachments = {}};
    if (buffer.state == registry::BufferState::kLoading) shown.loaded_bytes = buffer.loaded_bytes;
    std::map<AttachmentKey, AttachmentsView> attachments;
    for (const GenerationView& generation : buffer.generations) {
      shown.allocated_bytes += generation.mapped_bytes;
      physical_bytes_ += generation.mapped_bytes;
      if (generation.generation == buffer.current || buffer.current == 0) {
        shown.size_bytes = generation.size_bytes;
        shown.created_unix_ns = generation.created_unix_ns;
        shown.transport = generation.transport == protocol::Transport::kVmm ? "vmm" : "cuipc";
      }
      AddGeneration(buffer, generation, &attachments);
    }
    for (auto& [key, view] : attachments) shown.attachments.push_back(std::move(view));
    pool_.buffers.push_back(std::move(shown));
  }

  void AddGeneration(const BufferView& buffer, const GenerationView& generation,
                     std::map<AttachmentKey, AttachmentsView>* attachments) {
    const auto found = leases_.find(generation.generation);
    if (found == leases_.end()) {
      const bool offered = !generation.pooled && !buffer.creator.empty();
      Container(offered ? buffer.creator : std::string(kSidecarName)).proportional_bytes +=
          generation.mapped_bytes;
      return;
    }
    const std::vector<const LeaseView*>& leases = found->second;
    std::map<AttachmentKey, uint64_t> counts;
    for (const LeaseView* const lease : leases) ++counts[{lease->container, lease->access}];
    saved_bytes_ += generation.mapped_bytes * (leases.size() - 1);
    // What division leaves over goes to the first, so that nothing is lost.
    uint64_t left = generation.mapped_bytes;
    for (const auto& [key, count] : counts) {
      left -= ShareOf(generation.mapped_bytes, count, leases.size());
    }
    for (const auto& [key, count] : counts) {
      const uint64_t share =
          ShareOf(generation.mapped_bytes, count, leases.size()) + std::exchange(left, 0);
      PoolContainer& container = Container(key.first);
      container.proportional_bytes += share;
      container.mapped_bytes += count * generation.mapped_bytes;
      AttachmentsView& view = (*attachments)[key];
      view.container = key.first;
      view.access = key.second;
      view.count += count;
      view.mapped_bytes += count * generation.mapped_bytes;
      view.proportional_bytes += share;
    }
  }

  const LinkView& link_;
  PoolView pool_;
  std::map<uint64_t, std::vector<const LeaseView*>> leases_;  // By generation.
  std::map<std::string, PoolContainer> containers_;
  uint64_t saved_bytes_ = 0;
  uint64_t physical_bytes_ = 0;
};

std::map<std::string, Pod> OwnersOfAllocations(const std::vector<Binding>& bindings) {
  std::map<std::string, Pod> owners;
  for (const Binding& binding : bindings) {
    if (binding.resource == Resource::kMemory) owners[binding.name()] = binding.owner.pod;
  }
  return owners;
}

std::vector<GpuView> GpusOf(const NodeFacts& facts) {
  std::vector<GpuView> gpus;
  gpus.reserve(facts.devices.size());
  for (size_t i = 0; i < facts.devices.size(); ++i) {
    GpuView gpu{.device = facts.devices[i], .reason = {}, .sample = {}};
    if (i < facts.gpus.size()) gpu.allocatable_bytes = facts.gpus[i].units * facts.unit_bytes;
    const auto health = std::ranges::find(facts.health, gpu.device.uuid, &DeviceHealth::uuid);
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

NodeView BuildNodeView(const NodeFacts& facts) {
  NodeView node{.gpus = GpusOf(facts), .pools = {}};
  const std::map<std::string, Pod> owners = OwnersOfAllocations(facts.bindings);
  for (const LinkView& link : facts.links) {
    if (!link.granted) continue;
    const auto owner = owners.find(link.name);
    // Without Kubernetes, and where another pod has these device IDs by now, the allocation's name
    // tells pools apart.
    const bool known = owner != owners.end() && !owner->second.name.empty();
    PoolBuilder builder(link, known ? owner->second : Pod{"", link.name});
    PoolView pool = builder.Build();
    const auto gpu = std::ranges::find(node.gpus, link.gpu,
                                       [](const GpuView& view) { return view.device.uuid; });
    if (gpu != node.gpus.end()) {
      gpu->bound_bytes += link.pool_bytes;
      if (!link.open) gpu->kept_bytes += builder.physical_bytes();
    }
    if (!link.open && facts.unlisted.contains(link.name)) continue;  // Invariant 3.
    if (gpu != node.gpus.end()) {
      gpu->buffers_bytes += builder.physical_bytes();
      gpu->saved_bytes += builder.saved_bytes();
      if (gpu->sample) {
        for (PoolContainer& container : pool.containers) {
          const auto found = gpu->sample->private_bytes.find({link.name, container.name});
          if (found != gpu->sample->private_bytes.end()) container.private_bytes = found->second;
        }
      }
    }
    node.pools.push_back(std::move(pool));
  }
  return node;
}

}  // namespace gpushm::plugin
