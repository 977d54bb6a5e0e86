#include "contract/annotations/sizing.h"

#include <algorithm>
#include <limits>

#include "platform/yaml/quantity.h"

namespace gpushm::config {
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

uint64_t PoolBytes(const PodSpec& pod, uint64_t granularity) {
  return PoolBytesOf(pod, [](const BufferSpec&) { return true; }, granularity);
}

uint64_t NodeBytes(const PodSpec& pod, uint64_t granularity) {
  uint64_t sum = PoolBytes(pod, granularity);
  for (const auto& [container, bytes] : pod.private_bytes) {
    sum = Add(sum, RoundUp(bytes, granularity));
  }
  if (pod.mps.wanted.value_or(false)) sum = Add(sum, kMpsBytes);
  const bool loads = std::ranges::any_of(pod.buffers, &BufferSpec::StartsLoading);
  return loads ? Add(sum, kLoaderBytes) : sum;
}

uint64_t ContainerBytes(const PodSpec& pod, std::string_view container, uint64_t granularity) {
  const auto own = pod.private_bytes.find(std::string(container));
  const auto may_attach = [&](const BufferSpec& buffer) { return buffer.MayAttach(container); };
  return Add(own == pod.private_bytes.end() ? 0 : RoundUp(own->second, granularity),
             PoolBytesOf(pod, may_attach, granularity));
}

uint64_t Units(uint64_t bytes, uint64_t unit_bytes) {
  return bytes / unit_bytes + (bytes % unit_bytes != 0 ? 1 : 0);
}

Result<void> CheckFits(const PodSpec& pod, uint64_t card_bytes, std::string_view card,
                       uint64_t granularity) {
  const uint64_t asked = NodeBytes(pod, granularity);
  if (asked <= card_bytes) return {};
  const uint64_t pool = PoolBytes(pod, granularity);
  const uint64_t extra = RoundUp(pod.pool_extra_bytes, granularity);
  return Fail(
      Code::kExhausted,
      Concat("the pod requests ", FormatBytes(asked), " of one GPU (", FormatBytes(pool - extra),
             " for buffers, ", FormatBytes(extra), " for pool-extra, ", FormatBytes(asked - pool),
             " for its containers and loading), but ", card, " has ", FormatBytes(card_bytes)),
      "make buffers smaller or fewer, or lower private.gpushm.io/<container>");
}

}  // namespace gpushm::config
