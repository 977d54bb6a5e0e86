#include "plugin/binding/gpu_sets.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace gpushm::plugin::binding {
namespace {

class Search {
 public:
  Search(std::span<const Candidate> candidates, size_t count, bool nvlink)
      : candidates_(candidates.first(std::min(candidates.size(), kMostCandidates))),
        count_(count),
        nvlink_(nvlink),
        order_(candidates_.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::sort(order_, {}, [this](size_t i) { return std::pair(candidates_[i].cost, i); });
  }

  std::optional<std::vector<size_t>> Run() {
    Extend(0, 0, ~uint64_t{0});
    if (best_.empty()) return std::nullopt;
    std::ranges::sort(best_);
    return best_;
  }

 private:
  // Tries all candidates from position `next` of the order on. `allowed`: those that have NVLink to
  // everything chosen so far.
  void Extend(size_t next, uint64_t cost, uint64_t allowed) {
    if (chosen_.size() == count_) {
      best_ = chosen_;
      best_cost_ = cost;
      return;
    }
    const size_t missing = count_ - chosen_.size();
    for (size_t i = next; i + missing <= order_.size(); ++i) {
      const size_t candidate = order_[i];
      // All that follow cost at least as much as this one.
      if (!best_.empty() && cost + missing * candidates_[candidate].cost >= best_cost_) return;
      if (nvlink_ && (allowed >> candidate & 1) == 0) continue;
      chosen_.push_back(candidate);
      Extend(i + 1, cost + candidates_[candidate].cost, allowed & candidates_[candidate].nvlink);
      chosen_.pop_back();
    }
  }

  const std::span<const Candidate> candidates_;
  const size_t count_;
  const bool nvlink_;
  std::vector<size_t> order_;  // By cost.
  std::vector<size_t> chosen_;
  std::vector<size_t> best_;
  uint64_t best_cost_ = std::numeric_limits<uint64_t>::max();
};

}  // namespace

std::optional<std::vector<size_t>> CheapestSet(std::span<const Candidate> candidates, size_t count,
                                               bool nvlink) {
  if (count == 0) return std::nullopt;
  return Search(candidates, count, nvlink).Run();
}

}  // namespace gpushm::plugin::binding
