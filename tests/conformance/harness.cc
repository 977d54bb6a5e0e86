#include "tests/conformance/harness.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "platform/base/testing/descriptors.h"

namespace gpushm::conformance {
namespace {

enum Verdict : int { kPassed = 0, kFailed = 1, kSkipped = 2 };

// Shared by all processes of a case: its verdict and notes.
struct Board {
  std::atomic<int> verdict = kPassed;
  std::atomic<size_t> used = 0;
  char text[16384] = {};
};

struct CaseResult {
  std::string name;
  int verdict;
  std::string note;
  double seconds;
};

Board* board = nullptr;
DriverInfo* driver_info = nullptr;
std::vector<CaseResult>& Results() {
  static auto* const results = new std::vector<CaseResult>();
  return *results;
}

template <typename T>
T* SharedMemory() {
  void* const memory =
      mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) T();
}

void Decide(Verdict verdict) {
  int passed = kPassed;
  board->verdict.compare_exchange_strong(passed, verdict);
}

// Waits for a child process. False: it still runs at the deadline.
bool WaitFor(pid_t pid, int wait_ms, int* status) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd >= 0) {
    pollfd poller{pidfd, POLLIN, 0};
    const int ready = poll(&poller, 1, wait_ms);
    close(pidfd);
    if (ready == 0) return false;
  }
  return waitpid(pid, status, 0) == pid;
}

void EnterNamespaces(const ChildOptions& options) {
  int flags = 0;
  if (options.own_ipc_namespace) flags |= CLONE_NEWIPC;
  if (options.own_network_namespace) flags |= CLONE_NEWNET;
  if (options.own_pid_namespace) flags |= CLONE_NEWPID;
  if (options.private_dev_shm || options.own_pid_namespace) flags |= CLONE_NEWNS;
  if (flags != 0 && unshare(flags) != 0) {
    SkipCase(std::string("namespaces need root or user namespaces: ") + std::strerror(errno));
  }
  if (options.private_dev_shm && (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                                  mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) != 0)) {
    SkipCase(std::string("cannot mount a private /dev/shm: ") + std::strerror(errno));
  }
}

// The driver reads /proc/self, and cuInit fails with OPERATING_SYSTEM if /proc belongs to another
// PID namespace. A container runtime mounts its own /proc, and so does this function.
void MountOwnProc() {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", 0, nullptr) != 0) {
    SkipCase(std::string("cannot mount /proc of a PID namespace: ") + std::strerror(errno));
  }
}

void BecomeUser(int uid) {
  if (uid < 0) return;
  const auto id = static_cast<uid_t>(uid);
  if (setresgid(id, id, id) != 0 || setresuid(id, id, id) != 0) {
    SkipCase("another uid needs root");
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // Changing the uid cleared it.
}

[[noreturn]] void RunBody(const std::function<void(Channel&)>& body, const ChildOptions& options,
                          UniqueFd socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const std::string& variable : options.environment) {
    const size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  if (options.own_pid_namespace) MountOwnProc();
  BecomeUser(options.uid);
  {
    Channel channel(std::move(socket));
    // First, Start() receives the PID of a namespace's first process over the same socket.
    if (options.own_pid_namespace) channel.Await();
    body(channel);
  }
  _exit(0);
}

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    }
  }
  return out;
}

void WriteReport(const std::string& path) {
  const char* const words[] = {"pass", "fail", "skip"};
  std::ofstream out(path);
  const DriverInfo& info = Driver();
  out << "{\"driver\": \"" << (info.simulated ? "simulated" : "real")
      << "\", \"version\": " << info.version << ", \"device\": \"" << Escape(info.name)
      << "\", \"devices\": " << info.devices << ", \"cases\": [\n";
  for (size_t i = 0; i < Results().size(); ++i) {
    const CaseResult& result = Results()[i];
    out << (i == 0 ? " " : ",\n ") << "{\"name\": \"" << result.name << "\", \"result\": \""
        << words[result.verdict] << "\", \"seconds\": " << result.seconds << ", \"note\": \""
        << Escape(result.note) << "\"}";
  }
  out << "\n]}\n";
}

}  // namespace

void Note(const std::string& text) {
  const size_t at = board->used.fetch_add(text.size() + 1);
  if (at + text.size() + 1 >= sizeof board->text) return;
  std::memcpy(board->text + at, text.data(), text.size());
  board->text[at + text.size()] = '\n';
}

void FailCase(const std::string& why) {
  Note("FAILED: " + why);
  Decide(kFailed);
  _exit(1);
}

bool UnderMps() {
  const char* const folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return folder != nullptr && access((std::string(folder) + "/control").c_str(), F_OK) == 0;
}

void SkipCase(const std::string& what_is_missing) {
  Note(what_is_missing);
  Decide(kSkipped);
  _exit(1);
}

void Expect(bool condition, const std::string& what) {
  if (!condition) FailCase(what);
}

void ExpectAnswer(CUresult got, CUresult want, const std::string& what) {
  Note(what + ": " + NameOf(got));
  if (got != want) FailCase(what + " should return " + NameOf(want));
}

void Must(CUresult result, const std::string& what) {
  if (result != CUDA_SUCCESS) FailCase(what + ": " + NameOf(result));
}

void Channel::Send(const void* data, size_t size_bytes, int fd) {
  if (!testing::SendWithDescriptor(socket_.get(), fd, data, size_bytes)) {
    FailCase("the peer process has ended");
  }
}

UniqueFd Channel::Receive(void* data, size_t size_bytes) {
  UniqueFd fd;
  if (!testing::ReceiveWithDescriptor(socket_.get(), &fd, data, size_bytes)) {
    FailCase("no message from the peer process");
  }
  return fd;
}

Child Start(const std::function<void(Channel&)>& body, const ChildOptions& options) {
  int sockets[2];
  Expect(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
  UniqueFd ours(sockets[0]);
  UniqueFd theirs(sockets[1]);
  const timeval limit{20, 0};
  for (const int fd : sockets) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const pid_t first = fork();
  Expect(first >= 0, "fork");
  if (first == 0) {
    ours.Reset();
    EnterNamespaces(options);
    if (!options.own_pid_namespace) RunBody(body, options, std::move(theirs));
    // The first process of a PID namespace is the next one to be forked.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const pid_t second = fork();
    if (second == 0) RunBody(body, options, std::move(theirs));
    Channel(UniqueFd(dup(theirs.get()))).Send(&second, sizeof second);
    theirs.Reset();
    int status = 0;
    waitpid(second, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  theirs.Reset();
  pid_t killed = first;
  if (options.own_pid_namespace) {
    Channel channel(UniqueFd(dup(ours.get())));
    channel.Receive(&killed, sizeof killed);
    channel.Signal();
  }
  return {first, killed, std::move(ours)};
}

void Child::Kill() {
  kill(killed_, SIGKILL);
  int status = 0;
  Expect(WaitFor(waited_, 10'000, &status), "a killed process has not ended after 10 s");
}

void Child::Join() {
  int status = 0;
  Expect(WaitFor(waited_, 30'000, &status), "a process of the case does not end");
  Expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process of the case failed");
}

const CudaApi& Cuda() {
  const CudaApi* const api = Take(CudaApi::Load(DriverFolderFromEnvironment()));
  if (const auto ready = api->Init(); !ready) FailCase(ready.error().ToString());
  return *api;
}

const CudaApi& UseContext() {
  static PrimaryContext* context = nullptr;
  const CudaApi& api = Cuda();
  if (context == nullptr) context = new PrimaryContext(Take(PrimaryContext::Retain(api, 0)));
  if (const auto made = context->MakeCurrent(); !made) FailCase(made.error().ToString());
  return api;
}

std::string NameOf(CUresult result) {
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  const char* name = nullptr;
  if (api) (*api)->cuGetErrorName(result, &name);
  return name == nullptr ? std::to_string(static_cast<int>(result)) : name;
}

Mapped MapDescriptor(int fd, uint64_t size_bytes, Access access, CUdevice device) {
  const CudaApi& api = Cuda();
  DeviceMemory memory = Take(DeviceMemory::Import(api, fd));
  DeviceMapping mapping = Take(DeviceMapping::Map(api, memory, size_bytes, device, access));
  return {std::move(memory), std::move(mapping)};
}

Holder HoldMemory() {
  Child child = Start([](Channel& channel) {
    const UniqueFd fd = CreateDescriptor(kChunkBytes);
    channel.Send("d", 1, fd.get());
    channel.Await();
  });
  UniqueFd descriptor = child.channel.ReceiveDescriptor();
  return {std::move(child), std::move(descriptor)};
}

UniqueFd CreateDescriptor(uint64_t size_bytes, CUdevice device) {
  const DeviceMemory memory = Take(DeviceMemory::Create(Cuda(), device, size_bytes));
  return Take(memory.Export());
}

uint64_t ReadWord(CUdeviceptr address) {
  uint64_t value = 0;
  Must(Cuda().cuMemcpyDtoH(&value, address, sizeof value), "cuMemcpyDtoH");
  return value;
}

void WriteWord(CUdeviceptr address, uint64_t value) {
  Must(Cuda().cuMemcpyHtoD(address, &value, sizeof value), "cuMemcpyHtoD");
}

CUresult QueryFor(CUstream stream, int wait_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
  for (;;) {
    const CUresult result = Cuda().cuStreamQuery(stream);
    if (result != CUDA_ERROR_NOT_READY || std::chrono::steady_clock::now() > end) return result;
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // sleep: the step of a poll.
  }
}

uint64_t UsedBytes() {
  const NvmlApi& nvml = *Take(NvmlApi::Load(DriverFolderFromEnvironment()));
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory{};
  if (nvml.nvmlDeviceGetHandleByUUID(Driver().uuid, &device) != NVML_SUCCESS ||
      nvml.nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) {
    SkipCase("NVML does not show the memory of this device");
  }
  return memory.used;
}

bool Near(uint64_t bytes, uint64_t expected, uint64_t tolerance_bytes) {
  return bytes + tolerance_bytes >= expected && bytes <= expected + tolerance_bytes;
}

uint64_t AwaitUsed(uint64_t bytes, int wait_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
  uint64_t used = UsedBytes();
  while (!Near(used, bytes) && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // sleep: the step of a poll.
    used = UsedBytes();
  }
  return used;
}

const DriverInfo& Driver() {
  if (driver_info != nullptr) return *driver_info;
  driver_info = SharedMemory<DriverInfo>();
  const pid_t pid = fork();
  if (pid == 0) {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    const auto devices = api ? ListDevices(**api) : std::unexpected(api.error());
    if (devices && !devices->empty()) {
      const DeviceInfo& first = devices->front();
      driver_info->simulated = (*api)->simulated();
      driver_info->version = (*api)->driver_version();
      driver_info->devices = static_cast<int>(devices->size());
      driver_info->total_bytes = first.total_bytes;
      std::snprintf(driver_info->name, sizeof driver_info->name, "%s", first.name.c_str());
      std::snprintf(driver_info->uuid, sizeof driver_info->uuid, "%s",
                    first.uuid.ToString().c_str());
      driver_info->usable = true;
    } else if (!devices) {
      std::snprintf(driver_info->problem, sizeof driver_info->problem, "%s",
                    devices.error().ToString().c_str());
    }
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return *driver_info;
}

void RunCase(const char* name, int deadline_s, void (*body)()) {
  ASSERT_TRUE(Driver().usable) << Driver().problem;
  board = SharedMemory<Board>();
  const auto begin = std::chrono::steady_clock::now();
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
  }
  setpgid(pid, pid);
  int status = 0;
  const bool ended = WaitFor(pid, deadline_s * 1000, &status);
  kill(-pid, SIGKILL);
  if (!ended) waitpid(pid, &status, 0);
  std::string note(board->text, std::min(board->used.load(), sizeof board->text - 1));
  int verdict = board->verdict;
  const bool died = !ended || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  if (died && verdict == kPassed) {
    verdict = kFailed;
    note += ended ? "FAILED: the case's process died\n" : "FAILED: the deadline has passed\n";
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  Results().push_back({name, verdict, note, took.count()});
  munmap(board, sizeof *board);
  board = nullptr;
  if (!note.empty()) std::printf("%s", note.c_str());
  if (verdict == kFailed) ADD_FAILURE() << note;
  if (verdict == kSkipped) GTEST_SKIP() << note;
}

}  // namespace gpushm::conformance

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string report;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--report") == 0 && i + 1 < argc) report = argv[++i];
  }
  const int result = RUN_ALL_TESTS();
  if (!report.empty()) gpushm::conformance::WriteReport(report);
  return result;
}
