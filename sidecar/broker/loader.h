// The loader is a child of the broker. It moves one buffer's bytes between GPU and file, with a
// context of its own, and ends. transfer.h describes what the two say to each other, and
// file_loads.h describes loaders that open their file themselves.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "platform/transfer/file_way.h"

namespace gpushm::broker {

// `argv[0]` is "loader". Returns the exit code.
int LoaderMain(int argc, char** argv);

// ---- for the broker

// `gpu` is from Gpu::ChildArguments.
std::vector<std::string> LoaderArguments(protocol::Direction direction,
                                         const std::vector<std::string>& gpu,
                                         const std::string& driver_folder, uint64_t chunk_bytes,
                                         FileWay file_way);

// Parses the loader's line "error <code> <text>". Never returns kCorrupt, which is for breaches of
// the protocol, because the client is not to blame.
Status ErrorOfLoader(const std::string& line);

// The numbers at the start of a line; 0 for those that are missing.
template <size_t kCount>
std::array<uint64_t, kCount> Numbers(std::string_view line) {
  std::array<uint64_t, kCount> numbers{};
  const char* at = line.data();
  const char* const end = line.data() + line.size();
  for (uint64_t& number : numbers) {
    const auto parsed = std::from_chars(at, end, number);
    if (parsed.ec != std::errc()) break;
    at = std::find(parsed.ptr, end, ' ');
    if (at != end) ++at;
  }
  return numbers;
}

}  // namespace gpushm::broker
