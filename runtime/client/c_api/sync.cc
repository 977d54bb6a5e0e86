// The C ABI: inspecting signals, barriers and rings.
#include <algorithm>

#include "contract/limits.h"
#include "runtime/client/c_api/support.h"
#include "runtime/client/sync/open_page.h"
#include "runtime/include/gpushm/sync.h"

namespace gc = gpushm::client;
using gpushm::Concat;
using gpushm::Result;
using gpushm::sync::CellState;
using gpushm::sync::Reading;

namespace {

void LookAtWriter(const gpushm::sync::Cell& cell, gpushm_sync_info* info) {
  const Reading reading = gpushm::sync::Read(cell);
  info->value = reading.value;
  info->state = std::to_underlying(reading.state);
  info->writer_lease = cell.owner.load(std::memory_order_relaxed);
}

// A participant that has ended breaks the barrier. Otherwise the barrier is at the lowest value.
void LookAtBarrier(const gpushm::sync::Page& page, gpushm_sync_info* info) {
  info->value = UINT64_MAX;
  for (uint32_t i = 0; i < page.cells(); ++i) {
    const Reading reading = gpushm::sync::Read(page.cell(i));
    info->value = std::min(info->value, reading.value);
    if (reading.state == CellState::kLive) {
      info->state = std::max<uint32_t>(info->state, GPUSHM_SIGNAL_LIVE);
    } else if (reading.ended()) {
      info->state = std::to_underlying(reading.state);
    }
  }
}

}  // namespace

extern "C" {

gpushm_status gpushm_sync_lookup(gpushm_client* client, const char* name, gpushm_sync_info* info) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    if (name == nullptr) return gc::CheckArgument(false, "name is NULL");
    return gc::FillInfo(info, "info", [&](gpushm_sync_info* filled) -> Result<void> {
      const std::string_view text(name, strnlen(name, gpushm::limits::kNameBytes + 2));
      const auto open =
          gc::OpenPage::Attach(&c, text, {.page = true},
                               {gpushm::sync::Kind::kSignal, gpushm::sync::Kind::kBarrier,
                                gpushm::sync::Kind::kRing, gpushm::sync::Kind::kQueue},
                               gc::Wait::None());
      if (!open) return std::unexpected(open.error().WithContext(Concat("look at \"", text, '"')));
      gc::CopyText(filled->name, open->name());
      filled->generation = open->generation();
      filled->kind = std::to_underlying(open->page().kind());
      filled->places = open->page().cells();
      for (uint32_t i = 0; i < filled->places; ++i) {
        filled->joined += gpushm::sync::Read(open->cell(i)).state == CellState::kLive ? 1 : 0;
      }
      if (open->page().kind() == gpushm::sync::Kind::kBarrier) {
        LookAtBarrier(open->page(), filled);
      } else {
        LookAtWriter(open->cell(0), filled);
      }
      return {};
    });
  });
}

}  // extern "C"
