/// gpushm for C++, handing over in time: owners of signals, barriers, rings and their frames over
/// the C functions of sync.h, whose comments are the contract.
///
///     auto ring = gpushm::Ring::Write(*client, "video", {.frames = 8, .frame_bytes = bytes});
///     auto frame = ring->BeginWrite();
///     if (!frame) return Report(frame.error());
///     Launch(stream, frame->As<uint8_t>());
///     frame->set_bytes(bytes);
///     frame->End(stream);                            // complete when the stream gets there
///
///     auto frame = ring->BeginRead(stream);          // elsewhere: gpushm::Ring::Read
///     Launch(stream, frame->As<const uint8_t>());    // runs when the frame is complete
///     if (!frame->End(stream)) ...                   // what was read does not count
///
/// Streams are CUstream or cudaStream_t; GPUSHM_NO_STREAM where the host does the work.
///
/// Owners close what they own when they go out of scope. While streams of the process still use it
/// that is refused (BUSY), and it stays open until the Client ends: synchronise before, or call
/// Close(), which says so. The end of the Client closes what is still open, and the calls of owners
/// and guards that outlive it return GPUSHM_INVALID_ARGUMENT.
///
/// Threads: as std::unique_ptr, the objects by one thread at a time.
#ifndef GPUSHM_SYNC_HPP_
#define GPUSHM_SYNC_HPP_

#include "gpushm.hpp"
#include "sync.h"

namespace gpushm {

/// The C structs under their C++ names; sync.h explains the fields.
using SignalInfo = gpushm_signal_info;
using BarrierInfo = gpushm_barrier_info;
using RingInfo = gpushm_ring_info;
using Frame = gpushm_frame;

struct SignalOptions {
  gpushm_signal_role role = GPUSHM_SIGNAL_WAITER;
  gpushm_writers writers = GPUSHM_WRITERS_CREATOR;
  Timeout timeout{};
  gpushm_signal_memory memory = GPUSHM_SIGNAL_HOST_PAGE;  ///< Of one that is made.
};

struct WriteRingOptions {
  gpushm_ring_policy policy = GPUSHM_RING_OVERWRITE_OLDEST;
  uint32_t frames = 0;   ///< Slots; 0: 8.
  uint32_t readers = 0;  ///< At most so many at a time; 0: 15.
  uint64_t frame_bytes = 0;
  uint32_t need_readers = 0;  ///< Back-pressure: every frame waits while there are fewer.
  Timeout timeout{};
  uint32_t start_readers = 0;  ///< Back-pressure: the first frame waits until so many are there.
  bool keep = false;           ///< The memory stays when all have closed it.
};

struct ReadRingOptions {
  bool from_oldest = false;
  Timeout timeout{};
};

namespace internal {
/// Owns a handle that `kClose` closes, if it may.
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
  /// GPUSHM_BUSY: streams of this process still use it; it stays open, call again.
  Expected<void> Close() {
    auto done = Check(kClose(handle_));
    if (done) handle_ = nullptr;
    return done;
  }

 private:
  Handle* handle_ = nullptr;
};

template <typename Info, typename Handle>
Expected<Info> InfoOf(gpushm_status (*get)(const Handle*, Info*), const Handle* handle) {
  auto info = Sized<Info>();
  if (get(handle, &info) != GPUSHM_OK) return std::unexpected(Error::Last());
  return info;
}
}  // namespace internal

/// A 64-bit counter with a name that one process moves and others wait for.
class Signal : public internal::Owner<gpushm_signal, gpushm_signal_close> {
 public:
  using Owner::Owner;
  static Expected<Signal> Open(const Client& client, const std::string& name,
                               const SignalOptions& options = {}) {
    auto raw = internal::Sized<gpushm_signal_options>();
    raw.role = options.role;
    raw.writers = options.writers;
    raw.timeout_ms = options.timeout.ms();
    raw.memory = options.memory;
    gpushm_signal* handle = nullptr;
    if (gpushm_signal_open(client.get(), name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return Signal(handle);
  }

  /// The signal gets `value` when the stream gets there.
  Expected<void> Record(void* stream, uint64_t value) {
    return internal::Check(gpushm_signal_record(get(), stream, value));
  }
  Expected<void> Set(uint64_t value) { return internal::Check(gpushm_signal_set(get(), value)); }

  Expected<void> Wait(uint64_t value, Timeout timeout = {}) {
    return internal::Check(gpushm_signal_wait(get(), value, timeout.ms()));
  }
  /// What follows on the stream counts if Check says so afterwards.
  Expected<void> WaitOnStream(void* stream, uint64_t value) {
    return internal::Check(gpushm_signal_wait_on_stream(get(), stream, value));
  }
  /// GPUSHM_BUSY: not yet. GPUSHM_ENDED, GPUSHM_PEER_DIED: never.
  Expected<void> Check(uint64_t value) {
    return internal::Check(gpushm_signal_check(get(), value));
  }

  Expected<SignalInfo> Read() const { return internal::InfoOf(gpushm_signal_get_info, get()); }
  /// Where kernels find the counter.
  Expected<uint64_t> DeviceAddress() {
    uint64_t address = 0;
    if (gpushm_signal_device_address(get(), &address) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return address;
  }
};

/// A point that `participants` processes pass together, again and again.
class Barrier : public internal::Owner<gpushm_barrier, gpushm_barrier_close> {
 public:
  using Owner::Owner;
  static Expected<Barrier> Open(const Client& client, const std::string& name,
                                uint32_t participants, Timeout timeout = {}) {
    auto raw = internal::Sized<gpushm_barrier_options>();
    raw.participants = participants;
    raw.timeout_ms = timeout.ms();
    gpushm_barrier* handle = nullptr;
    if (gpushm_barrier_open(client.get(), name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return Barrier(handle);
  }

  /// After GPUSHM_TIMEOUT a further call waits for the same point.
  Expected<void> Wait(Timeout timeout = {}) {
    return internal::Check(gpushm_barrier_wait(get(), timeout.ms()));
  }
  /// What follows on the stream counts if Check says so afterwards.
  Expected<void> WaitOnStream(void* stream) {
    return internal::Check(gpushm_barrier_wait_on_stream(get(), stream));
  }
  /// Of the last point. GPUSHM_BUSY: not yet. GPUSHM_ENDED, GPUSHM_PEER_DIED: never.
  Expected<void> Check() { return internal::Check(gpushm_barrier_check(get())); }

  Expected<BarrierInfo> GetInfo() const { return internal::InfoOf(gpushm_barrier_get_info, get()); }
};

namespace internal {
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
}  // namespace internal

/// A frame that is being written. One that goes out of scope without End is given up: nobody sees
/// it. Its memory is the next frame's, so work on the GPU that still writes to it belongs on the
/// next frame's stream, or must have ended.
class WriteGuard : public internal::FrameGuard {
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
  /// Travels with the frame; zeroes at first.
  std::span<unsigned char, GPUSHM_METADATA_BYTES> metadata() {
    return std::span<unsigned char, GPUSHM_METADATA_BYTES>(frame_.metadata);
  }

  /// Complete when the stream gets there. After a failure the frame is still open.
  Expected<void> End(void* stream) {
    auto done = internal::Check(gpushm_ring_end_write(ring_, &frame_, stream));
    if (done) ring_ = nullptr;
    return done;
  }
  void Abandon() {
    if (ring_ != nullptr) (void)gpushm_ring_abandon_write(std::exchange(ring_, nullptr));
  }
};

/// A frame that is being read, and stays as it is so long. End completes it, and says whether what
/// was read counts.
///
/// One that goes out of scope without End, by an exception or an early return, is abandoned: a
/// queue's item is delivered again, to this worker or another one, with a higher delivery(); a
/// ring's frame is released for the stream that it was begun with, never before work on that stream
/// has read it. Work on other streams must have ended, or be joined to that one by events. If the
/// stream is being captured, the frame of a ring stays held until the Client ends.
class ReadGuard : public internal::FrameGuard {
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
  /// Of a queue's item: 1, or how often it was given to a worker, this time too. Items come back
  /// when a worker dies or abandons them: end one that has failed too often.
  uint32_t delivery() const { return frame_.delivery; }
  std::span<const unsigned char, GPUSHM_METADATA_BYTES> metadata() const {
    return std::span<const unsigned char, GPUSHM_METADATA_BYTES>(frame_.metadata);
  }

  /// Gives the frame back when the stream gets there. GPUSHM_ENDED, GPUSHM_PEER_DIED,
  /// GPUSHM_ORPHANED: it is over, and what was read is worth nothing. After any other failure the
  /// frame is still open.
  Expected<void> End(void* stream, Timeout timeout = {}) {
    auto done = internal::Check(gpushm_ring_end_read(ring_, stream, &frame_, timeout.ms()));
    if (done || done.error().status() == GPUSHM_ENDED ||
        done.error().status() == GPUSHM_PEER_DIED || done.error().status() == GPUSHM_ORPHANED) {
      ring_ = nullptr;
    }
    return done;
  }
  /// Gives the frame back without an answer, see above.
  void Abandon() {
    if (ring_ == nullptr) return;
    (void)gpushm_ring_abandon_read(std::exchange(ring_, nullptr), stream_, &frame_);
  }

 private:
  void* stream_;
};

/// Takes part in a ring or queue.
class Ring : public internal::Owner<gpushm_ring, gpushm_ring_close> {
 public:
  using Owner::Owner;
  /// As its writer, which makes it.
  static Expected<Ring> Write(const Client& client, const std::string& name,
                              const WriteRingOptions& options) {
    auto raw = internal::Sized<gpushm_ring_options>();
    raw.role = GPUSHM_RING_WRITER;
    raw.policy = options.policy;
    raw.frames = options.frames;
    raw.readers = options.readers;
    raw.frame_bytes = options.frame_bytes;
    raw.need_readers = options.need_readers;
    raw.start_readers = options.start_readers;
    raw.keep = options.keep ? 1 : 0;
    raw.timeout_ms = options.timeout.ms();
    return Open(client, name, raw);
  }
  /// As a reader, or a queue's worker.
  static Expected<Ring> Read(const Client& client, const std::string& name,
                             const ReadRingOptions& options = {}) {
    auto raw = internal::Sized<gpushm_ring_options>();
    raw.role = GPUSHM_RING_READER;
    raw.from_oldest = options.from_oldest ? 1 : 0;
    raw.timeout_ms = options.timeout.ms();
    return Open(client, name, raw);
  }

  Expected<WriteGuard> BeginWrite(Timeout timeout = {}) {
    auto frame = internal::Sized<Frame>();
    if (gpushm_ring_begin_write(get(), &frame, timeout.ms()) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return WriteGuard(get(), frame);
  }
  /// What is put on the stream from now on runs when the frame is complete.
  Expected<ReadGuard> BeginRead(void* stream, Timeout timeout = {}) {
    return BeginRead(gpushm_ring_begin_read, stream, timeout);
  }
  /// The newest frame; those before it are lost. Not of a queue.
  Expected<ReadGuard> BeginReadNewest(void* stream, Timeout timeout = {}) {
    return BeginRead(gpushm_ring_begin_read_newest, stream, timeout);
  }

  Expected<RingInfo> GetInfo() const { return internal::InfoOf(gpushm_ring_get_info, get()); }

 private:
  static Expected<Ring> Open(const Client& client, const std::string& name,
                             const gpushm_ring_options& raw) {
    gpushm_ring* handle = nullptr;
    if (gpushm_ring_open(client.get(), name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return Ring(handle);
  }
  template <typename Begin>
  Expected<ReadGuard> BeginRead(Begin begin, void* stream, Timeout timeout) {
    auto frame = internal::Sized<Frame>();
    if (begin(get(), stream, &frame, timeout.ms()) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return ReadGuard(get(), frame, stream);
  }
};

/// What a name stands for and where it is, for whoever takes no part in it.
inline Expected<gpushm_sync_info> LookAt(const Client& client, const std::string& name) {
  auto info = internal::Sized<gpushm_sync_info>();
  if (gpushm_sync_lookup(client.get(), name.c_str(), &info) != GPUSHM_OK) {
    return std::unexpected(Error::Last());
  }
  return info;
}

}  // namespace gpushm

#endif  // GPUSHM_SYNC_HPP_
