// Goal: fork() harms neither the parent nor the child. If the parent had opened nothing, the child
// is a process like any other. If it had, the child does not touch the parent's objects. It may
// open its own, with CUDA if CUDA was not initialised before the fork.
//
// Method: a real broker. Each application is a child of this program, which itself uses neither
// gpushm nor CUDA, and forks again. A child that hangs is killed at the deadline, and the test
// fails.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/gpushm.h"
#include "gpushm/sync.h"
#include "tests/integration/fixture.h"

extern char** environ;

namespace gpushm::integration {
namespace {

constexpr uint64_t kBytes = 4096;

// For an application: ends it with the reason.
#define REQUIRE(holds)                                                                 \
  do {                                                                                 \
    if (!(holds)) {                                                                    \
      std::fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #holds, \
                   gpushm_last_error()->text);                                         \
      _exit(1);                                                                        \
    }                                                                                  \
  } while (0)

// Whether the child exits successfully by itself before the deadline.
bool EndsWell(pid_t child) {
  const Deadline deadline = Deadline::AfterMs(kPatienceMs);
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (deadline.Passed()) {
      std::fprintf(stderr, "process %d has not ended before the deadline\n", child);
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return false;
    }
    poll(nullptr, 0, 1);
  }
  return status == 0;
}

// Runs `body` in a child, which exits successfully if `body` returns.
pid_t Fork(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  body();
  _exit(0);
}

gpushm_client* Open(const std::string& run) {
  gpushm_open_options options;
  GPUSHM_INIT(&options);
  options.folder = run.c_str();
  gpushm_client* client = nullptr;
  REQUIRE(gpushm_open(&options, &client) == GPUSHM_OK);
  return client;
}

// Uses everything that needs no GPU.
void UseBroker(const std::string& run) {
  gpushm_client* const client = Open(run);
  gpushm_broker_info info;
  GPUSHM_INIT(&info);
  REQUIRE(gpushm_broker_get_info(client, &info) == GPUSHM_OK);
  size_t count = 0;
  REQUIRE(gpushm_list(client, nullptr, 0, &count) == GPUSHM_OK);
  gpushm_close(client);
}

void UseGpu(const std::string& run) {
  gpushm_client* const client = Open(run);
  const std::string name = "of-" + std::to_string(getpid());
  gpushm_attachment* made = nullptr;
  REQUIRE(gpushm_create(client, name.c_str(), kBytes, nullptr, &made) == GPUSHM_OK);
  gpushm_attachment* attached = nullptr;
  REQUIRE(gpushm_attach(client, name.c_str(), nullptr, &attached) == GPUSHM_OK);
  REQUIRE(gpushm_attachment_address(attached) != 0 &&
          gpushm_attachment_check(attached) == GPUSHM_OK);
  REQUIRE(gpushm_attachment_detach(attached, nullptr) == GPUSHM_OK);
  REQUIRE(gpushm_delete(client, name.c_str(), nullptr) == GPUSHM_OK);
  gpushm_close(client);
}

// CUDA was initialised before the fork: the client works, but cannot use the GPU.
void UseBrokerAndFindNoGpu(const std::string& run) {
  gpushm_client* const client = Open(run);
  gpushm_attachment* made = nullptr;
  REQUIRE(gpushm_create(client, "of-child", kBytes, nullptr, &made) == GPUSHM_FORKED);
  REQUIRE(std::strstr(gpushm_last_error()->what, "before fork()") != nullptr);
  REQUIRE(std::strstr(gpushm_last_error()->remedy, "spawn") != nullptr);
  REQUIRE(gpushm_create(client, "of-child", kBytes, nullptr, nullptr) == GPUSHM_OK);
  REQUIRE(gpushm_delete(client, "of-child", nullptr) == GPUSHM_OK);
  gpushm_close(client);
}

class ForkTest : public IntegrationTest {
 protected:
  // Whether the application exited successfully.
  static bool Run(const std::function<void()>& application) { return EndsWell(Fork(application)); }
  Broker broker_{run(), "64Mi"};
};

TEST_F(ForkTest, AProcessThatOpenedNothingForks) {
  EXPECT_TRUE(Run([&] {
    REQUIRE(gpushm_version() > 0);
    REQUIRE(EndsWell(Fork([&] {
      UseGpu(run());
      // This child initialised CUDA just now; its parent did not.
      REQUIRE(EndsWell(Fork([&] { UseBrokerAndFindNoGpu(run()); })));
    })));
    REQUIRE(EndsWell(Fork([&] { REQUIRE(EndsWell(Fork([&] { UseGpu(run()); }))); })));
    UseGpu(run());
  }));
}

TEST_F(ForkTest, ADaemonWorks) {
  std::array<int, 2> answer{};
  ASSERT_EQ(pipe2(answer.data(), O_CLOEXEC), 0);
  EXPECT_TRUE(Run([&] {
    REQUIRE(daemon(/*nochdir=*/1, /*noclose=*/1) == 0);  // From here on, this is a child process.
    UseGpu(run());
    REQUIRE(write(answer[1], "x", 1) == 1);
  }));
  close(answer[1]);
  pollfd poller{.fd = answer[0], .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&poller, 1, kPatienceMs), 1) << "the daemon has not answered before the deadline";
  char byte = 0;
  EXPECT_EQ(read(answer[0], &byte, 1), 1) << "the daemon ended before it was done";
  close(answer[0]);
}

TEST_F(ForkTest, WhatTheParentOpenedIsTheParents) {
  EXPECT_TRUE(Run([&] {
    gpushm_client* const client = Open(run());
    gpushm_signal_options writing;
    GPUSHM_INIT(&writing);
    writing.role = GPUSHM_SIGNAL_WRITER;
    gpushm_signal* signal = nullptr;
    REQUIRE(gpushm_signal_open(client, "ready", &writing, &signal) == GPUSHM_OK);
    REQUIRE(EndsWell(Fork([&] {
      size_t count = 0;
      gpushm_info info;
      GPUSHM_INIT(&info);
      REQUIRE(gpushm_lookup(client, "ready", &info) == GPUSHM_FORKED);
      REQUIRE(gpushm_last_error()->status == GPUSHM_FORKED);
      REQUIRE(gpushm_list(client, nullptr, 0, &count) == GPUSHM_FORKED);
      REQUIRE(gpushm_signal_set(signal, 5) == GPUSHM_FORKED);
      REQUIRE(gpushm_signal_close(signal) == GPUSHM_FORKED);
      gpushm_close(client);
      REQUIRE(gpushm_last_error()->status == GPUSHM_FORKED);
      UseGpu(run());  // CUDA was not initialised before.
    })));
    REQUIRE(gpushm_signal_set(signal, 1) == GPUSHM_OK);  // The parent's objects still work.
    REQUIRE(gpushm_signal_close(signal) == GPUSHM_OK);
    gpushm_close(client);
    UseGpu(run());
  }));
}

TEST_F(ForkTest, AChildHasNoCudaAfterTheParentsAttach) {
  EXPECT_TRUE(Run([&] {
    gpushm_client* const client = Open(run());
    gpushm_attachment* made = nullptr;
    REQUIRE(gpushm_create(client, "weights", kBytes, nullptr, &made) == GPUSHM_OK);
    REQUIRE(EndsWell(Fork([&] {
      REQUIRE(gpushm_attachment_address(made) == 0 && gpushm_attachment_size(made) == 0);
      REQUIRE(gpushm_attachment_check(made) == GPUSHM_FORKED);
      REQUIRE(gpushm_attachment_detach(made, nullptr) == GPUSHM_FORKED);
      gpushm_close(client);
      UseBrokerAndFindNoGpu(run());
    })));
    REQUIRE(gpushm_attachment_check(made) == GPUSHM_OK);
    REQUIRE(gpushm_attachment_detach(made, nullptr) == GPUSHM_OK);
    gpushm_close(client);
  }));
}

TEST_F(ForkTest, AChildHasNoCudaAfterTheApplicationUsedIt) {
  EXPECT_TRUE(Run([&] {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    REQUIRE(api && (*api)->Init());
    REQUIRE(EndsWell(Fork([&] { UseBrokerAndFindNoGpu(run()); })));
  }));
}

// Goal: a lock that another thread held at the moment of the fork does not block the child.
TEST_F(ForkTest, AForkWhileOtherThreadsWork) {
  EXPECT_TRUE(Run([&] {
    std::atomic<bool> on{true};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        gpushm_client* const client = Open(run());
        const std::string name = "of-thread-" + std::to_string(i);
        REQUIRE(gpushm_create(client, name.c_str(), kBytes, nullptr, nullptr) == GPUSHM_OK);
        while (on) {
          gpushm_attachment* attached = nullptr;
          REQUIRE(gpushm_attach(client, name.c_str(), nullptr, &attached) == GPUSHM_OK);
          REQUIRE(gpushm_attachment_detach(attached, nullptr) == GPUSHM_OK);
          gpushm_close(Open(run()));
        }
        REQUIRE(gpushm_delete(client, name.c_str(), nullptr) == GPUSHM_OK);
        gpushm_close(client);
      });
    }
    for (int i = 0; i < 40; ++i) REQUIRE(EndsWell(Fork([&] { UseBroker(run()); })));
    on = false;
    for (std::thread& thread : threads) thread.join();
  }));
}

// The child also has the parent's socket, which stays open as long as one of them has it.
TEST_F(ForkTest, AParentThatClosesIsGoneThoughItsChildLives) {
  EXPECT_TRUE(Run([&] {
    gpushm_client* const client = Open(run());
    const pid_t child = Fork([] { pause(); });
    gpushm_close(client);
    gpushm_client* const other = Open(run());
    gpushm_broker_info info;
    GPUSHM_INIT(&info);
    const bool gone = Eventually([&] {
      REQUIRE(gpushm_broker_get_info(other, &info) == GPUSHM_OK);
      return info.clients == 1;
    });
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    REQUIRE(gone);
    gpushm_close(other);
  }));
}

// vfork() and posix_spawn() start another program, and the parent continues as before.
TEST_F(ForkTest, AParentThatSpawnsGoesOn) {
  EXPECT_TRUE(Run([&] {
    gpushm_client* const client = Open(run());
    pid_t child = 0;
    std::array<char*, 2> arguments = {const_cast<char*>("true"), nullptr};
    REQUIRE(posix_spawnp(&child, "true", nullptr, nullptr, arguments.data(), environ) == 0);
    REQUIRE(EndsWell(child));
    size_t count = 0;
    REQUIRE(gpushm_list(client, nullptr, 0, &count) == GPUSHM_OK);
    gpushm_close(client);
  }));
}

}  // namespace
}  // namespace gpushm::integration
