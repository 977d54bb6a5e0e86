/* Signals inside kernels, and in graphs that are launched again and again. Header only, C++17;
 * needs libcu++ (<cuda/atomic>), which comes with the CUDA Toolkit, and a GPU of compute capability
 * 7.0 or newer.
 *
 * The host opens the signal (gpushm/sync.h) and gives kernels its counter:
 *
 *   uint64_t address;
 *   gpushm_signal_device_address(signal, &address);
 *   Produce<<<...>>>(frame, address);
 *
 *   __global__ void Produce(Frame* frame, uint64_t address) {
 *     ... write the frame ...
 *     __syncthreads();
 *     if (threadIdx.x == 0) gpushm::device::SignalWriter(address).Set(7);
 *   }
 *
 * A stream's own record and wait (gpushm_signal_record, gpushm_signal_wait_on_stream) cost no
 * multiprocessor; take this where a kernel must signal before its end, or where a graph is launched
 * more than once, because a captured stream operation has the same value each time.
 *
 * Memory order: what a thread wrote before Set or Advance, and what it knew of others' writes
 * (after
 * __syncthreads() or a grid's barrier), is visible to any thread on any GPU, and on the host, that
 * saw the value by Read or Wait. System scope: counters lie in host memory or on another GPU.
 *
 * Waiting takes a place on a multiprocessor until it ends. Wait in one thread of a kernel that is
 * small enough to run beside the rest, always with a deadline, and never in a grid that must end
 * before the writer can begin. */
#ifndef GPUSHM_DEVICE_CUH
#define GPUSHM_DEVICE_CUH

#include <cstdint>
#include <cuda/atomic>

namespace gpushm {
inline namespace v0 {
namespace device {

/// What a counter is once its writer has ended; values of a signal are below 2^62.
constexpr uint64_t kEnded = 0x7fffffffffffffff;

/// How a wait ended. The numbers are what AwaitNext stores.
enum class Outcome : uint32_t {
  kReached = 0,
  kEnded = 1,    ///< The writer ended before, or since: gpushm_signal_check tells which.
  kTimeout = 2,  ///< Not yet.
};

/// The counter for those who wait. Any number of threads, of any GPU that maps it.
class SignalReader {
 public:
  /// `address`: gpushm_signal_device_address, of a waiter or the writer.
  __device__ explicit SignalReader(uint64_t address)
      : counter_(reinterpret_cast<uint64_t*>(address)) {}

  /// One look; kEnded once the writer has ended.
  __device__ uint64_t Read() const {
    return ::cuda::atomic_ref<uint64_t, ::cuda::thread_scope_system>(*counter_).load(
        ::cuda::memory_order_acquire);
  }

  /// Until the counter is at least `value`, for at most `timeout_ns` (0: one look). The longer it
  /// takes, the more seldom it looks, up to once a microsecond.
  __device__ Outcome Wait(uint64_t value, uint64_t timeout_ns) const {
    const uint64_t begun_ns = NowNs();
    for (unsigned pause_ns = 20;; pause_ns = pause_ns < 500 ? 2 * pause_ns : 1000) {
      const uint64_t now = Read();
      if (now >= kEnded) return Outcome::kEnded;
      if (now >= value) return Outcome::kReached;
      if (NowNs() - begun_ns >= timeout_ns) return Outcome::kTimeout;
      __nanosleep(pause_ns);
    }
  }

 private:
  __device__ static uint64_t NowNs() {
    uint64_t now_ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
    return now_ns;
  }

  uint64_t* counter_;
};

/// The counter for its writer: one thread at a time, in the order of the values.
class SignalWriter {
 public:
  /// `address`: gpushm_signal_device_address of the process that writes the signal.
  __device__ explicit SignalWriter(uint64_t address)
      : counter_(reinterpret_cast<uint64_t*>(address)) {}

  /// Stores `value`, which must be more than the last one and at most 2^62.
  __device__ void Set(uint64_t value) const {
    ::cuda::atomic_ref<uint64_t, ::cuda::thread_scope_system>(*counter_).store(
        value, ::cuda::memory_order_release);
  }

  /// One more than it was, which is returned: for graphs, whose kernels have the same arguments at
  /// each launch. Does nothing once the signal has ended.
  __device__ uint64_t Advance() const {
    const uint64_t next = *static_cast<volatile uint64_t*>(counter_) + 1;
    if (next <= uint64_t{1} << 62) Set(next);
    return next;
  }

 private:
  uint64_t* counter_;
};

/// Kernels for a graph: one thread each, <<<1, 1>>>.
///
/// Advances the signal by one at each launch. The work before it in the graph is visible to
/// whoever waits for the value.
template <int = 0>
__global__ void AdvanceSignal(uint64_t address) {
  __threadfence_system();
  SignalWriter(address).Advance();
}

/// Waits for the value after `*turn`, device memory that begins as the signal's value when the
/// graph is launched first, and notes it there. `*outcome` says how it went (an Outcome); unless it
/// is kReached, what follows in the graph runs on data that is not there, and `*turn` stays.
template <int = 0>
__global__ void AwaitNext(uint64_t address, uint64_t* turn, uint64_t timeout_ns,
                          uint32_t* outcome) {
  const Outcome result = SignalReader(address).Wait(*turn + 1, timeout_ns);
  if (result == Outcome::kReached) ++*turn;
  *outcome = static_cast<uint32_t>(result);
}

}  // namespace device
}  // namespace v0
}  // namespace gpushm

#endif /* GPUSHM_DEVICE_CUH */
