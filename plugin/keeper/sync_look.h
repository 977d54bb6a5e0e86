// Reads a kept sync page: whether it is a signal, a barrier or a ring, and whether its writer
// lives. The pod's processes write the page, so this code only relies on what it can bound.
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

namespace gpushm::plugin::keeper {

// State of its writer; for a barrier, whether somebody broke it.
enum class SyncState : uint8_t { kUnused, kLive, kEnded };
inline constexpr std::array<std::string_view, 3> kSyncStateNames = {"unused", "live", "ended"};

struct SyncView {
  sync::Kind kind{};
  SyncState state{};
};

// A broker within its limits has no more. Beyond this number, pages are not read.
inline constexpr size_t kMostSyncs = limits::kAllPagesBytes / sync::kPageBytes;

// Nothing: the page is not initialised, or not a gpushm sync page. Maps it during the call.
std::optional<SyncView> LookAtSyncPage(const UniqueFd& page);

}  // namespace gpushm::plugin::keeper
