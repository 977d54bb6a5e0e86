// For tests of the keeper: a running keeper, its folder, and what it reported.
#pragma once

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/keeper/keeper.h"
#include "plugin/keeper/testing/fake_broker.h"
#include "plugin/keeper/testing/statements.h"

namespace gpushm::plugin::keeper::testing {

inline size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class KeeperTest : public ::testing::Test {
 protected:
  void SetUp() override { StartKeeper(); }

  void StartKeeper(LinkServer::Settings settings = {},
                   uint64_t statement_bytes = Keeper::Options().statement_bytes) {
    keeper_.reset();
    if (!settings.memory.simulated) settings.memory = MemfdsAreMemory();
    Keeper::Options options;
    options.links_folder = folder_.path();
    options.settings = settings;
    options.statement_bytes = statement_bytes;
    options.on_link = [this](const std::string& name, bool open) { events_.Note(name, open); };
    options.on_ready = [this](double seconds) { ready_seconds_.push_back(seconds); };
    options.on_foreign = [this](ForeignStep step) { ++foreign_[static_cast<size_t>(step)]; };
    auto keeper = Keeper::Start(std::move(options));
    ASSERT_TRUE(keeper) << keeper.error().ToString();
    keeper_ = std::move(*keeper);
  }

  // Creates the folder and opens the link.
  void Open(const std::string& name, const std::string& gpu = kGpu, uint64_t pool = kGiB) {
    folder_.Add(name);
    const Result<void> opened = keeper_->Open(name, {.gpus = {gpu}, .pool_bytes = pool});
    ASSERT_TRUE(opened) << opened.error().ToString();
  }

  LinkView Look(const std::string& name) {
    for (LinkView& view : keeper_->Look()) {
      if (view.name == name) return std::move(view);
    }
    return {};
  }
  bool WaitForKept(const std::string& name, const KeptCounts& counts) {
    return Eventually([&] { return Look(name).kept == counts; });
  }

  // A link m0001 that must keep working: it is connected and still receives reports.
  void StartBystander() {
    Open("m0000");
    Open("m0001");
    bystander_ = std::make_unique<FakeBroker>(folder_.Socket("m0001"));
    ASSERT_TRUE(bystander_->Greet(false));
    ASSERT_TRUE(SayOneOfEach(bystander_.get()));
    ASSERT_TRUE(WaitForKept("m0001", kOneOfEach));
  }
  void ExpectUnharmed() {
    EXPECT_EQ(Look("m0001").kept, kOneOfEach);
    EXPECT_TRUE(Look("m0001").connected);
    keeper_->SetDevice(kGpu, false, "");
    EXPECT_TRUE(bystander_->Expect<protocol::LinkDevice>(protocol::LinkKind::kDevice));
  }

  int Count(ForeignStep step) const { return foreign_[static_cast<size_t>(step)]; }

  LinksFolder folder_;
  LinkEvents events_;
  std::vector<double> ready_seconds_;          // Written by the keeper until it has answered.
  std::array<std::atomic<int>, 3> foreign_{};  // Indexed by ForeignStep.
  std::unique_ptr<Keeper> keeper_;
  std::unique_ptr<FakeBroker> bystander_;
};

}  // namespace gpushm::plugin::keeper::testing
