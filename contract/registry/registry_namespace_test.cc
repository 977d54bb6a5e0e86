// Writer and reader in sibling PID namespaces, like two containers: both are PID 1 there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>

#include "contract/registry/reader.h"
#include "contract/registry/testing/registry.h"
#include "contract/registry/writer.h"
#include "platform/base/testing/descriptors.h"

namespace gpushm::registry {
namespace {

constexpr int kWaitMs = 30'000;

bool EnterNewPidNamespace() {
  return unshare(CLONE_NEWPID) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0;
}

bool CanUnshare() {
  const pid_t child = fork();
  if (child == 0) _exit(EnterNewPidNamespace() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0;
}

// Runs `body` as PID 1 of its own namespace; the result of `body` is the exit status.
pid_t StartContainer(const std::function<int()>& body) {
  const pid_t outer = fork();
  if (outer != 0) return outer;
  if (!EnterNewPidNamespace()) _exit(100);
  const pid_t inner = fork();
  if (inner == 0) _exit(getpid() == 1 ? body() : 101);
  int status = 0;
  waitpid(inner, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 102);
}

bool SendByte(int socket) { return send(socket, "x", 1, 0) == 1; }
bool ReceiveByte(int socket) {
  char byte = 0;
  return recv(socket, &byte, 1, 0) == 1;
}

// Wakes the sleeper on the segment's wake word without any change; false if nobody slept.
bool WakeOneSleeper(int fd) {
  void* header = mmap(nullptr, kHeaderSize, PROT_READ, MAP_SHARED, fd, 0);
  if (header == MAP_FAILED) return false;
  const auto* word = &static_cast<const SegmentHeader*>(header)->wake_word;
  const Deadline deadline = Deadline::AfterMs(kWaitMs);
  while (!deadline.Passed()) {
    if (syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0) == 1) return true;
    sched_yield();
  }
  return false;
}

int RunWriter(int socket) {
  Result<RegistryWriter> writer = RegistryWriter::Create(16);
  if (!writer) return 1;
  const Result<uint32_t> slot = writer->Insert(SomeRecord("weights", 1));
  if (!slot || !gpushm::testing::SendWithDescriptor(socket, writer->fd())) return 2;
  if (!WakeOneSleeper(writer->fd())) return 3;
  if (!writer->Update(*slot, SomeRecord("weights", 2))) return 4;
  for (uint64_t generation = 3; generation < 20'000; ++generation) {
    if (!writer->Update(*slot, SomeRecord("weights", generation))) return 5;
  }
  return ReceiveByte(socket) ? 0 : 6;
}

int RunReader(int socket) {
  const auto reader = RegistryReader::Open(gpushm::testing::ReceiveDescriptor(socket));
  if (!reader) return 1;
  const uint64_t seen = (*reader)->table_version();
  const Result<Found> first = (*reader)->Find("weights");
  if (!first || first->record.generation != 1) return 2;
  const Deadline deadline = Deadline::AfterMs(kWaitMs);
  while (!(*reader)->WaitForChange(seen, deadline)) {
    if (deadline.Passed()) return 3;
  }
  for (uint64_t generation = 1; generation < 19'999;) {
    const Result<Found> found = (*reader)->Find("weights");
    if (!found && found.error().code() == Code::kContended) continue;
    if (!found || found->record.generation < generation || deadline.Passed()) return 4;
    generation = found->record.generation;
    if (!(found->record == SomeRecord("weights", generation))) return 5;
  }
  return SendByte(socket) ? 0 : 6;
}

TEST(RegistryNamespace, AReaderSleepsIsWokenAndReadsAcrossPidNamespaces) {
  if (!CanUnshare()) {
    GTEST_SKIP() << "needs root or user namespaces (sysctl user.max_user_namespaces, "
                    "kernel.unprivileged_userns_clone): "
                 << std::strerror(errno);
  }
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
  const UniqueFd writer_end(sockets[0]);
  const UniqueFd reader_end(sockets[1]);
  const pid_t writer = StartContainer([&] { return RunWriter(writer_end.get()); });
  const pid_t reader = StartContainer([&] { return RunReader(reader_end.get()); });
  for (const pid_t child : {writer, reader}) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << (child == writer ? "writer" : "reader");
  }
}

}  // namespace
}  // namespace gpushm::registry
