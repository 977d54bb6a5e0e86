// The building blocks of every conformance case. A case is a function that runs in its own process,
// under a deadline, and starts more processes for its CUDA work. The test program itself never
// calls cuInit. In every case, the case's whole process group is killed at its end.
//
// A case fails at the first unmet expectation, in whatever process it happens. Notes record the
// driver's answers, so that reports of two drivers can be compared.
#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "platform/base/unique_fd.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "platform/driver/nvml_api.h"

namespace gpushm::conformance {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kChunkBytes = 2 * kMiB;

// --- Verdicts, from any process of the case. ---
void Note(const std::string& text);
[[noreturn]] void FailCase(const std::string& why);
// Whether this process and its children are clients of an MPS daemon.
bool UnderMps();

[[noreturn]] void SkipCase(const std::string& what_is_missing);
void Expect(bool condition, const std::string& what);
// Notes the answer; the case fails unless it is `want`.
void ExpectAnswer(CUresult got, CUresult want, const std::string& what);
// For steps that the case does not test.
void Must(CUresult result, const std::string& what);
template <typename T>
T Take(Result<T> result) {
  if (!result) FailCase(result.error().ToString());
  return std::move(*result);
}

// --- A socket between the processes of a case; a receive waits at most 20 s. ---
class Channel {
 public:
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}
  void Send(const void* data, size_t size_bytes, int fd = -1);
  UniqueFd Receive(void* data, size_t size_bytes);
  UniqueFd ReceiveDescriptor() {
    char byte = 0;
    return Receive(&byte, 1);
  }
  void Signal() { Send("x", 1); }
  void Await() {
    char byte = 0;
    Receive(&byte, 1);
  }
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

struct ChildOptions {
  bool own_pid_namespace = false;  // It sees itself as PID 1.
  bool own_ipc_namespace = false;
  bool own_network_namespace = false;
  bool private_dev_shm = false;
  int uid = -1;
  std::vector<std::string> environment = {};  // "NAME=value"
};

class Child {
 public:
  Child(pid_t waited, pid_t killed, UniqueFd socket)
      : channel(std::move(socket)), waited_(waited), killed_(killed) {}
  void Kill();  // SIGKILL, and waits until it has ended.
  void Join();  // Fails the case unless it ends successfully.
  void Finish() {
    channel.Signal();
    Join();
  }
  Channel channel;

 private:
  pid_t waited_;
  pid_t killed_;
};

Child Start(const std::function<void(Channel&)>& body, const ChildOptions& options = {});

// A process that has memory, does nothing with it and awaits its end; and the memory's descriptor.
struct Holder : Child {
  UniqueFd descriptor;
};
Holder HoldMemory();

// --- CUDA in a child. ---
const CudaApi& Cuda();        // Loaded and initialised.
const CudaApi& UseContext();  // The same, with device 0's primary context current.
std::string NameOf(CUresult result);
struct Mapped {
  DeviceMemory memory;
  DeviceMapping mapping;
  CUdeviceptr address() const { return mapping.address(); }
};
Mapped MapDescriptor(int fd, uint64_t size_bytes, Access access = Access::kReadWrite,
                     CUdevice device = 0);
UniqueFd CreateDescriptor(uint64_t size_bytes, CUdevice device = 0);
uint64_t ReadWord(CUdeviceptr address);
void WriteWord(CUdeviceptr address, uint64_t value);
// Polls cuStreamQuery until it returns something other than NOT_READY; returns NOT_READY after
// `wait_ms`.
CUresult QueryFor(CUstream stream, int wait_ms);

// --- The card, as NVML shows it to the case's own process. ---
uint64_t UsedBytes();
// Waits until the use is within 64 MiB of `bytes`; returns the last value seen.
uint64_t AwaitUsed(uint64_t bytes, int wait_ms = 5000);
bool Near(uint64_t bytes, uint64_t expected, uint64_t tolerance_bytes = 64 * kMiB);

struct DriverInfo {
  bool usable = false;
  bool simulated = false;
  int version = 0;
  int devices = 0;
  uint64_t total_bytes = 0;
  char name[128] = {};
  char uuid[64] = {};
  char problem[512] = {};
};
const DriverInfo& Driver();

void RunCase(const char* name, int deadline_s, void (*body)());

}  // namespace gpushm::conformance

#define CONFORMANCE_CASE(name, deadline_s)                                                   \
  static void name##Case();                                                                  \
  TEST(Conformance, name) { ::gpushm::conformance::RunCase(#name, deadline_s, name##Case); } \
  static void name##Case()
