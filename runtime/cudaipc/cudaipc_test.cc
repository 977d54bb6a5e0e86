// Goal: CUDA, and nobody else, is told a number of this process in place of its PID. Method: this
// program has the library before libc, as a program with a preload has, and loads small modules
// that ask as CUDA's libraries do.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

extern "C" pid_t gpushm_cudaipc_pid(void);

namespace {

constexpr pid_t kLargestPid = 1 << 22;

pid_t RealPid() { return static_cast<pid_t>(syscall(SYS_getpid)); }

class Caller {
 public:
  explicit Caller(const char* file)
      : handle_(dlopen((std::string(CALLERS "/") + file).c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) ADD_FAILURE() << dlerror();
  }
  ~Caller() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  using Function = pid_t (*)();
  template <typename F = Function>
  F function(const char* name) const {
    return reinterpret_cast<F>(dlsym(handle_, name));
  }
  pid_t Ask() const { return function("Ask")(); }
  pid_t AskElsewhere() const { return function("AskElsewhere")(); }

 private:
  void* handle_;
};

// What `body` finds out in a child that `start` makes, as fork() does.
struct Answers {
  pid_t pid = -1, told = -1, told_again = -1;
};
using Start = std::function<pid_t()>;
Answers InChild(const Start& start, const std::function<void(Answers*)>& body) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t child = start();
  if (child == 0) {
    Answers answers;
    body(&answers);
    _exit(write(ends[1], &answers, sizeof answers) == sizeof answers ? 0 : 1);
  }
  EXPECT_GT(child, 0) << strerror(errno);
  close(ends[1]);
  Answers answers;
  EXPECT_EQ(read(ends[0], &answers, sizeof answers), static_cast<ssize_t>(sizeof answers));
  close(ends[0]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return answers;
}

// Without the C library's fork(), and so without its handlers.
pid_t RawFork(unsigned long flags) {
  return static_cast<pid_t>(
      syscall(SYS_clone, flags | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

class CudaIpcTest : public ::testing::Test {
 protected:
  void ExpectAnotherNumberInChild(const Start& start) const {
    const Answers child = InChild(
        start, [&](Answers* answers) { *answers = {getpid(), driver_.Ask(), driver_.Ask()}; });
    EXPECT_GT(child.told, kLargestPid);
    EXPECT_NE(child.told, gpushm_cudaipc_pid());
    EXPECT_EQ(child.told_again, child.told);
    EXPECT_NE(child.pid, RealPid());
    EXPECT_LE(child.pid, kLargestPid);
  }

  Caller plain_{"plain.so"};
  Caller driver_{"libcuda.so.1"};
};

TEST_F(CudaIpcTest, EverybodyElseSeesTheRealPid) {
  EXPECT_EQ(getpid(), RealPid());
  EXPECT_EQ(plain_.Ask(), RealPid());
  EXPECT_EQ(plain_.AskElsewhere(), RealPid());
  EXPECT_EQ(kill(getpid(), 0), 0);
}

TEST_F(CudaIpcTest, TheDriverIsToldOneNumberThatNoProcessHas) {
  const pid_t told = driver_.Ask();
  EXPECT_GT(told, kLargestPid);
  EXPECT_EQ(driver_.Ask(), told);
  EXPECT_EQ(driver_.AskElsewhere(), told) << "all of the driver counts";
  EXPECT_EQ(gpushm_cudaipc_pid(), told);
}

TEST_F(CudaIpcTest, ARuntimeInsideAnyModuleIsToldTheDriversNumber) {
  const Caller module("runtime.so");
  EXPECT_EQ(module.Ask(), gpushm_cudaipc_pid());
  EXPECT_EQ(module.AskElsewhere(), RealPid()) << "the rest of the module is no CUDA";
}

TEST_F(CudaIpcTest, UcxIsToldTheDriversNumber) {
  EXPECT_EQ(Caller("libuct_cuda.so.0").Ask(), gpushm_cudaipc_pid());
}

TEST_F(CudaIpcTest, TheKernelIsGivenTheRealPid) {
  for (const Caller* caller : {&plain_, &driver_}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
    const int on = 1;
    setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    const auto send = caller->function<int (*)(int)>("SendCredentials");
    ASSERT_EQ(send(ends[0]), 0) << strerror(errno);
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) std::array<char, 256> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ASSERT_EQ(recvmsg(ends[1], &message, 0), 1);
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr) FAIL() << "no credentials came";
    ucred sender{};
    memcpy(&sender, CMSG_DATA(header), sizeof sender);
    EXPECT_EQ(sender.pid, RealPid());
    for (const int end : ends) close(end);
  }
}

TEST_F(CudaIpcTest, OtherMessagesPassUnchanged) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
  std::string text = "text";
  iovec data{text.data(), text.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  // Descriptors as many as the kernel takes: larger than what the library copies.
  constexpr size_t kDescriptors = 253;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(kDescriptors * sizeof(int));
  const std::vector<int> descriptors(kDescriptors, ends[1]);
  memcpy(CMSG_DATA(part), descriptors.data(), kDescriptors * sizeof(int));
  EXPECT_EQ(sendmsg(ends[0], &message, 0), 4) << strerror(errno);
  message.msg_control = nullptr;
  message.msg_controllen = 0;
  EXPECT_EQ(sendmsg(ends[0], &message, 0), 4) << strerror(errno);
  EXPECT_EQ(sendmsg(-1, &message, 0), -1);
  EXPECT_EQ(errno, EBADF);
  for (const int end : ends) close(end);
}

// An address says nothing about a module that was there before.
TEST(CudaIpcModuleTest, AModuleInThePlaceOfAnotherIsAnother) {
  int same_place = 0;
  void* before = nullptr;
  for (const char* file : {"runtime.so", "plain.so", "runtime.so", "plain.so"}) {
    const Caller module(file);
    void* const here = reinterpret_cast<void*>(module.function("Ask"));
    same_place += here == before ? 1 : 0;
    before = here;
    const bool is_cuda = std::string(file) == "runtime.so";
    EXPECT_EQ(module.Ask(), is_cuda ? gpushm_cudaipc_pid() : RealPid()) << file;
  }
  EXPECT_GT(same_place, 0) << "the loader gave each module another place: nothing was tested";
}

TEST_F(CudaIpcTest, ErrnoStays) {
  const Caller module("runtime.so");
  for (const Caller* caller : std::initializer_list<const Caller*>{&plain_, &module, &driver_}) {
    errno = EXDEV;
    caller->Ask();
    EXPECT_EQ(errno, EXDEV);
  }
}

// With an older glibc, a module that came later is looked up in a file.
TEST_F(CudaIpcTest, ErrnoStaysWithoutDescriptors) {
  const Answers child = InChild(fork, [&](Answers* answers) {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    setrlimit(RLIMIT_NOFILE, &none);
    errno = EXDEV;
    answers->pid = plain_.Ask() == RealPid() ? 1 : 0;
    answers->told = errno;
  });
  EXPECT_EQ(child.pid, 1);
  EXPECT_EQ(child.told, EXDEV);
}

TEST_F(CudaIpcTest, ThreadsAgree) {
  std::vector<std::thread> threads;
  std::atomic<int> differ = 0;
  const pid_t told = gpushm_cudaipc_pid();
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) differ += driver_.Ask() == told ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differ, 0);
}

// ---- Signal handlers, on a small stack, while threads load and unload modules.

Caller::Function handler_driver, handler_plain;
std::atomic<int> handled, handled_wrong;

void AskInHandler(int) {
  const int kept_errno = errno;
  errno = EXDEV;
  const bool right = handler_driver() == gpushm_cudaipc_pid() && handler_plain() == RealPid();
  if (!right || errno != EXDEV) ++handled_wrong;
  ++handled;
  errno = kept_errno;
}

TEST_F(CudaIpcTest, SignalHandlersMayAskWhileModulesComeAndGo) {
  handler_driver = driver_.function("Ask");
  handler_plain = plain_.function("Ask");
  handled = handled_wrong = 0;
  std::atomic<bool> over = false;
  const auto load = [&](auto* stack) {
    stack_t small{};
    small.ss_sp = stack->data();
    small.ss_size = stack->size();
    ASSERT_EQ(sigaltstack(&small, nullptr), 0);
    while (!over) Caller("runtime.so").Ask();
    small.ss_flags = SS_DISABLE;
    sigaltstack(&small, nullptr);
  };
  struct sigaction action{}, former{};
  action.sa_handler = AskInHandler;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &former), 0);
  // What the kernel itself puts there, and 2 KiB.
  std::vector<char> first(static_cast<size_t>(sysconf(_SC_MINSIGSTKSZ)) + 2048);
  std::vector<char> second(first.size());
  std::thread one(load, &first);
  std::thread two(load, &second);
  for (int i = 0; i < 1'000'000 && handled < 2000; ++i) {
    pthread_kill(i % 2 == 0 ? one.native_handle() : two.native_handle(), SIGUSR1);
    if (i % 16 == 0) sched_yield();
  }
  over = true;
  one.join();
  two.join();
  sigaction(SIGUSR1, &former, nullptr);
  EXPECT_GE(handled, 2000);
  EXPECT_EQ(handled_wrong, 0);
}

// ---- Children.

TEST_F(CudaIpcTest, AChildHasAnotherNumber) { ExpectAnotherNumberInChild(fork); }

// libc learns of no such child: only the kernel takes the parent's number away from it.
TEST_F(CudaIpcTest, AChildThatTheKernelMadeHasAnotherNumber) {
  ExpectAnotherNumberInChild([] { return RawFork(0); });
}

// Makes the page with the number read-only: whoever writes there now ends by SIGSEGV. The kernel's
// list of mappings shows which page is cleared by a fork ("wf").
bool ForbidToWriteTheNumber() {
  std::ifstream maps("/proc/self/smaps");
  uintptr_t start = 0;
  uintptr_t end = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0;
    unsigned long to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      start = from;
      end = to;
    } else if (line.starts_with("VmFlags:") && line.contains(" wf")) {
      return mprotect(reinterpret_cast<void*>(start), end - start, PROT_READ) == 0;
    }
  }
  return false;
}

// Its memory is its parent's, and so is the number.
TEST_F(CudaIpcTest, AChildOfVforkWritesNothing) {
  const auto ask_in_vfork = [&](Answers* answers) {
    if (!ForbidToWriteTheNumber()) return;
    volatile pid_t told = -1;
    const Caller::Function ask = driver_.function("Ask");
    // NOLINTBEGIN(clang-analyzer-*,bugprone-unsafe-functions): what is tested.
    const pid_t child = vfork();
    if (child == 0) {
      told = ask();
      _exit(0);
    }
    // NOLINTEND(clang-analyzer-*,bugprone-unsafe-functions)
    waitpid(child, nullptr, 0);
    *answers = {RealPid(), told, driver_.Ask()};
  };
  // Nobody has asked in this child before the child of its vfork does.
  const Answers child = InChild(fork, ask_in_vfork);
  EXPECT_GT(child.told, kLargestPid);
  EXPECT_EQ(child.told_again, child.told);
  EXPECT_NE(child.told, gpushm_cudaipc_pid());
}

// Both are PID 1, so a change of the PID does not tell them apart.
TEST_F(CudaIpcTest, Pid1AndItsChildThatIsPid1HaveDifferentNumbers) {
  const pid_t probe = fork();
  if (probe == 0) _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  int refused = 0;
  ASSERT_EQ(waitpid(probe, &refused, 0), probe);
  if (refused != 0) GTEST_SKIP() << "this system forbids namespaces";
  const auto in_namespace = [] { return RawFork(CLONE_NEWPID); };
  const auto in_namespace_by_fork = [] { return unshare(CLONE_NEWPID) == 0 ? fork() : -1; };
  const Answers both = InChild(in_namespace, [&](Answers* answers) {
    const auto ask = [&](Answers* inner) { *inner = {getpid(), driver_.Ask(), driver_.Ask()}; };
    const Answers raw = InChild(in_namespace, ask);
    const Answers forked = InChild(in_namespace_by_fork, ask);
    *answers = {getpid() == 1 && raw.pid == 1 && forked.pid == 1 ? 1 : 0, raw.told, forked.told};
    if (raw.told == driver_.Ask() || forked.told == driver_.Ask()) answers->told = 0;
  });
  EXPECT_EQ(both.pid, 1);
  EXPECT_GT(both.told, kLargestPid);
  EXPECT_GT(both.told_again, kLargestPid);
  EXPECT_NE(both.told, both.told_again);
}

// ---- Other programs.

// What a program prints that is started with this LD_PRELOAD.
std::string Output(const std::string& program, const std::string& preload) {
  const std::string command = "LD_PRELOAD='" + preload + "' '" CALLERS "/" + program + "' 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 256> text{};
  const size_t length = fread(text.data(), 1, text.size(), pipe);
  EXPECT_EQ(pclose(pipe), 0) << program;
  return {text.data(), length};
}

TEST(CudaIpcPreloadTest, AProgramMayContainTheRuntime) {
  EXPECT_EQ(Output("cudaipc_program", ""), "11\n");
  EXPECT_EQ(Output("cudaipc_program", LIBRARY), "21\n");
}

TEST(CudaIpcPreloadTest, AStaticProgramRunsAsWithoutIt) {
  if (access(CALLERS "/cudaipc_static_program", X_OK) != 0) {
    GTEST_SKIP() << "this system has no static libc";
  }
  EXPECT_EQ(Output("cudaipc_static_program", LIBRARY), "11\n");
}

// 0: neither the PID nor a number above all PIDs, but what the other library answers.
TEST(CudaIpcPreloadTest, AnotherPreloadStaysInForce) {
  const std::string other = CALLERS "/other_preload.so";
  EXPECT_EQ(Output("cudaipc_program", other), "00\n");
  EXPECT_EQ(Output("cudaipc_program", LIBRARY ":" + other), "20\n");
  EXPECT_EQ(Output("cudaipc_program", other + ":" LIBRARY), "00\n")
      << "in front of this library, it answers CUDA as well";
}

}  // namespace
