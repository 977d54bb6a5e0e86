// What ls, stat, top, load and the others print, from plain data. Pure: no I/O, no clock.
//
// The JSON forms are an interface (docs/reference/gpushmctl.md): members may be added, never
// renamed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ctl/json.h"
#include "runtime/include/gpushm/gpushm.h"
#include "runtime/include/gpushm/sync.h"

namespace gpushm::ctl {

struct Style {
  bool color = false;
  int64_t now_unix_ns = 0;  // Ages count from here.
};

// "ready"; "unknown-7" for what this version does not know.
std::string StateName(uint32_t state);
std::string TransportName(uint32_t transport);
std::string AccessName(uint32_t access);
std::string WayName(uint32_t way);
std::string FileWayName(uint32_t way);
std::string FileReasonName(uint32_t reason);

std::string KindName(uint32_t kind);        // Of gpushm_sync_kind.
std::string SyncStateName(uint32_t state);  // Of gpushm_signal_state.

struct Snapshot {
  std::vector<gpushm_info> buffers;  // And signals, barriers, rings: those are GPUSHM_HOST.
  std::vector<gpushm_holder> holders;
  std::vector<gpushm_sync_info> looks{};  // Of those, where known.
};

std::string ListTable(const Snapshot& snapshot, const Style& style);
std::string ListNames(const Snapshot& snapshot);
std::string ListJson(const Snapshot& snapshot);

// `look` may be null: it is a buffer, or not known.
std::string StatText(const gpushm_info& info, const std::vector<gpushm_holder>& holders,
                     const gpushm_sync_info* look, const Style& style);
std::string StatJson(const gpushm_info& info, const std::vector<gpushm_holder>& holders,
                     const gpushm_sync_info* look);

std::string BrokerText(const gpushm_broker_info& broker);
std::string BrokerJson(const gpushm_broker_info& broker);

enum class TopOrder { kName, kSize, kHolders };
struct TopSample {
  gpushm_broker_info broker;
  Snapshot snapshot;
};
// `previous` may be null: then no rates are known. `rows` 0: no limit.
std::string TopText(const TopSample& sample, const TopSample* previous, int64_t elapsed_ns,
                    TopOrder order, int rows, const Style& style);
// One line.
std::string TopJson(const TopSample& sample, int64_t now_unix_ns);

std::string InfoLine(std::string_view verb, const gpushm_info& info);
std::string InfoJson(const gpushm_info& info);
std::string TransferLine(std::string_view verb, std::string_view from, std::string_view to,
                         const gpushm_transfer_result& result);
std::string TransferJson(std::string_view buffer, std::string_view file,
                         const gpushm_transfer_result& result);

}  // namespace gpushm::ctl
