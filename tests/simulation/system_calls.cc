// The system calls that the world replaces, by the linker's --wrap: they wait in virtual time, and
// they are the points at which another process may run. Outside of a world they are the kernel's.
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "contract/protocol/link.h"
#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "tests/simulation/driver.h"
#include "tests/simulation/world.h"

namespace gpushm::simulation {
namespace {

// The world, if a process of it runs.
World* Running() {
  World* const world = World::Current();
  return world != nullptr && world->running() != nullptr ? world : nullptr;
}

int64_t WakeNs(const World& world, int timeout_ms) {
  return timeout_ms < 0 ? kForever : world.now_ns() + timeout_ms * kMs;
}

// For the trace: what kind of message it is.
void NoteMessage(World* world, const msghdr* header, ssize_t bytes) {
  if (header->msg_iovlen != 1 || bytes < static_cast<ssize_t>(sizeof(protocol::LinkHeader))) return;
  protocol::LinkHeader start{};
  std::memcpy(&start, header->msg_iov[0].iov_base, sizeof start);
  const bool link = start.magic == protocol::kLinkMagic;
  const int kind = start.kind & ~protocol::kReplyBit;
  world->Note(Concat(link                                      ? "states "
                     : (start.kind & protocol::kReplyBit) != 0 ? "replies "
                                                               : "asks ",
                     kind, " in ", bytes, " bytes, status ", link ? 0 : start.reserved));
}

}  // namespace
}  // namespace gpushm::simulation

using gpushm::simulation::Running;
using gpushm::simulation::World;

extern "C" {

int __real_clock_gettime(clockid_t clock, timespec* time);
int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms);
int __real_poll(pollfd* descriptors, nfds_t count, int timeout_ms);
ssize_t __real_sendmsg(int socket, const msghdr* header, int flags);
int __real_socket(int domain, int type, int protocol);
int __real_accept4(int listener, sockaddr* address, socklen_t* size, int flags);
ssize_t __real_pwrite(int file, const void* bytes, size_t count, off_t offset);
int __real_rename(const char* from, const char* to);
void* __real_dlopen(const char* path, int flags);
void* __real_dlsym(void* library, const char* name);

int __wrap_clock_gettime(clockid_t clock, timespec* time) {
  const World* const world = World::Current();
  if (world == nullptr || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME)) {
    return __real_clock_gettime(clock, time);
  }
  const int64_t ns = clock == CLOCK_MONOTONIC ? world->now_ns() : world->unix_ns();
  *time = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  return 0;
}

// An event loop's. What happens next is the seed's choice: a task of a worker, a timer, or some of
// the events that are ready, in any order.
int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  World* const world = Running();
  if (world == nullptr) return __real_epoll_wait(epoll, events, most, timeout_ms);
  const int64_t wake_ns = gpushm::simulation::WakeNs(*world, timeout_ms);
  world->running()->blocks_for_workers = false;
  world->running()->at_rest = true;
  world->Yield();
  for (;;) {
    std::array<epoll_event, 256> ready{};
    const int count = __real_epoll_wait(epoll, ready.data(), ready.size(), 0);
    const bool task = world->HasTask();
    const bool timer = world->now_ns() >= wake_ns;
    const auto choices = static_cast<uint64_t>(std::max(count, 0)) + task + timer;
    if (choices == 0) {
      world->running()->at_rest = true;
      world->Expect(epoll, EPOLLIN);
      world->Idle(wake_ns);
      world->Expect(epoll, 0);
      continue;
    }
    uint64_t choice = world->Pick(choices);
    if (task && choice-- == 0) {
      world->RunTask();
      world->running()->at_rest = true;
      world->Yield();
      continue;
    }
    if (timer && choice == 0) return 0;
    // The kernel's order depends on the past; the numbers of descriptors do not.
    std::sort(ready.begin(), ready.begin() + count,
              [](const auto& a, const auto& b) { return a.data.u64 < b.data.u64; });
    const auto wanted = world->Chance(3) ? 1 + world->Pick(static_cast<uint64_t>(count)) : 1;
    const int taken = std::min<int>(static_cast<int>(wanted), most);
    for (int i = 0; i < taken; ++i) {
      std::swap(ready[static_cast<size_t>(i)],
                ready[static_cast<size_t>(i) + world->Pick(static_cast<uint64_t>(count - i))]);
      events[i] = ready[static_cast<size_t>(i)];
    }
    return taken;
  }
}

int __wrap_poll(pollfd* descriptors, nfds_t count, int timeout_ms) {
  World* const world = Running();
  if (world == nullptr || timeout_ms == 0) return __real_poll(descriptors, count, timeout_ms);
  const int64_t wake_ns = gpushm::simulation::WakeNs(*world, timeout_ms);
  for (world->Yield();;) {
    const int ready = __real_poll(descriptors, count, 0);
    if (ready != 0 || world->now_ns() >= wake_ns) return ready;
    for (nfds_t i = 0; i < count; ++i) {
      world->Expect(descriptors[i].fd, static_cast<uint32_t>(descriptors[i].events));
    }
    world->Idle(wake_ns);
    for (nfds_t i = 0; i < count; ++i) world->Expect(descriptors[i].fd, 0);
  }
}

ssize_t __wrap_sendmsg(int socket, const msghdr* header, int flags) {
  World* const world = Running();
  if (world == nullptr) return __real_sendmsg(socket, header, flags);
  world->Interleave();
  const ssize_t sent = __real_sendmsg(socket, header, flags);
  const int error = errno;
  gpushm::simulation::NoteMessage(world, header, sent);
  world->Interleave();
  errno = error;
  return sent;
}

// In some worlds a socket takes a few messages only, so that its other end's delay is felt.
int __wrap_socket(int domain, int type, int protocol) {
  const int made = __real_socket(domain, type, protocol);
  if (World* const world = Running()) world->Narrow(made);
  return made;
}

int __wrap_accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  const int made = __real_accept4(listener, address, size, flags);
  if (World* const world = Running()) world->Narrow(made);
  return made;
}

// What a broker leaves in its folder while it starts: it may be killed before and after each.
ssize_t __wrap_pwrite(int file, const void* bytes, size_t count, off_t offset) {
  World* const world = Running();
  if (world != nullptr) world->Yield();
  const ssize_t written = __real_pwrite(file, bytes, count, offset);
  if (world != nullptr) world->Yield();
  return written;
}

int __wrap_rename(const char* from, const char* to) {
  World* const world = Running();
  if (world != nullptr) world->Yield();
  const int renamed = __real_rename(from, to);
  if (world != nullptr) world->Yield();
  return renamed;
}

void* __wrap_dlopen(const char* path, int flags) {
  if (path != nullptr && std::string_view(path).starts_with(gpushm::simulation::kDriverFolder)) {
    return gpushm::simulation::DriverLibrary();
  }
  return __real_dlopen(path, flags);
}

void* __wrap_dlsym(void* library, const char* name) {
  if (library == gpushm::simulation::DriverLibrary()) {
    return gpushm::simulation::DriverSymbol(name);
  }
  return __real_dlsym(library, name);
}

}  // extern "C"
