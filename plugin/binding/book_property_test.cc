// Goal: invariants (1), (2) and (4) to (7) of book.h hold, and nothing leaks, whatever happens in
// whatever order. Method: random pods of one GPU or several come, restart, end and are replaced
// under the same IDs; brokers linger; GPUs become unhealthy or are drained. After each step the
// book is compared with a model of who uses what.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "platform/base/testing.h"
#include "plugin/binding/book.h"

namespace gpushm::plugin::binding {
namespace {

constexpr int kGpus = 4;
constexpr uint32_t kUnits = 20;

class World {
 public:
  explicit World(uint32_t seed) : random_(seed), apart_(seed % 2 == 1), some_alone_(seed % 3 == 0) {
    for (int i = 0; i < kGpus; ++i) {
      gpus_.push_back({.uuid = Concat("GPU-", i), .units = kUnits, .tokens = 8});
      // Two pairs.
      gpus_.back().nvlink = {Concat("GPU-", i ^ 1)};
    }
    book_.SetGpus(gpus_);
    if (apart_) book_.SetTenancy(Tenancy::kNamespace);
    for (uint32_t i = 0; i < kGpus * kUnits; ++i) free_.insert(Concat("m", 1000 + i));
    for (int i = 0; i < kGpus * 8; ++i) free_tokens_.insert(Concat("a", 1000 + i));
    for (int i = 0; i < kGpus; ++i) free_exclusive_.insert(Concat("x", 1000 + i));
    for (int i = 0; i < kGpus * 8; ++i) free_gpus_.insert(Concat("g", 1000 + i));
    for (int i = 0; i < kGpus * 8; ++i) free_nvlink_.insert(Concat("n", 1000 + i));
  }

  void Step() {
    switch (Pick(11)) {
      case 0:
      case 1:
      case 2:
        return Come();
      case 3:
      case 4:
        return Restart();
      case 5:
      case 6:
        return End();
      case 7:
        return BrokerEnds();
      case 8:
        return Sicken();
      case 9:
        return Drain();
      default:
        now_ms_ += static_cast<int64_t>(Pick(20'000));
        book_.Observe(List(), now_ms_);
    }
  }

  void Check() const {
    std::map<std::string, uint32_t> used;
    DeviceIds seen;
    std::map<std::string, std::set<std::string>> name_spaces;  // Keyed by GPU.
    for (const Binding& binding : book_.bindings()) {
      if (binding.resource == Resource::kMemory) {
        for (const std::string& gpu : binding.gpus) {
          used[gpu] += static_cast<uint32_t>(binding.ids.size() / binding.gpus.size());
          name_spaces[gpu].insert(binding.owner.pod.name_space);
        }
      }
      for (const std::string& id : binding.ids) {
        ASSERT_TRUE(seen.insert(id).second) << id << " is bound twice";
      }
    }
    for (const auto& [gpu, units] : used) ASSERT_LE(units, kUnits) << gpu;
    // A broker that still runs keeps its room, whoever has its IDs now.
    std::map<std::string, uint32_t> lingering;
    for (const auto& [name, broker] : brokers_) {
      for (const std::string& gpu : broker.gpus) {
        lingering[gpu] += broker.units;
        name_spaces[gpu].insert(broker.name_space);
        for (const auto& [other_name, other] : brokers_) {
          const bool together = std::ranges::count(other.gpus, gpu) > 0;
          ASSERT_TRUE(!broker.exclusive || !together || other_name == name)
              << other_name << " joins " << name << " on " << gpu;
        }
      }
    }
    for (const auto& [gpu, names] : name_spaces) {
      ASSERT_TRUE(!apart_ || names.size() == 1) << gpu << " has pods of several namespaces";
    }
    for (const auto& [gpu, units] : lingering) {
      ASSERT_LE(units + book_.FreeUnits(gpu), kUnits) << gpu << " is allocated twice";
    }
  }

  // After everything has ended, the book is empty.
  void Finish() {
    while (!pods_.empty()) End();
    while (!brokers_.empty()) BrokerEnds();
    book_.Observe(List(), now_ms_ += Book::kProofMs);
    book_.Observe(List(), now_ms_ += Book::kProofMs);
    EXPECT_TRUE(book_.bindings().empty());
    for (const Gpu& gpu : gpus_) EXPECT_EQ(book_.FreeUnits(gpu.uuid), kUnits);
  }

  int bound() const { return bound_; }
  int bound_exclusive() const { return bound_exclusive_; }
  int bound_several() const { return bound_several_; }
  int refused() const { return refused_; }

 private:
  struct State {
    DeviceIds ids;
    DeviceIds token;
    DeviceIds exclusive;
    DeviceIds number;
    DeviceIds nvlink;
    std::vector<std::string> gpus;
  };
  struct Running {
    std::vector<std::string> gpus;
    uint32_t units;  // On each.
    std::string name_space;
    bool exclusive;
  };

  uint32_t Pick(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  DeviceIds Take(DeviceIds* from, size_t count) {
    DeviceIds taken;
    while (taken.size() < count) {
      auto id = from->begin();
      std::advance(id, Pick(static_cast<uint32_t>(from->size())));
      taken.insert(from->extract(id));
    }
    return taken;
  }
  Snapshot List() const {
    Snapshot now;
    // It restarts from time to time.
    now.kubelet_run = 1 + static_cast<uint64_t>(now_ms_) / 60'000;
    for (const auto& [pod, state] : pods_) {
      now.Add({pod, "gpushm"}, Resource::kMemory, state.ids);
      now.Add({pod, "app"}, Resource::kAttach, state.token);
      now.Add({pod, "gpushm"}, Resource::kExclusive, state.exclusive);
      now.Add({pod, "gpushm"}, Resource::kGpus, state.number);
      now.Add({pod, "gpushm"}, Resource::kNvlink, state.nvlink);
    }
    return now;
  }

  // The kubelet admits a pod under one of a few names.
  void Come() {
    const Pod pod{Concat("team-", Pick(3)), Concat("pod-", Pick(10))};
    const size_t gpus = Pick(2) == 0 ? 2 + Pick(2) : 1;
    const size_t units = gpus * (1 + Pick(gpus > 1 ? 4 : 8));
    if (pods_.contains(pod) || free_.size() < units || free_tokens_.empty()) return;
    State state;
    state.ids = Take(&free_, units);
    state.token = Take(&free_tokens_, 1);
    if (some_alone_ && Pick(4) == 0 && free_exclusive_.size() >= gpus) {
      state.exclusive = Take(&free_exclusive_, gpus);
    }
    if (gpus > 1 && free_gpus_.size() >= gpus) {
      state.number = Take(&free_gpus_, gpus);
      if (gpus == 2 && Pick(2) == 0) state.nvlink = Take(&free_nvlink_, 1);
    } else if (gpus > 1) {
      state.exclusive.clear();
    }
    book_.Supersede(state.ids);
    pods_[pod] = state;
    Start(pod);
  }

  void Start(const Pod& pod) {
    State& state = pods_[pod];
    const bool is_new = state.gpus.empty();
    const auto sidecar = book_.Bind(Resource::kMemory, state.ids, List());
    if (!sidecar) {
      ++refused_;
      return;
    }
    ++bound_;
    ASSERT_TRUE(is_new || sidecar->gpus == state.gpus) << "it moved";
    ASSERT_EQ(sidecar->gpus.size(), std::max<size_t>(state.number.size(), 1));
    ASSERT_TRUE(std::ranges::is_sorted(sidecar->gpus)) << "numbers follow the book's order";
    ASSERT_TRUE(std::ranges::adjacent_find(sidecar->gpus) == sidecar->gpus.end());
    if (!state.nvlink.empty()) {
      ASSERT_EQ(sidecar->gpus[0].back() ^ 1, sidecar->gpus[1].back()) << "no NVLink";
    }
    for (const Gpu& gpu : gpus_) {
      ASSERT_FALSE(is_new && sidecar->Has(gpu.uuid) && gpu.closed()) << "it is drained";
    }
    state.gpus = sidecar->gpus;
    brokers_[sidecar->name()] = {sidecar->gpus,
                                 static_cast<uint32_t>(sidecar->ids.size() / sidecar->gpus.size()),
                                 pod.name_space, !state.exclusive.empty()};
    if (is_new && !state.exclusive.empty()) ++bound_exclusive_;
    if (is_new && state.gpus.size() > 1) ++bound_several_;
    book_.NoteLink(sidecar->name(), true);
    const auto app = book_.Bind(Resource::kAttach, state.token, List());
    ASSERT_TRUE(app) << app.error().ToString();
    ASSERT_EQ(app->gpus, sidecar->gpus) << "containers of a pod on different GPUs";
  }

  void Restart() {
    if (pods_.empty()) return;
    auto pod = pods_.begin();
    std::advance(pod, Pick(static_cast<uint32_t>(pods_.size())));
    Start(pod->first);
  }

  // The kubelet takes its IDs back; sometimes its broker lingers.
  void End() {
    if (pods_.empty()) return;
    auto pod = pods_.begin();
    std::advance(pod, Pick(static_cast<uint32_t>(pods_.size())));
    const std::string name = *pod->second.ids.begin();
    if (brokers_.contains(name) && Pick(4) != 0) {
      brokers_.erase(name);
      book_.NoteLink(name, false);
    }
    free_.merge(pod->second.ids);
    free_tokens_.merge(pod->second.token);
    free_exclusive_.merge(pod->second.exclusive);
    free_gpus_.merge(pod->second.number);
    free_nvlink_.merge(pod->second.nvlink);
    pods_.erase(pod);
  }

  void BrokerEnds() {
    if (brokers_.empty()) return;
    auto broker = brokers_.begin();
    std::advance(broker, Pick(static_cast<uint32_t>(brokers_.size())));
    book_.NoteLink(broker->first, false);
    brokers_.erase(broker);
  }

  void Drain() {
    Gpu& gpu = gpus_[Pick(kGpus)];
    gpu.drained = gpu.drained.empty() ? "a reason" : "";
    book_.SetGpus(gpus_);
  }

  void Sicken() {
    Gpu& gpu = gpus_[Pick(kGpus)];
    gpu.healthy = !gpu.healthy;
    book_.SetGpus(gpus_);
    // GPUs that take nobody new have more such IDs.
    if (some_alone_ || std::ranges::any_of(gpus_, &Gpu::closed)) return;
    DeviceIds all;
    for (uint32_t i = 0; i < kGpus * kUnits; ++i) all.insert(Concat("m", 1000 + i));
    size_t sick = 0;
    for (const Gpu& each : gpus_) sick += each.healthy ? 0 : each.units;
    ASSERT_EQ(book_.Unhealthy(Resource::kMemory, all).size(), sick);
  }

  std::mt19937 random_;
  const bool apart_;       // Tenancy by namespace.
  const bool some_alone_;  // Some pods want their GPU alone.
  Book book_{uint64_t{1} << 30};
  std::vector<Gpu> gpus_;
  DeviceIds free_;
  DeviceIds free_tokens_;
  DeviceIds free_exclusive_;
  DeviceIds free_gpus_;
  DeviceIds free_nvlink_;
  std::map<Pod, State> pods_;
  std::map<std::string, Running> brokers_;  // Keyed by allocation name.
  int64_t now_ms_ = 0;
  int bound_ = 0;
  int bound_exclusive_ = 0;
  int bound_several_ = 0;
  int refused_ = 0;
};

TEST(BookProperty, HoldsWhateverHappens) {
  int bound = 0;
  int refused = 0;
  int exclusive = 0;
  int several = 0;
  const uint32_t first = gpushm::testing::TestSeed(1);
  for (uint32_t seed = first; seed < first + 50; ++seed) {
    SCOPED_TRACE(Concat("seed ", seed));
    World world(seed);
    for (int step = 0; step < 400; ++step) {
      world.Step();
      if (::testing::Test::HasFatalFailure()) return;
      world.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    world.Finish();
    bound += world.bound();
    refused += world.refused();
    exclusive += world.bound_exclusive();
    several += world.bound_several();
  }
  EXPECT_GT(bound, 1000) << "the test must produce both results";
  EXPECT_GT(refused, 1000);
  EXPECT_GT(exclusive, 30) << "pods that have their GPUs alone";
  EXPECT_GT(several, 150) << "pods of several GPUs";
}

}  // namespace
}  // namespace gpushm::plugin::binding
