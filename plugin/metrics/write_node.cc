// The families of GPUs, pools, buffers and containers. There is one pass for each family, because
// the format requires a family in one piece.
#include <limits>
#include <string_view>

#include "contract/protocol/counters.h"
#include "platform/base/clock.h"
#include "plugin/metrics/collector.h"

namespace gpushm::plugin::metrics {
namespace {

using protocol::Counter;

constexpr double kNano = 1e-9;

// The pod and the container of a holder that the pool shows.
struct Holder {
  Holder(const PoolView& pool, std::string_view name) : pod(pool.pod.name), container(name) {
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos) return;
    pod = name.substr(0, slash);
    container = name.substr(slash + 1);
  }
  std::string_view pod;
  std::string_view container;
};

// Visits those that occurred.
template <typename Visit>
void ForErrors(const protocol::CounterValues& values, Visit visit) {
  for (int code = 1; code <= kMaxCode; ++code) {
    const uint64_t count = values[protocol::WordOf(static_cast<Code>(code))];
    if (count != 0) visit(CodeName(static_cast<Code>(code)), count);
  }
}

class GpuWriter {
 public:
  GpuWriter(const NodeView& node, Exposition* out) : node_(node), out_(*out) {}

  template <typename Value>
  void Each(Metric metric, Value value) {
    for (const GpuView& gpu : node_.gpus) out_.Add(metric, {gpu.device.uuid}, value(gpu));
  }
  // Writes the value only if the driver reports it.
  template <typename Type>
  void Each(Metric metric, std::optional<Type> GpuSample::* member) {
    for (const GpuView& gpu : node_.gpus) {
      if (gpu.sample && (*gpu.sample).*member) {
        out_.Add(metric, {gpu.device.uuid}, *((*gpu.sample).*member));
      }
    }
  }

 private:
  const NodeView& node_;
  Exposition& out_;
};

void WriteInfos(const NodeView& node, const std::string& driver_version, Exposition* out) {
  for (const GpuView& gpu : node.gpus) {
    const inventory::Device& device = gpu.device;
    const std::string index = std::to_string(device.index);
    out->Add(Metric::kGpuInfo,
             {device.uuid, index, device.name, gpu.sample ? gpu.sample->pci_bus_id : "",
              driver_version, device.profile()},
             uint64_t{1});
  }
}

void WriteSensors(const NodeView& node, GpuWriter* each, Exposition* out) {
  each->Each(Metric::kGpuUtilization, &GpuSample::utilization);
  each->Each(Metric::kGpuMemoryActivity, &GpuSample::memory_activity);
  each->Each(Metric::kGpuTemperature, &GpuSample::temperature_celsius);
  each->Each(Metric::kGpuMemoryTemperature, &GpuSample::memory_temperature_celsius);
  each->Each(Metric::kGpuPower, &GpuSample::power_watts);
  each->Each(Metric::kGpuPowerLimit, &GpuSample::power_limit_watts);
  each->Each(Metric::kGpuEnergy, &GpuSample::energy_joules);
  each->Each(Metric::kGpuSmClock, &GpuSample::sm_clock_hertz);
  each->Each(Metric::kGpuMemoryClock, &GpuSample::memory_clock_hertz);
  each->Each(Metric::kGpuPcieTransmit, &GpuSample::pcie_transmit_bytes_per_second);
  each->Each(Metric::kGpuPcieReceive, &GpuSample::pcie_receive_bytes_per_second);
  each->Each(Metric::kGpuNvlinkTransmit, &GpuSample::nvlink_transmit_bytes);
  each->Each(Metric::kGpuNvlinkReceive, &GpuSample::nvlink_receive_bytes);
  for (const GpuView& gpu : node.gpus) {
    if (!gpu.sample || !gpu.sample->clock_reasons) continue;
    for (const ClockReason& reason : kClockReasons) {
      out->Add(Metric::kGpuClocksReduced, {gpu.device.uuid, reason.name},
               uint64_t{(*gpu.sample->clock_reasons & reason.bit) != 0});
    }
  }
  each->Each(Metric::kGpuEccCorrected, &GpuSample::ecc_corrected);
  each->Each(Metric::kGpuEccUncorrected, &GpuSample::ecc_uncorrected);
}

class PoolWriter {
 public:
  PoolWriter(const NodeView& node, Exposition* out) : node_(node), out_(*out) {}

  template <typename Value>
  void EachPool(Metric metric, Value value) {
    for (const PoolView& pool : node_.pools) {
      out_.Add(metric, {pool.pod.name_space, pool.pod.name, pool.gpu}, value(pool));
    }
  }
  // What a pod has once, with its first GPU.
  template <typename Value>
  void EachPod(Metric metric, Value value) {
    for (const PoolView& pool : node_.pools) {
      if (pool.number != 0) continue;
      out_.Add(metric, {pool.pod.name_space, pool.pod.name, pool.gpu}, value(pool));
    }
  }
  template <typename Value>
  void EachBuffer(Metric metric, Value value) {
    ForBuffers([&](const PoolView& pool, const status::Buffer& buffer) {
      out_.Add(metric, {pool.pod.name_space, pool.pod.name, buffer.name, pool.gpu}, value(buffer));
    });
  }
  template <typename Value>
  void EachContainer(Metric metric, Value value) {
    for (const PoolView& pool : node_.pools) {
      for (const PoolContainer& container : pool.containers) {
        const Holder holder(pool, container.name);
        out_.Add(metric, {pool.pod.name_space, holder.pod, holder.container, pool.gpu},
                 value(container));
      }
    }
  }
  // Containers of which the value is known.
  void EachKnown(Metric metric, std::optional<uint64_t> PoolContainer::* member) {
    for (const PoolView& pool : node_.pools) {
      for (const PoolContainer& container : pool.containers) {
        if (!(container.*member)) continue;
        const Holder holder(pool, container.name);
        out_.Add(metric, {pool.pod.name_space, holder.pod, holder.container, pool.gpu},
                 *(container.*member));
      }
    }
  }
  // Containers that have counters.
  template <typename Value>
  void EachCounted(Metric metric, Value value) {
    ForCounted([&](const PoolView& pool, const PoolContainer& container) {
      out_.Add(metric, {pool.pod.name_space, pool.pod.name, container.name, pool.gpu},
               value(*container.counters));
    });
  }
  void EachError(Metric metric) {
    ForCounted([&](const PoolView& pool, const PoolContainer& container) {
      ForErrors(*container.counters, [&](std::string_view code, uint64_t count) {
        out_.Add(metric, {pool.pod.name_space, pool.pod.name, container.name, pool.gpu, code},
                 count);
      });
    });
  }
  template <typename Visit>
  void ForCounted(Visit visit) {
    for (const PoolView& pool : node_.pools) {
      for (const PoolContainer& container : pool.containers) {
        if (container.counters) visit(pool, container);
      }
    }
  }
  template <typename Visit>
  void ForBuffers(Visit visit) {
    for (const PoolView& pool : node_.pools) {
      for (const status::Buffer& buffer : pool.buffers) visit(pool, buffer);
    }
  }

 private:
  const NodeView& node_;
  Exposition& out_;
};

void WriteMps(const NodeView& node, Exposition* out) {
  const auto each = [&](Metric metric, auto value) {
    for (const PoolView& pool : node.pools) {
      if (!pool.mps) continue;
      if (const std::optional<uint64_t> number = value(*pool.mps)) {
        out->Add(metric, {pool.pod.name_space, pool.pod.name, pool.gpu}, *number);
      }
    }
  };
  each(Metric::kMpsReady, [](const status::Mps& mps) { return uint64_t{mps.ready}; });
  each(Metric::kMpsClients, [](const status::Mps& mps) { return mps.clients; });
  each(Metric::kMpsDaemonRestarts, [](const status::Mps& mps) { return mps.daemon_restarts; });
  each(Metric::kMpsServerRestarts, [](const status::Mps& mps) { return mps.server_restarts; });
  each(Metric::kMpsOutside, [](const status::Mps& mps) { return mps.outside_processes; });
}

void WriteSyncs(const NodeView& node, Exposition* out) {
  for (const PoolView& pool : node.pools) {
    for (const auto& [kind, counts] : pool.syncs) {
      for (size_t state = 0; state < counts.size(); ++state) {
        out->Add(Metric::kSyncObjects,
                 {pool.pod.name_space, pool.pod.name, pool.gpu, sync::KindName(kind),
                  keeper::kSyncStateNames[state]},
                 counts[state]);
      }
    }
  }
}

void WriteBuffers(PoolWriter* each, Exposition* out) {
  // The sum of the buffers that are not shown has no state.
  const auto is_one = [](const status::Buffer& buffer) { return buffer.name != kOthers; };
  each->ForBuffers([&](const PoolView& pool, const status::Buffer& buffer) {
    if (!is_one(buffer)) return;
    out->Add(Metric::kBufferInfo,
             {pool.pod.name_space, pool.pod.name, buffer.name, pool.gpu, buffer.transport,
              buffer.creator, buffer.state},
             uint64_t{1});
  });
  each->ForBuffers([&](const PoolView& pool, const status::Buffer& buffer) {
    if (!is_one(buffer)) return;
    out->Add(Metric::kBufferReady, {pool.pod.name_space, pool.pod.name, buffer.name, pool.gpu},
             uint64_t{buffer.state == "ready"});
  });
  each->EachBuffer(Metric::kBufferSize, [](const auto& buffer) { return buffer.size_bytes; });
  each->EachBuffer(Metric::kBufferContent, [](const auto& buffer) { return buffer.content_bytes; });
  each->EachBuffer(Metric::kBufferAllocated,
                   [](const auto& buffer) { return buffer.allocated_bytes; });
  each->ForBuffers([&](const PoolView& pool, const status::Buffer& buffer) {
    if (!buffer.loaded_bytes) return;
    out->Add(Metric::kBufferLoaded, {pool.pod.name_space, pool.pod.name, buffer.name, pool.gpu},
             *buffer.loaded_bytes);
  });
  each->ForBuffers([&](const PoolView& pool, const status::Buffer& buffer) {
    if (!buffer.reason_code) return;
    out->Add(Metric::kBufferReason,
             {pool.pod.name_space, pool.pod.name, buffer.name, pool.gpu, buffer.state,
              *buffer.reason_code},
             uint64_t{1});
  });
  each->EachBuffer(Metric::kBufferGenerations,
                   [](const auto& buffer) { return buffer.generations; });
  each->ForBuffers([&](const PoolView& pool, const status::Buffer& buffer) {
    if (!is_one(buffer)) return;
    out->Add(Metric::kBufferCreated, {pool.pod.name_space, pool.pod.name, buffer.name, pool.gpu},
             static_cast<double>(buffer.created_unix_ms) / 1000);
  });
  each->ForBuffers([&](const PoolView& pool, const status::Buffer& buffer) {
    for (const char* const access : {"ro", "rw"}) {
      uint64_t count = 0;
      for (const status::Attachment& view : buffer.attachments) {
        if (view.access == access) count += view.count;
      }
      out->Add(Metric::kBufferAttachments,
               {pool.pod.name_space, pool.pod.name, buffer.name, pool.gpu, access}, count);
    }
  });
  each->ForBuffers([&](const PoolView& pool, const status::Buffer& buffer) {
    for (const status::Attachment& view : buffer.attachments) {
      const Holder holder(pool, view.container);
      out->Add(
          Metric::kAttachmentMapped,
          {pool.pod.name_space, holder.pod, holder.container, buffer.name, pool.gpu, view.access},
          view.mapped_bytes);
    }
  });
}

prometheus::ClientMetric::Histogram FirstAttaches(const protocol::CounterValues& values) {
  prometheus::ClientMetric::Histogram histogram;
  histogram.sample_sum =
      static_cast<double>(values[protocol::WordOf(Counter::kFirstAttachNs)]) * kNano;
  uint64_t count = 0;
  for (size_t i = 0; i < protocol::kFirstAttachBuckets; ++i) {
    count += values[protocol::kFirstAttachBucketsAt + i];
    histogram.bucket.push_back(
        {.cumulative_count = count,
         .upper_bound = i < protocol::kFirstAttachBoundsNs.size()
                            ? static_cast<double>(protocol::kFirstAttachBoundsNs[i]) * kNano
                            : std::numeric_limits<double>::infinity()});
  }
  histogram.sample_count = count;
  return histogram;
}

void WriteCounters(PoolWriter* each) {
  const auto write = [&](Metric metric, Counter counter) {
    each->EachCounted(metric, [&](const protocol::CounterValues& values) {
      return values[protocol::WordOf(counter)];
    });
  };
  write(Metric::kContainerAttaches, Counter::kFirstAttaches);
  write(Metric::kContainerCachedAttaches, Counter::kCachedAttaches);
  write(Metric::kContainerDetaches, Counter::kDetaches);
  each->EachError(Metric::kContainerErrors);
  write(Metric::kContainerWaits, Counter::kWaits);
  each->EachCounted(Metric::kContainerWaitSeconds, [](const protocol::CounterValues& values) {
    return static_cast<double>(values[protocol::WordOf(Counter::kWaitNs)]) * kNano;
  });
  write(Metric::kContainerWaitTimeouts, Counter::kWaitsTimedOut);
  write(Metric::kContainerLoaded, Counter::kLoadedBytes);
  write(Metric::kContainerSaved, Counter::kSavedBytes);
}

}  // namespace

void WriteGpus(const NodeView& node, const std::string& driver_version,
               const std::vector<inventory::XidCount>& xids, Exposition* out) {
  GpuWriter each(node, out);
  WriteInfos(node, driver_version, out);
  each.Each(Metric::kGpuHealthy, [](const GpuView& gpu) { return uint64_t{gpu.healthy}; });
  each.Each(Metric::kGpuMemoryTotal, [](const GpuView& gpu) { return gpu.device.total_bytes; });
  each.Each(Metric::kGpuMemoryUsed, &GpuSample::used_bytes);
  each.Each(Metric::kGpuMemoryAllocatable,
            [](const GpuView& gpu) { return gpu.allocatable_bytes; });
  each.Each(Metric::kGpuMemoryBound, [](const GpuView& gpu) { return gpu.bound_bytes; });
  each.Each(Metric::kGpuMemoryBuffers, [](const GpuView& gpu) { return gpu.buffers_bytes; });
  each.Each(Metric::kGpuMemoryOther, &GpuSample::other_bytes);
  WriteSensors(node, &each, out);
  for (const inventory::XidCount& xid : xids) {
    out->Add(Metric::kGpuXidErrors, {xid.gpu, std::to_string(xid.xid)}, xid.count);
  }
  const int64_t to_unix_ns = UnixNs() - MonotonicNs();
  for (const inventory::XidCount& xid : xids) {
    out->Add(Metric::kGpuXidLast, {xid.gpu, std::to_string(xid.xid)},
             static_cast<double>(xid.last_ms * 1'000'000 + to_unix_ns) * kNano);
  }
  for (const GpuView& gpu : node.gpus) {
    if (!gpu.taken_by.empty())
      out->Add(Metric::kGpuTaken, {gpu.device.uuid, gpu.taken_by}, uint64_t{1});
  }
  for (const GpuView& gpu : node.gpus) {
    out->Add(Metric::kGpuDrained, {gpu.device.uuid}, uint64_t{gpu.drained.empty() ? 0u : 1u});
  }
  for (const GpuView& gpu : node.gpus) {
    if (!gpu.sample) continue;
    out->Add(Metric::kGpuSampled, {gpu.device.uuid},
             static_cast<double>(gpu.sample->unix_ns) * kNano);
  }
}

void WritePools(const NodeView& node, Exposition* out) {
  PoolWriter each(node, out);
  each.EachPool(Metric::kPoolSize, [](const PoolView& pool) { return pool.size_bytes; });
  each.EachPool(Metric::kPoolAllocated, [](const PoolView& pool) { return pool.allocated_bytes; });
  each.EachPod(Metric::kBrokerConnected,
               [](const PoolView& pool) { return uint64_t{pool.broker == "connected"}; });
  each.EachPod(Metric::kLinkMemory, [](const PoolView& pool) { return pool.kept_heap_bytes; });
  each.EachPod(Metric::kLinkExhausted, [](const PoolView& pool) { return pool.exhausted; });
  WriteMps(node, out);
  WriteSyncs(node, out);
  WriteBuffers(&each, out);
  each.EachContainer(Metric::kContainerMapped,
                     [](const auto& container) { return container.mapped_bytes; });
  each.EachContainer(Metric::kContainerProportional,
                     [](const auto& container) { return container.proportional_bytes; });
  each.EachKnown(Metric::kContainerPrivate, &PoolContainer::private_bytes);
  each.EachKnown(Metric::kContainerPrivateLimit, &PoolContainer::private_limit_bytes);
  each.EachContainer(Metric::kContainerClients,
                     [](const auto& container) { return container.clients; });
  WriteCounters(&each);
}

void WriteNode(const NodeView& node, const protocol::CounterValues& counted, Exposition* out) {
  const auto value = [&](Counter counter) { return counted[protocol::WordOf(counter)]; };
  out->Add(Metric::kAttaches, {}, value(Counter::kFirstAttaches));
  out->Add(Metric::kCachedAttaches, {}, value(Counter::kCachedAttaches));
  out->Add(Metric::kPeerAttaches, {"nvlink"}, value(Counter::kNvLinkAttaches));
  out->Add(Metric::kPeerAttaches, {"pcie"}, value(Counter::kPcieAttaches));
  out->Add(Metric::kPeerAttaches, {"staged"}, value(Counter::kStagedAttaches));
  ForErrors(counted, [&](std::string_view code, uint64_t count) {
    out->Add(Metric::kErrors, {code}, count);
  });
  out->Add(Metric::kLoaded, {}, value(Counter::kLoadedBytes));
  out->Add(Metric::kSaved, {}, value(Counter::kSavedBytes));
  out->Add(Metric::kAttachDuration, {}, FirstAttaches(counted));
  GpuWriter each(node, out);
  each.Each(Metric::kSavedBySharing, [](const GpuView& gpu) { return gpu.saved_bytes; });
  each.Each(Metric::kKept, [](const GpuView& gpu) { return gpu.kept_bytes; });
}

}  // namespace gpushm::plugin::metrics
