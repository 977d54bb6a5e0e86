// The few calls of the CUDA driver that the package makes itself: copies between buffers and other
// memory, and order between streams. libgpushm makes all others.
//
// The package needs a device's primary context for them, the one that PyTorch, CuPy and JAX use. It
// retains it at the first such call and keeps it until the process ends.
//
// Threads: any, without the GIL. Functions throw DriverError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpushm::python {

using Stream = void*;
// cuda.h: CU_STREAM_LEGACY.
inline const Stream kLegacyStream = reinterpret_cast<Stream>(1);

class DriverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The folder of libcuda.so.1. Empty: where the dynamic loader finds it. It counts until the first
// call of the driver.
void SetDriverFolder(const std::string& folder);

// The version of the driver's interface: 1000 * major + 10 * minor.
int DriverVersion();
std::string DeviceName(int device);
// Ordinal of the GPU that has the device memory at `address`; 0 if the driver does not know.
int DeviceOf(uint64_t address);
int DeviceCount();
// Ordinal of the GPU with that UUID; -1 if this process does not see it.
inline constexpr size_t kUuidBytes = 16;
int DeviceWithUuid(const uint8_t (&uuid)[kUuidBytes]);

// Makes the device's primary context current where no context is, while it lives. Does nothing for
// a device that is not there (-1).
class CurrentContext {
 public:
  explicit CurrentContext(int device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  bool pushed_ = false;
};

// While it lives, calls that this thread makes may run beside the capture of a CUDA graph in
// another thread. Without it, a capture in the default mode forbids the driver's calls that
// allocate, map or ask for an event in every thread: the call fails, and so does the capture.
class BesideCaptures {
 public:
  BesideCaptures() noexcept;
  ~BesideCaptures();
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  int mode_;  // Of the thread: the other one than it has now.
};

// Device memory that other processes can map: an allocation of its own, of `bytes` rounded up to
// the granularity of the device.
uint64_t CreateShareable(int device, size_t bytes);
// Waits for all work of the device first, as cudaFree does.
void FreeShareable(int device, uint64_t address, size_t bytes);

// Copies between host memory and the device, on a stream of the package's own, and waits for the
// copy. `after`: a stream whose present work is done before the copy starts; null: none.
void CopyToHost(int device, void* target, uint64_t source, size_t bytes, Stream after);
void CopyToDevice(int device, uint64_t target, const void* source, size_t bytes, Stream after);
// Copies on `stream`, and does not wait for it.
void CopyOnDevice(int device, uint64_t target, uint64_t source, size_t bytes, Stream stream);
void Synchronize(int device, Stream stream);
// Later work on `stream` runs after the present work of `first`. It does not wait.
void OrderAfter(int device, Stream stream, Stream first);

}  // namespace gpushm::python
