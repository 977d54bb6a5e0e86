#include "contract/annotations/sizing.h"

#include <algorithm>
#include <limits>

#include "platform/yaml/quantity.h"

namespace gpushm::annotations {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

uint64_t Add(uint64_t a, uint64_t b) { return a > kMax - b ? kMax : a + b; }

uint64_t Times(uint64_t a, uint64_t b) { return b != 0 && a > kMax / b ? kMax : a * b; }

// pool-extra, and all generations of the buffers that `counts` accepts.
template <typename Counts>
uint64_t PoolBytesOf(const PodSpec& pod, const Counts& counts, uint64_t granularity) {
  uint64_t sum = RoundUp(pod.pool_extra_bytes, granularity);
  for (const BufferSpec& buffer : pod.buffers) {
    if (!counts(buffer)) continue;
    sum = Add(sum, Times(RoundUp(buffer.size_bytes, granularity), buffer.generations));
  }
  return sum;
}

}  // namespace

uint64_t RoundUp(uint64_t bytes, uint64_t granularity) {
  const uint64_t rest = bytes % granularity;
  return rest == 0 ? bytes : Add(bytes, granularity - rest);
}

uint64_t PoolBytes(const PodSpec& pod, uint32_t gpu, uint64_t granularity) {
  const auto is_there = [gpu](const BufferSpec& buffer) { return buffer.gpu == gpu; };
  return PoolBytesOf(pod, is_there, granularity);
}

uint32_t FullestGpu(const PodSpec& pod, uint64_t granularity) {
  uint32_t fullest = 0;
  for (uint32_t gpu = 1; gpu < pod.gpus; ++gpu) {
    if (PoolBytes(pod, gpu, granularity) > PoolBytes(pod, fullest, granularity)) fullest = gpu;
  }
  return fullest;
}

uint64_t GpuBytes(const PodSpec& pod, uint64_t granularity) {
  uint64_t loaders = 0;
  for (uint32_t gpu = 0; gpu < pod.gpus; ++gpu) {
    const auto is_loaded = [gpu](const BufferSpec& buffer) {
      return buffer.gpu == gpu && !buffer.file.empty();
    };
    loaders =
        std::max(loaders, static_cast<uint64_t>(std::ranges::count_if(pod.buffers, is_loaded)));
  }
  uint64_t sum =
      Add(PoolBytes(pod, FullestGpu(pod, granularity), granularity), Times(loaders, kLoaderBytes));
  for (const auto& [container, bytes] : pod.private_bytes) {
    sum = Add(sum, RoundUp(bytes, granularity));
  }
  return pod.mps.wanted.value_or(false) ? Add(sum, kMpsBytes) : sum;
}

uint64_t NodeBytes(const PodSpec& pod, uint64_t granularity) {
  return Times(GpuBytes(pod, granularity), pod.gpus);
}

uint64_t ContainerBytes(const PodSpec& pod, std::string_view container, uint32_t gpu,
                        uint64_t granularity) {
  const auto own = pod.private_bytes.find(std::string(container));
  const auto may_attach = [&](const BufferSpec& buffer) {
    return buffer.gpu == gpu && buffer.MayAttach(container);
  };
  return Add(own == pod.private_bytes.end() ? 0 : RoundUp(own->second, granularity),
             PoolBytesOf(pod, may_attach, granularity));
}

uint64_t Units(uint64_t bytes, uint64_t unit_bytes) {
  return bytes / unit_bytes + (bytes % unit_bytes != 0 ? 1 : 0);
}

uint64_t PodUnits(const PodSpec& pod, uint64_t unit_bytes) {
  return Times(std::max<uint64_t>(1, Units(GpuBytes(pod), unit_bytes)), pod.gpus);
}

Result<void> CheckFits(const PodSpec& pod, uint64_t card_bytes, std::string_view card,
                       uint64_t granularity) {
  const uint64_t asked = GpuBytes(pod, granularity);
  if (asked <= card_bytes) return {};
  const uint32_t fullest = FullestGpu(pod, granularity);
  const uint64_t pool = PoolBytes(pod, fullest, granularity);
  const uint64_t extra = RoundUp(pod.pool_extra_bytes, granularity);
  const auto parts = [&](uint64_t gpus) {
    return Concat("(", yaml::FormatBytes(Times(pool - extra, gpus)), " for buffers, ",
                  yaml::FormatBytes(Times(extra, gpus)), " for pool-extra, ",
                  yaml::FormatBytes(Times(asked - pool, gpus)), " for its containers and loading)");
  };
  const std::string requests =
      pod.gpus == 1
          ? Concat(yaml::FormatBytes(asked), " of one GPU ", parts(1))
          : Concat(yaml::FormatBytes(asked), " of each of its ", pod.gpus, " GPUs, as GPU ",
                   fullest, " needs ", parts(1), ", and ",
                   yaml::FormatBytes(NodeBytes(pod, granularity)), " in all ", parts(pod.gpus));
  return Fail(
      Code::kExhausted,
      Concat("the pod requests ", requests, ", but ", card, " has ", yaml::FormatBytes(card_bytes)),
      "make buffers smaller or fewer, or lower private.gpushm.io/<container>");
}

}  // namespace gpushm::annotations
