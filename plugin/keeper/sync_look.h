// What a page that is kept says of itself: a signal, a barrier or a ring, and whether its writer
// lives. Its participants write it, so nothing is believed but what bounds allow, and the rest is
// theirs.
//
// Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "contract/limits.h"
#include "contract/sync/page.h"
#include "platform/base/unique_fd.h"

namespace gpushm::plugin {

// Of its writer; of a barrier: whether somebody broke it.
enum class SyncState : uint8_t { kUnused, kLive, kEnded };
inline constexpr std::array<std::string_view, 3> kSyncStateNames = {"unused", "live", "ended"};

struct SyncView {
  signal::Kind kind{};
  SyncState state{};
};

// No broker that keeps its limits has more; of others the rest is not looked at.
inline constexpr size_t kMostSyncs = limits::kAllPagesBytes / signal::kPageBytes;

// Nothing: it is no page yet, or none of ours. Maps it for the time of the look.
std::optional<SyncView> LookAtPage(const UniqueFd& page);

}  // namespace gpushm::plugin
