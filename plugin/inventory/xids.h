// What an XID, the driver's error number, says about the GPU. This is the only table;
// docs/reference/xids.md is made from it.
//
// The facts are those of NVIDIA's Xid catalog for Ampere and newer
// (docs.nvidia.com/deploy/xid-errors), column "Resolution Bucket (Immediate Action)". What follows
// from an action is this project's decision, below.
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpushm::plugin::inventory {

enum class XidEffect {
  // The GPU is healthy: an application's own fault, or a message without consequence.
  kNone,
  // It depends. The driver's recovery action, read immediately, decides (R565 and newer). If the
  // driver has none, the effect is that of kReset.
  kAsk,
  // The GPU has to be reset, or the node restarted, before it can be trusted.
  kReset,
  // Not in the table: unhealthy for a short time.
  kUnknown,
};

struct XidInfo {
  uint32_t first;  // First XID of the range ...
  uint32_t last;   // ... and the last one.
  XidEffect effect;
  std::string_view action;   // NVIDIA's immediate action.
  std::string_view meaning;  // In this project's words.
};

// Sorted, without overlaps.
std::span<const XidInfo> Xids();

// The row of an XID, or a row with kUnknown if there is none.
const XidInfo& FindXid(uint64_t xid);

}  // namespace gpushm::plugin::inventory
