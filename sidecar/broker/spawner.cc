#include "sidecar/broker/spawner.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gpushm::broker {
namespace {

constexpr size_t kMaxDescriptors = 253;  // SCM_MAX_FD
constexpr size_t kMaxRequestBytes = 64 << 10;
constexpr char kProgram[] = "/proc/self/exe";

struct Received {
  ssize_t bytes = 0;
  std::vector<UniqueFd> descriptors;
};

// Waits for the next message.
Received Receive(std::span<char> bytes) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  iovec vector{bytes.data(), bytes.size()};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  Received received;
  do {
    received.bytes = recvmsg(kChannel, &header, MSG_CMSG_CLOEXEC);
  } while (received.bytes < 0 && errno == EINTR);
  if (received.bytes < 0) return received;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof descriptor);
      received.descriptors.emplace_back(descriptor);
    }
  }
  return received;
}

// Runs in the new child, which belongs to the broker.
[[noreturn]] void Become(std::vector<char*>& words, int channel) {
  dup2(channel, kChannel);  // `channel` has a different number than kChannel, see Serve.
  execv(kProgram, words.data());
  _exit(127);
}

SpawnAnswer Serve(std::span<char> request, UniqueFd channel) {
  std::string name = "gpushm-broker";
  std::vector<char*> words = {name.data()};
  for (char* at = request.data(); at < request.data() + request.size(); at += std::strlen(at) + 1) {
    words.push_back(at);
  }
  words.push_back(nullptr);
  // Like fork(), but the broker becomes the parent. This process has only one thread.
  const auto pid = static_cast<pid_t>(syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
  if (pid == 0) Become(words, channel.get());
  if (pid < 0) return {.error = errno, .pid = -1};
  return {.error = 0, .pid = pid};
}

}  // namespace

int SpawnerMain(int /*argc*/, char** /*argv*/) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "gpushm-spawner");
  fcntl(kChannel, F_SETFD, FD_CLOEXEC);
  std::vector<char> request(kMaxRequestBytes);
  for (;;) {
    Received received = Receive(request);
    if (received.bytes <= 0) return 0;
    SpawnAnswer answer{.error = EINVAL, .pid = -1};
    const auto size = static_cast<size_t>(received.bytes);
    if (received.descriptors.size() == 1 && request[size - 1] == '\0') {
      answer = Serve(std::span(request).first(size), std::move(received.descriptors[0]));
    }
    if (send(kChannel, &answer, sizeof answer, MSG_NOSIGNAL) < 0) return 1;
  }
}

Result<bool> SendDescriptors(int socket, std::string_view bytes, std::span<const int> descriptors) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  if (descriptors.size() > kMaxDescriptors) {
    return Fail(Code::kInternal, Concat("cannot send ", descriptors.size(),
                                        " descriptors; the limit is ", kMaxDescriptors));
  }
  iovec vector{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const ancillary = CMSG_FIRSTHDR(&header);
    ancillary->cmsg_level = SOL_SOCKET;
    ancillary->cmsg_type = SCM_RIGHTS;
    ancillary->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(ancillary), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return true;
  if (errno == EAGAIN || errno == ETOOMANYREFS) return false;
  return FailSystem(errno, "sendmsg");
}

Result<Order> ReceiveOrder(size_t descriptors) {
  std::array<char, 256> bytes{};
  Received received = Receive(bytes);
  const auto size = static_cast<size_t>(std::max<ssize_t>(received.bytes, 0));
  const std::string_view text(bytes.data(), size);
  if (!text.ends_with('\n') || received.descriptors.size() != descriptors) {
    return Fail(Code::kInternal,
                Concat("the broker sent an unexpected order: ", size, " bytes and ",
                       received.descriptors.size(), " descriptors instead of a line and ",
                       descriptors, " descriptors"));
  }
  return Order{std::string(text.substr(0, text.size() - 1)), std::move(received.descriptors)};
}

}  // namespace gpushm::broker
