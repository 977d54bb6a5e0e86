// Field rules that messages.cc and link.cc share. Internal.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "contract/limits.h"
#include "contract/protocol/messages.h"

namespace gpushm::protocol {

inline std::unexpected<Status> Broken(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("a peer broke the protocol: ", rule));
}

inline bool IsTerminated(std::span<const char> text) {
  return std::find(text.begin(), text.end(), '\0') != text.end();
}

// NUL-padded to the end, so that no stack bytes of a process travel behind the text.
inline bool IsPadded(const NameField& field) {
  const auto end = std::find(field.begin(), field.end(), '\0');
  return end != field.end() && std::all_of(end, field.end(), [](char c) { return c == '\0'; });
}

inline bool IsName(const NameField& field) {
  return IsPadded(field) && IsDnsLabel(FromNameField(field));
}
inline bool IsNameOrEmpty(const NameField& field) {
  return IsPadded(field) && (field[0] == '\0' || IsDnsLabel(FromNameField(field)));
}
inline bool IsAccess(uint32_t value) { return value == 1 || value == 2; }
inline bool IsTransport(uint32_t value) { return value >= 1 && value <= 4; }
inline bool IsBlocks(uint32_t transport) {
  return transport == static_cast<uint32_t>(Transport::kBlocks);
}
// The number of blocks that goes with a transport.
inline bool IsBlockCount(uint32_t transport, uint32_t blocks) {
  return IsBlocks(transport) ? blocks >= 1 && blocks <= limits::kBlocks : blocks == 0;
}
inline bool IsPeerWay(uint32_t value) { return value <= 3; }
inline bool IsPageSize(uint64_t bytes) { return bytes > 0 && bytes <= limits::kPageBytes; }
inline bool IsWriterExit(uint32_t value) { return value <= 2; }
inline bool IsSize(uint64_t bytes) { return bytes > 0 && bytes <= limits::kBufferBytes; }

// Lets a Validate list its rules, one on each line.
inline Result<void> Require(std::initializer_list<std::pair<bool, std::string_view>> rules) {
  for (const auto& [holds, rule] : rules) {
    if (!holds) return Broken(rule);
  }
  return {};
}

}  // namespace gpushm::protocol
