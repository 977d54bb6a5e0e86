// The output of ls, stat, top, load and the others, made from plain data. Pure: no I/O, no clock.
//
// The JSON forms are an interface (docs/reference/gpushmctl.md): members may be added, but never
// renamed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ctl/connection.h"
#include "runtime/include/gpushm/gpushm.h"
#include "runtime/include/gpushm/sync.h"

namespace gpushm::ctl {

struct Style {
  bool color = false;
  int64_t now_unix_ns = 0;  // The time from which ages are counted.
};

// "ready"; "unknown-7" for a value that this version does not know.
std::string StateName(uint32_t state);
std::string TransportName(uint32_t transport);
std::string AccessName(uint32_t access);
std::string FileMethodName(uint32_t method);
std::string FileReasonName(uint32_t reason);

std::string KindName(uint32_t kind);        // Of gpushm_sync_kind.
std::string SyncStateName(uint32_t state);  // Of gpushm_signal_state.

struct Snapshot {
  std::vector<gpushm_info>
      buffers;  // Includes signals, barriers and rings: those have transport GPUSHM_TRANSPORT_HOST.
  std::vector<gpushm_holder> holders;
  std::vector<gpushm_sync_info> looks{};  // For signals, barriers and rings, where known.
};

std::string ListTable(const Snapshot& snapshot, const Style& style);
std::string ListNames(const Snapshot& snapshot);
std::string ListJson(const Snapshot& snapshot);

// `look` is null for a buffer, or if it is not known. `reason` has no text if there is none.
std::string StatText(const gpushm_info& info, const gpushm_reason& reason,
                     const std::vector<gpushm_holder>& holders, const gpushm_sync_info* look,
                     const Style& style);
std::string StatJson(const gpushm_info& info, const gpushm_reason& reason,
                     const std::vector<gpushm_holder>& holders, const gpushm_sync_info* look);

std::string BrokerText(const BrokerFacts& broker, const Style& style);
std::string BrokerJson(const BrokerFacts& broker);

enum class TopOrder { kName, kSize, kHolders };
struct TopSample {
  BrokerFacts broker;
  Snapshot snapshot;
};
// `previous` may be null: then rates are not known. `rows` 0: no limit.
std::string TopText(const TopSample& sample, const TopSample* previous, int64_t elapsed_ns,
                    TopOrder order, int rows, const Style& style);
// One line.
std::string TopJson(const TopSample& sample, int64_t now_unix_ns);

std::string InfoLine(std::string_view verb, const gpushm_info& info);
std::string InfoJson(const gpushm_info& info);
// `settling_ns`: how long the load then waited until its file had not changed for some seconds. It
// is no part of the load's time. `generation`: the one that the load made; 0: none.
std::string TransferLine(std::string_view verb, std::string_view from, std::string_view to,
                         const gpushm_transfer_result& result, int64_t settling_ns = 0,
                         uint64_t generation = 0);
std::string TransferJson(std::string_view buffer, std::string_view file,
                         const gpushm_transfer_result& result, int64_t settling_ns = 0,
                         uint64_t generation = 0);

}  // namespace gpushm::ctl
