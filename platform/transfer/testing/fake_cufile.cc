// A libcufile.so.0 for tests. It reads and writes files itself, copies to and from the (simulated)
// GPU, checks the rules that gpushm must keep, and fails as GPUSHM_FAKE_CUFILE says. That variable
// has words separated by spaces:
//   no-driver open properties no-systems compat forced file memory   this step is refused
//   application    somebody else has cuFile open already
//   strict         and forbids compatibility mode
//   short          reads and writes only a part of what is requested
//   errno=N error=N at=BYTES   the transfer that reaches BYTES fails with errno N, or cuFile's N
#include <cuda.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "platform/driver/cuda_api.h"
#include "platform/transfer/cufile_api.h"

namespace {

using gpushm::cufile::Error;

constexpr int kNotInitialized = 5001;
constexpr int kNotSupported = 5008;
constexpr int kPinningFailed = 5036;
constexpr int kInvalidOpenFlags = 5019;
constexpr int kNotRegistered = 5024;
constexpr uint64_t kBlock = 4096;

struct State {
  int opened = 0;
  int files = 0;
  bool allow_compat = true;  // Like the real default.
  std::map<uintptr_t, size_t> memory;
};
State state;

bool Told(const std::string& word) {
  const char* const text = std::getenv("GPUSHM_FAKE_CUFILE");
  std::istringstream words(text == nullptr ? "" : text);
  for (std::string one; words >> one;) {
    if (one == word) return true;
  }
  return false;
}

// The number after "name="; -1: none.
int64_t Number(const std::string& name) {
  const char* const text = std::getenv("GPUSHM_FAKE_CUFILE");
  const std::string words = text == nullptr ? "" : text;
  const size_t at = words.find(name + "=");
  return at == std::string::npos ? -1 : std::strtoll(words.c_str() + at + name.size() + 1, {}, 10);
}

Error Fail(int error) { return {error, CUDA_SUCCESS}; }

const gpushm::CudaApi& Cuda() {
  return **gpushm::CudaApi::Load(gpushm::DriverFolderFromEnvironment());
}

// The checks for both directions. Returns the bytes to move, or the call's result.
ssize_t Begin(const void* base, size_t size, off_t file_offset, off_t buffer_offset) {
  const auto found = state.memory.find(reinterpret_cast<uintptr_t>(base));
  if (state.opened == 0) return -kNotInitialized;
  if (found == state.memory.end() || found->second < size + static_cast<size_t>(buffer_offset)) {
    return -kNotRegistered;
  }
  if (const int64_t at = Number("at"); at >= 0 && file_offset + static_cast<off_t>(size) > at) {
    if (const int64_t error = Number("errno"); error >= 0) {
      errno = static_cast<int>(error);
      return -1;
    }
    return static_cast<ssize_t>(-Number("error"));
  }
  // Deliberately not a multiple of any block size.
  return static_cast<ssize_t>(Told("short") && size > 100'000 ? 70'001 : size);
}

CUdeviceptr AddressOf(const void* base, off_t offset) {
  return reinterpret_cast<uintptr_t>(base) + static_cast<uint64_t>(offset);
}

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

EXPORTED const char* gpushm_fake_nvidia_fs() { return Told("no-driver") ? "/none" : "/proc/self"; }
// Number of things that are open or registered now.
EXPORTED long cuFileUseCount() {
  return state.opened + state.files + static_cast<long>(state.memory.size());
}
EXPORTED Error cuFileDriverOpen() {
  if (Told("open")) return Fail(kNotInitialized);
  if (Told("application")) {
    state.opened = 1;
    return Fail(gpushm::cufile::kAlreadyOpen);
  }
  state.opened = 1;  // It does not count: closing it closes it for all.
  return Fail(0);
}
EXPORTED Error cuFileDriverClose_v2() {
  state.opened = 0;
  state.allow_compat = true;
  return Fail(0);
}
EXPORTED Error cuFileDriverGetProperties(gpushm::cufile::Properties* properties) {
  if (Told("properties")) return Fail(kNotInitialized);
  properties->major_version = 2;
  properties->status_flags = Told("no-systems") ? 0 : 1u << 4;
  const bool compat = state.allow_compat && !Told("strict");
  properties->control_flags = compat ? gpushm::cufile::kAllowCompatMode : 0;
  return Fail(0);
}
EXPORTED Error cuFileSetParameterBool(int parameter, bool value) {
  if (state.opened != 0 || Told("application")) return Fail(gpushm::cufile::kAlreadyOpen);
  if (parameter == gpushm::cufile::kParameterAllowCompatMode && !Told("compat")) {
    state.allow_compat = value;
  }
  return Fail(0);
}
EXPORTED Error cuFileGetParameterBool(int parameter, bool* value) {
  *value = parameter == gpushm::cufile::kParameterForceCompatMode && Told("forced");
  return Fail(0);
}
EXPORTED Error cuFileHandleRegister(void** handle, gpushm::cufile::Descriptor* descriptor) {
  if (Told("file")) return Fail(kNotSupported);
  if ((fcntl(descriptor->handle.fd, F_GETFL) & O_NONBLOCK) != 0) return Fail(kInvalidOpenFlags);
  *handle = new int(descriptor->handle.fd);
  ++state.files;
  return Fail(0);
}
EXPORTED void cuFileHandleDeregister(void* handle) {
  delete static_cast<int*>(handle);
  --state.files;
}
EXPORTED Error cuFileBufRegister(const void* base, size_t size, int) {
  if (Told("memory")) return Fail(kPinningFailed);
  state.memory[reinterpret_cast<uintptr_t>(base)] = size;
  return Fail(0);
}
EXPORTED Error cuFileBufDeregister(const void* base) {
  state.memory.erase(reinterpret_cast<uintptr_t>(base));
  return Fail(0);
}
EXPORTED ssize_t cuFileRead(void* handle, void* base, size_t size, off_t file_offset,
                            off_t buffer_offset) {
  const ssize_t part = Begin(base, size, file_offset, buffer_offset);
  if (part <= 0) return part;
  // Whole blocks around the requested bytes, because the file has O_DIRECT.
  const uint64_t before = static_cast<uint64_t>(file_offset) % kBlock;
  const uint64_t room = (before + static_cast<uint64_t>(part) + kBlock - 1) / kBlock * kBlock;
  std::vector<std::byte> bytes(room + kBlock);
  std::byte* const aligned =
      bytes.data() + (kBlock - reinterpret_cast<uintptr_t>(bytes.data()) % kBlock) % kBlock;
  const ssize_t got =
      pread(*static_cast<int*>(handle), aligned, room, file_offset - static_cast<off_t>(before));
  if (got <= static_cast<ssize_t>(before)) return std::min<ssize_t>(got, 0);
  const ssize_t useful = std::min(got - static_cast<ssize_t>(before), part);
  if (Cuda().cuMemcpyHtoD(AddressOf(base, buffer_offset), aligned + before,
                          static_cast<size_t>(useful)) != CUDA_SUCCESS) {
    return -5011;
  }
  return useful;
}
EXPORTED ssize_t cuFileWrite(void* handle, const void* base, size_t size, off_t file_offset,
                             off_t buffer_offset) {
  ssize_t part = Begin(base, size, file_offset, buffer_offset);
  if (part <= 0) return part;
  part = std::max<ssize_t>(part / static_cast<ssize_t>(kBlock), 1) * static_cast<ssize_t>(kBlock);
  std::vector<std::byte> bytes(static_cast<size_t>(part) + kBlock);
  std::byte* const aligned =
      bytes.data() + (kBlock - reinterpret_cast<uintptr_t>(bytes.data()) % kBlock) % kBlock;
  if (Cuda().cuMemcpyDtoH(aligned, AddressOf(base, buffer_offset), static_cast<size_t>(part)) !=
      CUDA_SUCCESS) {
    return -5011;
  }
  return pwrite(*static_cast<int*>(handle), aligned, static_cast<size_t>(part), file_offset);
}

}  // extern "C"
