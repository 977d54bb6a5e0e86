// Goal: no index of shards crashes the parser or makes it throw, or leads out of its folder.
#include "contract/tensors/shards.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace gpushm::tensors {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckShards(const std::vector<Shard>& shards) {
  Require(!shards.empty());
  Require(std::ranges::is_sorted(shards, {}, &Shard::file));
  for (const Shard& shard : shards) {
    Require(!shard.file.empty() && shard.file != "." && shard.file != "..");
    Require(shard.file.find('/') == std::string::npos &&
            shard.file.find('\0') == std::string::npos);
    Require(!shard.tensors.empty() && std::ranges::is_sorted(shard.tensors));
    Require(std::ranges::adjacent_find(shard.tensors) == shard.tensors.end());
  }
}

}  // namespace
}  // namespace gpushm::tensors

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::tensors;
  const auto shards = ParseShardIndex({reinterpret_cast<const char*>(data), size});
  if (shards) {
    CheckShards(*shards);
  } else {
    Require(!shards.error().what().empty() && shards.error().what().size() < 1000);
  }
  return 0;
}
