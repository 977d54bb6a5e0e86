// For tests of the keeper: one that runs, its folder, and what it told.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "plugin/keeper/keeper.h"
#include "plugin/keeper/testing/fake_broker.h"

namespace gpushm::plugin::testing {

inline constexpr char kGpu[] = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
inline constexpr char kOtherGpu[] = "MIG-aaaaaaaa-0000-0000-0000-000000000002";
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

inline UniqueFd Memfd() { return UniqueFd(memfd_create("memory", MFD_CLOEXEC)); }
inline UniqueFd PidfdOf(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

inline protocol::LinkClient ClientOf(uint64_t id, const char* container = "app") {
  protocol::LinkClient client{};
  client.client_id = id;
  client.container = protocol::ToNameField(container);
  return client;
}
inline protocol::LinkBuffer BufferOf(const std::string& name, uint64_t current = 0) {
  protocol::LinkBuffer buffer{};
  buffer.name = protocol::ToNameField(name);
  buffer.state = 2;
  buffer.current = current;
  return buffer;
}
inline protocol::LinkGeneration GenerationOf(const std::string& name, uint64_t number,
                                             uint64_t mapped_bytes = 2 * kMiB) {
  protocol::LinkGeneration generation{};
  generation.name = protocol::ToNameField(name);
  generation.generation = number;
  generation.size_bytes = mapped_bytes;
  generation.mapped_bytes = mapped_bytes;
  generation.transport = 1;
  generation.pooled = 1;
  return generation;
}
inline protocol::LinkLease LeaseOf(uint64_t id, uint64_t client, uint64_t generation) {
  return {.lease_id = id,
          .client_id = client,
          .generation = generation,
          .since_unix_ns = 5,
          .access = 1,
          .reserved = 0};
}

// One client (this process), one buffer, one generation, one lease.
inline Result<void> SayOneOfEach(FakeBroker* broker) {
  const UniqueFd self = PidfdOf(getpid());
  const UniqueFd memory = Memfd();
  for (const auto& [body, fd] : {std::pair<Body, int>(ClientOf(1), self.get()),
                                 {BufferOf("weights", 7), -1},
                                 {GenerationOf("weights", 7), memory.get()},
                                 {LeaseOf(1, 1, 7), -1}}) {
    if (auto said = broker->Say(body, fd); !said) return said;
  }
  return {};
}
inline constexpr KeptCounts kOneOfEach{.clients = 1,
                                       .buffers = 1,
                                       .generations = 1,
                                       .leases = 1,
                                       .pooled_bytes = 2 * kMiB,
                                       .offered_bytes = 0};

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

  void StartKeeper(const LinkServer::Settings& settings = {}) {
    keeper_.reset();
    Keeper::Options options;
    options.links_folder = folder_.path();
    options.settings = settings;
    options.on_link = [this](const std::string& name, bool open) { events_.Note(name, open); };
    auto keeper = Keeper::Start(std::move(options));
    ASSERT_TRUE(keeper) << keeper.error().ToString();
    keeper_ = std::move(*keeper);
  }

  // Makes the folder and opens the link.
  void Open(const std::string& name, const std::string& gpu = kGpu, uint64_t pool = kGiB) {
    folder_.Add(name);
    const Result<void> opened = keeper_->Open(name, {.gpu = gpu, .pool_bytes = pool});
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

  LinksFolder folder_;
  LinkEvents events_;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace gpushm::plugin::testing
