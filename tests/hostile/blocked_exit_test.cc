// A killed process whose exit is blocked, because it has a file open whose daemon is dead, on the
// simulated driver. The kernel closes its files in order, so it keeps those after that one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <random>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/testing.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"

namespace gpushm::hostile {
namespace {

using gpushm::testing::HangAt;
using gpushm::testing::HungFuse;
using gpushm::testing::TempFolder;

constexpr uint64_t kBytes = uint64_t{2} << 20;
constexpr int kVictims = 40;

const CudaApi& Cuda() {
  static const CudaApi* const api = *CudaApi::Load(DriverFolderFromEnvironment());
  return *api;
}

[[noreturn]] void CreateAgainAndAgain() {
  if (!Cuda().Init()) _exit(1);
  while (DeviceMemory::Create(Cuda(), 0, kBytes)) {
  }
  _exit(1);
}

// Goal: no moment of death leaves the card locked, even if the process cannot end afterwards.
// Method: processes that have a dead file open are killed at random moments while they create
// memory. Afterwards another process creates memory.
TEST(BlockedExitTest, LeavesTheCardUsable) {
  if (const auto missing = HungFuse::MissingHere()) GTEST_SKIP() << *missing;
  const TempFolder state;
  const TempFolder mount;
  setenv("GPUSHM_SIM_DIR", state.path().c_str(), 1);
  std::array<int, 2> go{};
  ASSERT_EQ(pipe2(go.data(), O_CLOEXEC), 0);
  const pid_t other = fork();  // Before the dead file is open: it must not have it.
  if (other == 0) {
    char byte = 0;
    if (read(go[0], &byte, 1) != 1) _exit(1);
    _exit(Cuda().Init() && DeviceMemory::Create(Cuda(), 0, kBytes) ? 0 : 1);
  }
  auto fuse = HungFuse::Mount(mount.path(), HangAt::kFlush);
  ASSERT_TRUE(fuse) << fuse.error().ToString();
  ASSERT_TRUE(fuse->Open(O_RDONLY));

  std::minstd_rand random(1);
  std::vector<pid_t> victims;
  for (int i = 0; i < kVictims; ++i) {
    victims.push_back(fork());
    if (victims.back() == 0) CreateAgainAndAgain();
    usleep(10'000 + static_cast<useconds_t>(random() % 5'000));  // sleep: the random moment.
    kill(victims.back(), SIGKILL);
    ASSERT_TRUE(fuse->WaitUntilHung(i + 1)) << "the victim's exit";
  }
  ASSERT_EQ(write(go[1], "x", 1), 1);
  int status = -1;
  const Deadline deadline = Deadline::AfterMs(20'000);
  while (waitpid(other, &status, WNOHANG) == 0 && !deadline.Passed()) {
    usleep(1'000);  // sleep: between two looks.
  }
  EXPECT_EQ(status, 0) << "-1: it waits for a lock that a victim holds";
  kill(other, SIGKILL);
  fuse->Abort();
  for (const pid_t victim : victims) waitpid(victim, nullptr, 0);
}

}  // namespace
}  // namespace gpushm::hostile
