#include "plugin/keeper/sync_look.h"

#include <algorithm>

#include "contract/limits.h"
#include "platform/base/sealed_memory.h"

namespace gpushm::plugin::keeper {

std::optional<SyncView> LookAtSyncPage(const UniqueFd& page) {
  const auto mapping = MapSealed(page, "page", sync::kPageBytes, limits::kPageBytes, Writers::kAll,
                                 /*read_only=*/true);
  if (!mapping) return std::nullopt;
  const auto look = sync::Page::Look(mapping->address(), mapping->bytes());
  if (!look) return std::nullopt;
  SyncView view{.kind = look->kind(), .state = SyncState::kUnused};
  const uint32_t cells = view.kind == sync::Kind::kBarrier ? look->cells() : 1;
  for (uint32_t i = 0; i < cells; ++i) {
    const sync::Reading reading = sync::Read(look->cell(i));
    if (reading.state == sync::CellState::kFree) continue;
    view.state = std::max(view.state, reading.ended() ? SyncState::kEnded : SyncState::kLive);
  }
  return view;
}

}  // namespace gpushm::plugin::keeper
