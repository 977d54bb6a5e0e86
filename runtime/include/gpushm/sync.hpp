/// gpushm for C++, synchronisation: owners of signals, barriers, rings and their frames over the C
/// functions of sync.h. The comments in sync.h are the contract.
///
///     auto ring = gpushm::Ring::Write(*client, "video", {.frames = 8, .frame_bytes = bytes});
///     auto frame = ring->BeginWrite();
///     if (!frame) return Report(frame.error());
///     Launch(stream, frame->As<uint8_t>());
///     frame->set_bytes(bytes);
///     frame->End(stream);                            // complete when the stream reaches this
///
///     auto frame = ring->BeginRead(stream);          // elsewhere: gpushm::Ring::Read
///     Launch(stream, frame->As<const uint8_t>());    // runs when the frame is complete
///     if (!frame->End(stream)) ...                   // what was read is not valid
///
/// Streams are CUstream or cudaStream_t; GPUSHM_NO_STREAM if the host does the work.
///
/// It needs C++17, as gpushm.hpp does. An owner or guard that outlives its Client is closed: its
/// calls return GPUSHM_INVALID_ARGUMENT.
///
/// Threads: one thread at a time may use an object, as with std::unique_ptr.
#ifndef GPUSHM_SYNC_HPP_
#define GPUSHM_SYNC_HPP_

#include "gpushm.hpp"
#include "sync.h"

namespace gpushm {
inline namespace v0 {

/// The C structs under their C++ names; sync.h explains the fields.
using SignalInfo = gpushm_signal_info;
using BarrierInfo = gpushm_barrier_info;
using RingInfo = gpushm_ring_info;
using Frame = gpushm_frame;
using SyncInfo = gpushm_sync_info;

struct SignalOptions {
  gpushm_signal_role role = GPUSHM_SIGNAL_WAITER;
  gpushm_writers writers = GPUSHM_WRITERS_CREATOR;
  Timeout timeout{};
};

struct WriteRingOptions {
  gpushm_ring_policy policy = GPUSHM_RING_OVERWRITE_OLDEST;
  uint32_t frames = 0;   ///< Slots; 0: 8.
  uint32_t readers = 0;  ///< Maximum at a time; 0: 15.
  uint64_t frame_bytes = 0;
  uint32_t need_readers = 0;  ///< Back-pressure: every frame waits while there are fewer.
  Timeout timeout{};
  uint32_t start_readers = 0;  ///< Back-pressure: the first frame waits for this many.
  bool keep = false;           ///< The memory stays after the last process has closed it.
  uint32_t gpu = 0;            ///< The number of the pod's GPU that holds the frames.
};

struct ReadRingOptions {
  bool from_oldest = false;
  Timeout timeout{};
};

namespace detail {
/// Owns a handle that `kClose` closes. If the library refuses that, the handle stays open.
template <typename Handle, gpushm_status (*kClose)(Handle*)>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle* handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    if (this != &other) {
      (void)kClose(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() { (void)kClose(handle_); }

  explicit operator bool() const { return handle_ != nullptr; }
  Handle* get() const { return handle_; }
  /// GPUSHM_BUSY: streams of this process still use it. It stays open, so synchronise and call
  /// again.
  Result<void> Close() {
    auto done = ToResult(kClose(handle_));
    if (done) handle_ = nullptr;
    return done;
  }

 private:
  Handle* handle_ = nullptr;
};

template <typename Info, typename Handle>
Result<Info> InfoOf(gpushm_status (*get)(const Handle*, Info*), const Handle* handle) {
  auto info = Sized<Info>();
  if (get(handle, &info) != GPUSHM_OK) return Error::Last();
  return info;
}
}  // namespace detail

/// A 64-bit value with a name. One process increases it, and others wait for it.
///
/// The destructor closes the signal. While streams of this process still record it or wait for it,
/// the library refuses that (GPUSHM_BUSY), and the signal stays open until the Client is destroyed:
/// synchronise first, or call Close(), which returns the error.
class Signal : public detail::Owner<gpushm_signal, gpushm_signal_close> {
 public:
  using Owner::Owner;
  static Result<Signal> Open(const Client& client, const std::string& name,
                             const SignalOptions& options = {}) {
    auto raw = detail::Sized<gpushm_signal_options>();
    raw.role = options.role;
    raw.writers = options.writers;
    raw.timeout_ms = options.timeout.ms();
    gpushm_signal* handle = nullptr;
    if (gpushm_signal_open(client.get(), name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return Error::Last();
    }
    return Signal(handle);
  }

  /// Sets the signal to `value` when the stream reaches this.
  Result<void> Record(void* stream, uint64_t value) {
    return detail::ToResult(gpushm_signal_record(get(), stream, value));
  }
  Result<void> Set(uint64_t value) { return detail::ToResult(gpushm_signal_set(get(), value)); }

  Result<void> Wait(uint64_t value, Timeout timeout = {}) {
    return detail::ToResult(gpushm_signal_wait(get(), value, timeout.ms()));
  }
  /// Later work on the stream is valid only if Check returns OK afterwards.
  Result<void> WaitOnStream(void* stream, uint64_t value) {
    return detail::ToResult(gpushm_signal_wait_on_stream(get(), stream, value));
  }
  /// GPUSHM_BUSY: the value is not reached yet. GPUSHM_ENDED, GPUSHM_PEER_DIED: it never will be.
  Result<void> Check(uint64_t value) { return detail::ToResult(gpushm_signal_check(get(), value)); }

  Result<SignalInfo> GetInfo() const { return detail::InfoOf(gpushm_signal_get_info, get()); }
  /// Where kernels find the value.
  Result<uint64_t> DeviceAddress() {
    uint64_t address = 0;
    if (gpushm_signal_device_address(get(), &address) != GPUSHM_OK) {
      return Error::Last();
    }
    return address;
  }
};

/// A point that `participants` processes pass together, again and again.
///
/// The destructor leaves the barrier, which breaks it for the others. While a stream of this
/// process is still to arrive or waits, the library refuses that (GPUSHM_BUSY), and the barrier
/// stays open until the Client is destroyed: synchronise first, or call Close(), which returns the
/// error.
class Barrier : public detail::Owner<gpushm_barrier, gpushm_barrier_close> {
 public:
  using Owner::Owner;
  static Result<Barrier> Open(const Client& client, const std::string& name, uint32_t participants,
                              Timeout timeout = {}) {
    auto raw = detail::Sized<gpushm_barrier_options>();
    raw.participants = participants;
    raw.timeout_ms = timeout.ms();
    gpushm_barrier* handle = nullptr;
    if (gpushm_barrier_open(client.get(), name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return Error::Last();
    }
    return Barrier(handle);
  }

  /// After GPUSHM_TIMEOUT a further call waits for the same point.
  Result<void> Wait(Timeout timeout = {}) {
    return detail::ToResult(gpushm_barrier_wait(get(), timeout.ms()));
  }
  /// Later work on the stream is valid only if Check returns OK afterwards.
  Result<void> WaitOnStream(void* stream) {
    return detail::ToResult(gpushm_barrier_wait_on_stream(get(), stream));
  }
  /// Of the last point. GPUSHM_BUSY: not yet. GPUSHM_ENDED, GPUSHM_PEER_DIED: never.
  Result<void> Check() { return detail::ToResult(gpushm_barrier_check(get())); }

  Result<BarrierInfo> GetInfo() const { return detail::InfoOf(gpushm_barrier_get_info, get()); }
};

namespace detail {
/// What the guards of a frame have in common.
class FrameGuard {
 public:
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

  /// Whether the frame is still to be ended.
  bool open() const { return ring_ != nullptr; }
  /// Device address (a CUdeviceptr).
  uint64_t address() const { return frame_.address; }
  /// The address as a pointer, for kernels; not for the host.
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(frame_.address));
  }
  const Frame& frame() const { return frame_; }

 protected:
  FrameGuard(gpushm_ring* ring, const Frame& frame) : ring_(ring), frame_(frame) {}
  FrameGuard(FrameGuard&& other) noexcept
      : ring_(std::exchange(other.ring_, nullptr)), frame_(other.frame_) {}
  ~FrameGuard() = default;
  void Take(FrameGuard& other) {
    ring_ = std::exchange(other.ring_, nullptr);
    frame_ = other.frame_;
  }

  gpushm_ring* ring_;
  Frame frame_;
};
}  // namespace detail

/// A frame that is being written. The destructor of one without End gives the frame up, and no
/// reader sees it. The next frame gets its memory. So work on the GPU that still writes to it must
/// have ended, or be on the stream of the next frame.
class WriteGuard : public detail::FrameGuard {
 public:
  WriteGuard(gpushm_ring* ring, const Frame& frame) : FrameGuard(ring, frame) {}
  WriteGuard(WriteGuard&& other) noexcept = default;
  WriteGuard& operator=(WriteGuard&& other) noexcept {
    if (this != &other) {
      Abandon();
      Take(other);
    }
    return *this;
  }
  ~WriteGuard() { Abandon(); }

  uint64_t capacity_bytes() const { return frame_.capacity_bytes; }
  void set_bytes(uint64_t bytes) { frame_.bytes = bytes; }
  /// GPUSHM_METADATA_BYTES bytes that travel with the frame, zero at first.
  Span<unsigned char> metadata() { return frame_.metadata; }

  /// The frame is complete when the stream reaches this. After a failure it is still open.
  Result<void> End(void* stream) {
    auto done = detail::ToResult(gpushm_ring_end_write(ring_, &frame_, stream));
    if (done) ring_ = nullptr;
    return done;
  }
  void Abandon() {
    if (ring_ != nullptr) (void)gpushm_ring_abandon_write(std::exchange(ring_, nullptr));
  }
};

/// A frame that is being read, and does not change meanwhile. End gives it back, and says whether
/// what was read is valid.
///
/// The destructor of one without End, after an exception or an early return, abandons the frame. It
/// does not wait. An item of a queue is delivered again, to this worker or another one, with a
/// higher delivery(). A frame of a ring is released after the present work of the stream with which
/// it was begun. Work on other streams must have ended, or that stream must wait for it by events.
/// If the stream is being captured, a frame of a ring stays held until the Client is destroyed.
class ReadGuard : public detail::FrameGuard {
 public:
  ReadGuard(gpushm_ring* ring, const Frame& frame, void* stream)
      : FrameGuard(ring, frame), stream_(stream) {}
  ReadGuard(ReadGuard&& other) noexcept = default;
  ReadGuard& operator=(ReadGuard&& other) noexcept {
    if (this != &other) {
      Abandon();
      Take(other);
      stream_ = other.stream_;
    }
    return *this;
  }
  ~ReadGuard() { Abandon(); }

  uint64_t size_bytes() const { return frame_.bytes; }
  /// Of an item of a queue: how often a worker got it, including this time. Items come back if a
  /// worker dies or abandons them, so end one that has failed too often.
  uint32_t delivery() const { return frame_.delivery; }
  Span<const unsigned char> metadata() const { return frame_.metadata; }

  /// Gives the frame back when the stream reaches this. GPUSHM_ENDED, GPUSHM_PEER_DIED,
  /// GPUSHM_ORPHANED: the frame has ended, and what was read is not valid. After any other failure
  /// the frame is still open.
  Result<void> End(void* stream, Timeout timeout = {}) {
    auto done = detail::ToResult(gpushm_ring_end_read(ring_, stream, &frame_, timeout.ms()));
    if (done || done.error().status() == GPUSHM_ENDED ||
        done.error().status() == GPUSHM_PEER_DIED || done.error().status() == GPUSHM_ORPHANED) {
      ring_ = nullptr;
    }
    return done;
  }
  /// Gives the frame back, as the destructor does.
  void Abandon() {
    if (ring_ == nullptr) return;
    (void)gpushm_ring_abandon_read(std::exchange(ring_, nullptr), stream_, &frame_);
  }

 private:
  void* stream_;
};

/// Takes part in a ring or queue.
///
/// The destructor closes the ring. While frames are open, or streams of this process still work on
/// some, the library refuses that (GPUSHM_BUSY), and the ring stays open until the Client is
/// destroyed: synchronise first, or call Close(), which returns the error.
class Ring : public detail::Owner<gpushm_ring, gpushm_ring_close> {
 public:
  using Owner::Owner;
  /// As its writer, which makes it.
  static Result<Ring> Write(const Client& client, const std::string& name,
                            const WriteRingOptions& options) {
    auto raw = detail::Sized<gpushm_ring_options>();
    raw.role = GPUSHM_RING_WRITER;
    raw.policy = options.policy;
    raw.frames = options.frames;
    raw.readers = options.readers;
    raw.frame_bytes = options.frame_bytes;
    raw.need_readers = options.need_readers;
    raw.start_readers = options.start_readers;
    raw.keep = options.keep ? 1 : 0;
    raw.gpu = options.gpu;
    raw.timeout_ms = options.timeout.ms();
    return Open(client, name, raw);
  }
  /// As a reader, or a queue's worker.
  static Result<Ring> Read(const Client& client, const std::string& name,
                           const ReadRingOptions& options = {}) {
    auto raw = detail::Sized<gpushm_ring_options>();
    raw.role = GPUSHM_RING_READER;
    raw.from_oldest = options.from_oldest ? 1 : 0;
    raw.timeout_ms = options.timeout.ms();
    return Open(client, name, raw);
  }

  Result<WriteGuard> BeginWrite(Timeout timeout = {}) {
    auto frame = detail::Sized<Frame>();
    if (gpushm_ring_begin_write(get(), &frame, timeout.ms()) != GPUSHM_OK) {
      return Error::Last();
    }
    return WriteGuard(get(), frame);
  }
  /// Later work on the stream runs when the frame is complete.
  Result<ReadGuard> BeginRead(void* stream, Timeout timeout = {}) {
    return BeginRead(gpushm_ring_begin_read, stream, timeout);
  }
  /// The newest frame; those before it are lost. Not for queues.
  Result<ReadGuard> BeginReadNewest(void* stream, Timeout timeout = {}) {
    return BeginRead(gpushm_ring_begin_read_newest, stream, timeout);
  }

  Result<RingInfo> GetInfo() const { return detail::InfoOf(gpushm_ring_get_info, get()); }

 private:
  static Result<Ring> Open(const Client& client, const std::string& name,
                           const gpushm_ring_options& raw) {
    gpushm_ring* handle = nullptr;
    if (gpushm_ring_open(client.get(), name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return Error::Last();
    }
    return Ring(handle);
  }
  template <typename Begin>
  Result<ReadGuard> BeginRead(Begin begin, void* stream, Timeout timeout) {
    auto frame = detail::Sized<Frame>();
    if (begin(get(), stream, &frame, timeout.ms()) != GPUSHM_OK) {
      return Error::Last();
    }
    return ReadGuard(get(), frame, stream);
  }
};

/// What kind of object has this name, and its state, for a process that does not take part in it.
inline Result<SyncInfo> LookupSync(const Client& client, const std::string& name) {
  auto info = detail::Sized<SyncInfo>();
  if (gpushm_sync_lookup(client.get(), name.c_str(), &info) != GPUSHM_OK) {
    return Error::Last();
  }
  return info;
}

}  // namespace v0
}  // namespace gpushm

#endif  // GPUSHM_SYNC_HPP_
