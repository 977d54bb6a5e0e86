#include "contract/protocol/channel.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "contract/limits.h"
#include "platform/base/testing.h"
#include "platform/base/testing/code.h"
#include "platform/base/testing/must.h"

namespace gpushm::protocol {
namespace {

using ::gpushm::testing::Must;

constexpr int64_t kSoonMs = 10'000;

struct Pair {
  UniqueFd near;
  UniqueFd far;
};

Pair MakePair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<std::byte> Text(size_t size_bytes) {
  return std::vector<std::byte>(size_bytes, std::byte{7});
}

using gpushm::testing::CodeOf;

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

using gpushm::testing::TempFolder;

TEST(Channel, CarriesBytesAndDescriptors) {
  const Pair pair = MakePair();
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::array<int, 2> fds{file.get(), file.get()};
  ASSERT_TRUE(Send(pair.near.get(), Text(limits::kMessageBytes), fds, Deadline::AfterMs(kSoonMs)));
  Message message;
  ASSERT_TRUE(Receive(pair.far.get(), &message, Deadline::AfterMs(kSoonMs)));
  EXPECT_EQ(message.size_bytes, limits::kMessageBytes);
  ASSERT_EQ(message.descriptors.size(), 2u);
  EXPECT_NE(fcntl(message.descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Channel, NothingThereIsNoError) {
  const Pair pair = MakePair();
  Message message;
  const auto received = Must(TryReceive(pair.far.get(), &message));
  EXPECT_FALSE(received);
  EXPECT_EQ(CodeOf(Receive(pair.far.get(), &message, Deadline::AfterMs(1))), Code::kTimeout);
}

TEST(Channel, TooLongIsCorrupt) {
  const Pair pair = MakePair();
  const auto giant = Text(limits::kMessageBytes + 1);
  ASSERT_EQ(send(pair.near.get(), giant.data(), giant.size(), 0),
            static_cast<ssize_t>(giant.size()));
  Message message;
  EXPECT_EQ(CodeOf(TryReceive(pair.far.get(), &message)), Code::kCorrupt);
}

void SendWith(int socket, size_t size_bytes, int fd, size_t count) {
  std::vector<int> fds(count, fd);
  std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
  auto bytes = Text(std::max<size_t>(size_bytes, 1));
  iovec vector{bytes.data(), size_bytes};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* const ancillary = CMSG_FIRSTHDR(&header);
  ancillary->cmsg_level = SOL_SOCKET;
  ancillary->cmsg_type = SCM_RIGHTS;
  ancillary->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(ancillary), fds.data(), count * sizeof(int));
  ASSERT_EQ(sendmsg(socket, &header, 0), static_cast<ssize_t>(size_bytes)) << strerror(errno);
}

// Regression: descriptors of a refused message were closed inside TryReceive, or by the kernel in
// its recvmsg() if there was no room for them. That happened on the broker's loop, which a socket
// with SO_LINGER can block. The caller must get all of them.
TEST(Channel, DescriptorsOfARefusedMessageAreTheCallersToClose) {
  const int before = OpenDescriptors();
  {
    const Pair pair = MakePair();
    for (const auto& [size_bytes, count] : {std::pair<size_t, size_t>{8, 5},
                                            {8, 253},
                                            {limits::kMessageBytes + 1, 1},
                                            {limits::kMessageBytes + 1, 253},
                                            {0, 2}}) {
      SendWith(pair.near.get(), size_bytes, pair.near.get(), count);
      Message message;
      const auto received = TryReceive(pair.far.get(), &message);
      EXPECT_EQ(CodeOf(received), size_bytes == 0 ? Code::kUnavailable : Code::kCorrupt);
      EXPECT_EQ(message.descriptors.size(), count);
    }
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

// Regression: this was reported as a peer that had sent too long a message.
TEST(Channel, ADescriptorThatFindsNoPlaceIsNotThePeersFault) {
  const Pair pair = MakePair();
  const int before = OpenDescriptors();
  SendWith(pair.near.get(), 8, pair.near.get(), 3);
  {
    Message message;
    Result<bool> received;
    {
      const gpushm::testing::FewDescriptors few(1);
      received = TryReceive(pair.far.get(), &message);
    }
    ASSERT_EQ(CodeOf(received), Code::kExhausted);
    EXPECT_THAT(received.error().ToString(), ::testing::HasSubstr("raise RLIMIT_NOFILE"));
    EXPECT_EQ(message.descriptors.size(), 1u) << "one arrived and belongs to the caller";
    EXPECT_EQ(message.size_bytes, 8u) << "so that it can be answered";
  }
  EXPECT_EQ(OpenDescriptors(), before);
  SendWith(pair.near.get(), 8, pair.near.get(), 3);
  Message message;
  EXPECT_TRUE(TryReceive(pair.far.get(), &message)) << "the connection still works";
  EXPECT_EQ(message.descriptors.size(), 3u);
}

TEST(Channel, EndOfFileAndEmptyDatagramsAreAPeerThatLeft) {
  Pair pair = MakePair();
  Message message;
  ASSERT_EQ(send(pair.near.get(), "", 0, 0), 0);
  EXPECT_EQ(CodeOf(TryReceive(pair.far.get(), &message)), Code::kUnavailable);
  pair.near.Reset();
  EXPECT_EQ(CodeOf(TryReceive(pair.far.get(), &message)), Code::kUnavailable);
  EXPECT_EQ(CodeOf(TrySend(pair.far.get(), Text(1), {})), Code::kUnavailable);
}

// Regression: a peer that was full refused a connection without reading its request, and seemed to
// have vanished, because ECONNRESET comes before the peer's message.
TEST(Channel, LastWordsAreHeard) {
  Pair pair = MakePair();
  ASSERT_TRUE(*TrySend(pair.near.get(), Text(10), {}));  // Nobody reads it.
  ASSERT_TRUE(*TrySend(pair.far.get(), Text(20), {}));
  pair.far.Reset();
  Message message;
  Must(TryReceive(pair.near.get(), &message));
  EXPECT_EQ(message.size_bytes, 20u);
  EXPECT_EQ(CodeOf(TryReceive(pair.near.get(), &message)), Code::kUnavailable);
}

TEST(Channel, AFullBufferIsFalseThenTimesOutThenGoesOn) {
  const Pair pair = MakePair();
  int sent = 0;
  for (;; ++sent) {
    const auto room = Must(TrySend(pair.near.get(), Text(limits::kMessageBytes), {}));
    if (!room) break;
  }
  EXPECT_GT(sent, 0);
  EXPECT_EQ(CodeOf(Send(pair.near.get(), Text(1), {}, Deadline::AfterMs(5))), Code::kTimeout);
  std::thread reader([&] {
    Message message;
    for (int i = 0; i <= sent; ++i) {
      EXPECT_TRUE(Receive(pair.far.get(), &message, Deadline::AfterMs(kSoonMs)));
    }
  });
  EXPECT_TRUE(Send(pair.near.get(), Text(limits::kMessageBytes), {}, Deadline::AfterMs(kSoonMs)));
  reader.join();
}

TEST(Channel, RefusesToSendMoreDescriptorsThanTheProtocolHas) {
  const Pair pair = MakePair();
  const std::vector<int> fds(limits::kMessageDescriptors + 1, pair.near.get());
  EXPECT_EQ(CodeOf(TrySend(pair.near.get(), Text(1), fds)), Code::kInternal);
}

// In a child without privileges and with a low limit: fills the user's quota of descriptors in
// flight. Returns 0, or the number of the first failed check.
int TryTooManyInFlight() {
  alarm(60);  // Ends the child if a deadline does not work.
  const rlimit few{64, 64};
  int ends[2];
  int parked[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, parked) != 0) return 2;
  if (setgid(31'337) != 0 || setuid(31'337) != 0) return 3;
  if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 4;
  const std::array<int, 4> fds{ends[0], ends[0], ends[0], ends[0]};
  int parked_messages = 0;
  for (;; ++parked_messages) {
    const auto sent = TrySend(parked[0], Text(1), fds);
    if (!sent) return 5;
    if (!*sent) break;
    if (parked_messages > 100) return 6;  // The kernel did not count them.
  }
  const auto refused = Send(ends[0], Text(1), {fds.data(), 1}, Deadline::AfterMs(20));
  if (refused || refused.error().code() != Code::kTimeout) return 7;
  std::thread reader([&] {
    Message message;
    for (int i = 0; i < parked_messages; ++i) {
      if (!TryReceive(parked[1], &message)) std::_Exit(8);
    }
  });
  const auto sent = Send(ends[0], Text(1), {fds.data(), 1}, Deadline::AfterMs(kSoonMs));
  reader.join();
  return sent ? 0 : 9;
}

// Regression: Send ignored its deadline while the kernel returned ETOOMANYREFS.
TEST(Channel, TooManyDescriptorsInFlightIsWaitedFor) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to become a user without privileges";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) std::_Exit(TryTooManyInFlight());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "see TryTooManyInFlight";
}

TEST(Channel, ConnectsAndListens) {
  const TempFolder folder;
  const std::string path = folder.path() + "/gpushm.sock";
  EXPECT_EQ(CodeOf(Connect(path)), Code::kUnavailable);
  {
    const auto dead = Must(Listen(path, 0666));
  }
  EXPECT_EQ(CodeOf(Connect(path)), Code::kUnavailable) << "nobody listens on this socket";
  const mode_t mask = umask(0077);
  const auto listening = Listen(path, 0666);
  umask(mask);
  ASSERT_TRUE(listening) << "a dead socket is replaced";
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777u, 0666u) << "whatever the umask";
  EXPECT_TRUE(Connect(path));
}

// Goal: a process that listens again at its name, as after a restart, keeps the name: no other
// process can take it in between.
// Method: another thread tries to take it all the time.
TEST(Channel, AtNoTimeIsTheNameFree) {
  const TempFolder folder;
  const std::string path = folder.path() + "/gpushm.sock";
  ASSERT_TRUE(Listen(path, 0666));
  std::atomic<bool> done = false;
  std::thread other([&] {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    while (!done) {
      const UniqueFd squatter(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      const int taken =
          bind(squatter.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
      EXPECT_NE(taken, 0);
      if (taken == 0) return;
    }
  });
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(Listen(path, 0666));
  done = true;
  other.join();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1)
      << "nothing else remains there";
}

TEST(Channel, WhatAnotherUserMadeIsSaid) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const TempFolder folder;  // Like /dev/shm: every user may create files, and remove their own.
  ASSERT_EQ(chmod(folder.path().c_str(), 01777), 0);
  const std::string path = folder.path() + "/gpushm.sock";
  ASSERT_TRUE(Listen(path, 0666));  // By root.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setgid(31'342) != 0 || setuid(31'342) != 0) std::_Exit(2);
    const auto refused = Listen(path, 0666);
    const bool right = !refused && refused.error().code() == Code::kDenied &&
                       refused.error().what().find(path) != std::string::npos;
    std::_Exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Channel, ReachesSocketsWithLongPaths) {
  const TempFolder folder;
  std::string deep = folder.path();
  for (int i = 0; i < 3; ++i) deep += "/" + std::string(60, 'd');
  ASSERT_TRUE(std::filesystem::create_directories(deep));
  const auto listening = Must(Listen(deep + "/gpushm.sock", 0666));
  EXPECT_TRUE(Connect(deep + "/gpushm.sock"));
  EXPECT_EQ(CodeOf(Connect(deep + "/" + std::string(100, 's'))), Code::kInvalidArgument);
}

// The temporary name must not need more room than there is.
TEST(Channel, ListensAtPathsThatJustFit) {
  const TempFolder folder;
  for (size_t bytes = 85; bytes < sizeof(sockaddr_un::sun_path); ++bytes) {
    const std::string start = folder.path() + "/";
    ASSERT_LT(start.size() + 12, bytes) << "the name is too short for this test";
    const std::string path = start + std::string(bytes - start.size(), 's');
    const auto listening = Listen(path, 0666);
    ASSERT_TRUE(listening) << bytes << ": " << listening.error().ToString();
    EXPECT_TRUE(Connect(path));
    EXPECT_EQ(unlink(path.c_str()), 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace gpushm::protocol
