/* Setting signals inside kernels, and in graphs that are launched again and again. Header only,
 * C++17; needs libcu++ (<cuda/atomic>), which comes with the CUDA Toolkit, and a GPU of compute
 * capability 7.0 or newer.
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
 * Kernels do not wait for a signal. Let the stream wait before the kernel
 * (gpushm_signal_wait_on_stream), or put a memory operation node on the same address into the
 * graph.
 *
 * Memory order: what a thread wrote before Set or Advance, and what it knew of others' writes
 * (after __syncthreads() or a grid's barrier), is visible to the streams and hosts that waited for
 * the value. System scope: the value lies in host memory. */
#ifndef GPUSHM_DEVICE_CUH
#define GPUSHM_DEVICE_CUH

#include <cstdint>
#include <cuda/atomic>

namespace gpushm {
inline namespace v0 {
namespace device {

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

/// A kernel for a graph, <<<1, 1>>>: advances the signal by one at each launch. The work before it
/// in the graph is visible to whoever waits for the value.
template <int = 0>
__global__ void AdvanceSignal(uint64_t address) {
  __threadfence_system();
  SignalWriter(address).Advance();
}

}  // namespace device
}  // namespace v0
}  // namespace gpushm

#endif /* GPUSHM_DEVICE_CUH */
