// Which GPUs of a node to take together. Pure.
//
// The search is exact: it visits sets in the order of their cost, and leaves out those that cannot
// be better than the best one so far. With 16 GPUs that all have NVLink between them, as behind a
// switch, the first complete set is the best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace gpushm::plugin::binding {

// Further GPUs of a node are not considered.
inline constexpr size_t kMostCandidates = 64;

struct Candidate {
  uint64_t cost = 0;    // What the set's sum is to be smallest of; below 2^32.
  uint64_t nvlink = 0;  // Bit i: NVLink to candidate i.
};

// The `count` candidates with the smallest sum of costs, as indices in ascending order; of equal
// sums, the one whose members come first by cost and index. With `nvlink`, only sets in which each
// two have NVLink. Nothing if there is none.
std::optional<std::vector<size_t>> CheapestSet(std::span<const Candidate> candidates, size_t count,
                                               bool nvlink);

}  // namespace gpushm::plugin::binding
