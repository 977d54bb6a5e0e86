// What an XID, the driver's number for an error, says about the GPU: the one table, from which
// docs/reference/xids.md is made.
//
// The facts are those of NVIDIA's Xid catalog for Ampere and newer
// (docs.nvidia.com/deploy/xid-errors), column "Resolution Bucket (Immediate Action)"; what follows
// from an action is our decision, below.
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpushm::plugin {

enum class XidEffect {
  // The GPU is well: an application's own fault, or news without consequence.
  kNone,
  // It depends. The driver's recovery action, read at once, decides (R565 and newer); where the
  // driver has none, as kReset.
  kAsk,
  // The GPU has to be reset, or the node restarted, before it can be trusted.
  kReset,
  // Not in the table: suspect for a short time.
  kUnknown,
};

struct XidInfo {
  uint32_t first;  // XIDs from here ...
  uint32_t last;   // ... to here, included.
  XidEffect effect;
  std::string_view action;   // NVIDIA's immediate action.
  std::string_view meaning;  // In our words.
};

// Ordered, without overlap.
std::span<const XidInfo> Xids();

// The row of an XID; one with kUnknown where there is none.
const XidInfo& FindXid(uint64_t xid);

}  // namespace gpushm::plugin
