/// gpushm for C++: owners, std::expected and std::chrono over the C functions of gpushm.h, whose
/// comments are the contract. Header-only; link with libgpushm (gpushm::gpushm in CMake).
///
///     auto client = gpushm::Client::Open();
///     if (!client) return Report(client.error());
///     auto weights = client->Attach("weights", {.timeout = 30s});
///     if (!weights) return Report(weights.error());   // error().text(): cause and remedy
///     Launch(weights->As<const float>(), weights->size_bytes() / sizeof(float));
///
/// Needs C++23: std::expected (GCC 12, clang 16 with libstdc++ 12, or newer).
///
/// Threads: a Client's functions from any thread. An Attachment is used by one thread at a time, as
/// a std::unique_ptr is; take as many as needed, they are counted.
#ifndef GPUSHM_GPUSHM_HPP_
#define GPUSHM_GPUSHM_HPP_

#if !defined(__cplusplus) || (defined(__has_include) && !__has_include(<expected>))
#error "gpushm.hpp needs C++23 with <expected> (GCC 12 -std=c++23 or newer); use gpushm.h instead"
#else
#include <expected>
#ifndef __cpp_lib_expected
#error "gpushm.hpp needs C++23: compile with -std=c++23 (std::expected), or use gpushm.h instead"
#endif
#endif

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpushm.h"

namespace gpushm {

/// Why a call failed: a copy of gpushm_last_error().
class Error {
 public:
  /// What the calling thread's last failing call said.
  static Error Last() {
    const gpushm_error* last = gpushm_last_error();
    return Error(last->status, last->text, last->what, last->remedy);
  }

  Error(gpushm_status status, std::string text, std::string what, std::string remedy)
      : status_(status),
        text_(std::move(text)),
        what_(std::move(what)),
        remedy_(std::move(remedy)) {}

  /// For branching: GPUSHM_TIMEOUT, GPUSHM_NOT_FOUND ...
  gpushm_status status() const { return status_; }
  /// One line for humans: status, cause and remedy.
  const std::string& text() const { return text_; }
  const std::string& what() const { return what_; }
  /// What to do about it; empty if there is nothing to say.
  const std::string& remedy() const { return remedy_; }

 private:
  gpushm_status status_;
  std::string text_;
  std::string what_;
  std::string remedy_;
};

template <typename T>
using Expected = std::expected<T, Error>;

/// How long a call may wait. Default: ten seconds (a transfer: ten minutes).
class Timeout {
 public:
  constexpr Timeout() = default;
  /// A wait of 0 or less is "answer at once". Rounded up to whole milliseconds. However long it is,
  /// std::chrono::hours::max() for one: the library waits a year at most.
  template <typename Rep, typename Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> wait)  // NOLINT: `5s` is a timeout.
      : ms_(ToMs(wait)) {}
  static constexpr Timeout DontWait() { return Timeout(std::chrono::milliseconds(0)); }
  constexpr int64_t ms() const { return ms_; }

 private:
  template <typename Duration>
  static constexpr int64_t ToMs(Duration wait) {
    constexpr int64_t kLongestMs = int64_t{366} * 24 * 3600 * 1000;
    // In floating point, where no duration overflows; close enough to tell the two ends.
    const double about_ms =
        std::chrono::duration_cast<std::chrono::duration<double, std::milli>>(wait).count();
    if (!(about_ms > 0)) return GPUSHM_DONT_WAIT;
    if (about_ms >= static_cast<double>(kLongestMs)) return kLongestMs;
    return std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  }
  int64_t ms_ = 0;
};

/// The C structs under their C++ names; gpushm.h explains the fields.
using Info = gpushm_info;
using Holder = gpushm_holder;
using BrokerInfo = gpushm_broker_info;
using AttachmentInfo = gpushm_attachment_info;
using OfferResult = gpushm_offer_result;
using TransferResult = gpushm_transfer_result;

struct OpenOptions {
  std::string folder{};   ///< Folder of the socket; empty: $GPUSHM_DIR, else /run/gpushm.
  std::string pod_uid{};  ///< hostIPC pods: whose buffers are meant.
  std::string driver{};   ///< Folder of libcuda.so.1; empty: $GPUSHM_DRIVER, else the loader's.
  Timeout timeout{};
};

struct AttachOptions {
  gpushm_access access = GPUSHM_ACCESS_READ;
  uint64_t generation = 0;  ///< 0: the current one; else exactly this one, or GPUSHM_STALE.
  Timeout timeout{};
  uint64_t peer_devices = 0;  ///< Bit i: the GPU with ordinal i of this process uses it as well.
  bool stage = false;         ///< A copy for a GPU that cannot get to it, see gpushm.h.
};

struct CreateOptions {
  gpushm_writers writers = GPUSHM_WRITERS_CREATOR;
  bool one_writer = false;
  gpushm_on_writer_exit on_writer_exit = GPUSHM_WRITER_EXIT_MARK;
  bool unpublished = false;  ///< Others see it only after Attachment::Publish.
  Timeout timeout{};
};

struct OfferOptions {
  gpushm_writers writers = GPUSHM_WRITERS_CREATOR;
  bool one_writer = false;
  gpushm_on_writer_exit on_writer_exit = GPUSHM_WRITER_EXIT_MARK;
  bool allow_copy = false;  ///< Copy once if the memory cannot be shared as it is.
  Timeout timeout{};
  /// CUstream whose work fills the memory: done before peers see it. nullptr: see gpushm.h.
  void* stream = nullptr;
};

struct TransferOptions {
  gpushm_transfer_method method = GPUSHM_TRANSFER_AUTO;
  uint64_t chunk_bytes = 0;
  gpushm_file_method file_method = GPUSHM_FILE_AUTO;
  uint32_t chunks = 0;
  uint32_t threads = 0;  ///< That read beside the calling one; 0: up to 8, or GPUSHM_NO_THREADS.
  bool whole = false;    ///< To save: all of the buffer, not only its content.
  /// Called between chunks with (done, total); false stops. Must not throw.
  std::function<bool(uint64_t, uint64_t)> progress{};
  Timeout timeout{};
};

namespace internal {
template <typename T>
T Sized() {
  T value{};
  value.struct_size = sizeof value;
  return value;
}
inline Expected<void> Check(gpushm_status status) {
  if (status == GPUSHM_OK) return {};
  return std::unexpected(Error::Last());
}
inline const char* OrNull(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }
}  // namespace internal

/// One use of a buffer by this process; detaches when it goes out of scope. Work on the GPU that
/// uses the buffer must have ended by then: Detach(streams) checks it.
class Attachment {
 public:
  Attachment() = default;
  explicit Attachment(gpushm_attachment* handle) : handle_(handle) {}
  Attachment(Attachment&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Attachment& operator=(Attachment&& other) noexcept {
    if (this != &other) {
      Reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  ~Attachment() { Reset(); }

  explicit operator bool() const { return handle_ != nullptr; }

  /// Device address (a CUdeviceptr).
  uint64_t address() const { return gpushm_attachment_address(handle_); }
  /// The address as a pointer, for kernels; not for the host.
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(address()));
  }
  uint64_t size_bytes() const { return gpushm_attachment_size(handle_); }

  /// GPUSHM_OK, GPUSHM_STALE or GPUSHM_ORPHANED: one load.
  gpushm_status Current() const { return gpushm_attachment_check(handle_); }
  Expected<AttachmentInfo> GetInfo() const {
    auto info = internal::Sized<AttachmentInfo>();
    if (gpushm_attachment_get_info(handle_, &info) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return info;
  }

  /// Shows an unpublished buffer or generation to everybody.
  Expected<void> Publish() { return internal::Check(gpushm_attachment_publish(handle_)); }
  /// Says how many bytes from the start are content, where the writer fills it by itself.
  Expected<void> SetContent(uint64_t content_bytes) {
    return internal::Check(gpushm_attachment_set_content(handle_, content_bytes));
  }

  /// Detaches if no work is pending on `streams` (CUstream); GPUSHM_BUSY, and nothing is detached,
  /// otherwise. With `defer` the buffer is detached once that work has ended.
  Expected<void> Detach(std::span<void* const> streams = {}, bool defer = false) {
    auto options = internal::Sized<gpushm_detach_options>();
    options.streams = streams.data();
    options.stream_count = streams.size();
    options.defer = defer ? 1 : 0;
    auto done = internal::Check(gpushm_attachment_detach(handle_, &options));
    if (done) handle_ = nullptr;
    return done;
  }

  gpushm_attachment* get() const { return handle_; }
  /// Gives the handle away; the caller detaches it.
  [[nodiscard]] gpushm_attachment* Release() { return std::exchange(handle_, nullptr); }

 private:
  void Reset() {
    if (handle_ != nullptr) (void)gpushm_attachment_detach(handle_, nullptr);
    handle_ = nullptr;
  }
  gpushm_attachment* handle_ = nullptr;
};

/// A connection to the broker of this pod. Its end detaches what is still attached: an Attachment
/// that outlives it has the address 0, and its calls return GPUSHM_INVALID_ARGUMENT.
class Client {
 public:
  static Expected<Client> Open(const OpenOptions& options = {}) {
    auto raw = internal::Sized<gpushm_open_options>();
    raw.folder = internal::OrNull(options.folder);
    raw.pod_uid = internal::OrNull(options.pod_uid);
    raw.driver = internal::OrNull(options.driver);
    raw.timeout_ms = options.timeout.ms();
    gpushm_client* handle = nullptr;
    if (gpushm_open(&raw, &handle) != GPUSHM_OK) return std::unexpected(Error::Last());
    return Client(handle);
  }

  Client(Client&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Client& operator=(Client&& other) noexcept {
    if (this != &other) {
      gpushm_close(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { gpushm_close(handle_); }

  // ---- looking up

  /// No system call, tens of nanoseconds.
  Expected<Info> Lookup(const std::string& name) const {
    auto info = internal::Sized<Info>();
    if (gpushm_lookup(handle_, name.c_str(), &info) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return info;
  }

  /// All buffers, ordered by name.
  Expected<std::vector<Info>> List() const {
    return Collect<Info>([&](Info* infos, size_t capacity, size_t* count) {
      return gpushm_list(handle_, infos, capacity, count);
    });
  }

  /// Waits until the buffer exists with at least this generation and has its content.
  Expected<Info> Wait(const std::string& name, uint64_t min_generation = 0,
                      Timeout timeout = {}) const {
    auto options = internal::Sized<gpushm_wait_options>();
    options.timeout_ms = timeout.ms();
    auto info = internal::Sized<Info>();
    if (gpushm_wait(handle_, name.c_str(), min_generation, &options, &info) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return info;
  }

  /// Who holds the buffer; empty name: who holds any.
  Expected<std::vector<Holder>> Holders(const std::string& name = {}) const {
    return Collect<Holder>([&](Holder* holders, size_t capacity, size_t* count) {
      return gpushm_list_holders(handle_, internal::OrNull(name), holders, capacity, count);
    });
  }

  Expected<BrokerInfo> Broker() const {
    auto info = internal::Sized<BrokerInfo>();
    if (gpushm_broker_get_info(handle_, &info) != GPUSHM_OK) return std::unexpected(Error::Last());
    return info;
  }

  // ---- attaching and making

  Expected<Attachment> Attach(const std::string& name, const AttachOptions& options = {}) const {
    auto raw = internal::Sized<gpushm_attach_options>();
    raw.access = options.access;
    raw.generation = options.generation;
    raw.timeout_ms = options.timeout.ms();
    raw.peer_devices = options.peer_devices;
    raw.stage = options.stage ? 1 : 0;
    gpushm_attachment* handle = nullptr;
    if (gpushm_attach(handle_, name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return Attachment(handle);
  }

  /// Makes a buffer in the pod's pool and attaches it for writing.
  Expected<Attachment> Create(const std::string& name, uint64_t size_bytes,
                              const CreateOptions& options = {}) const {
    const gpushm_create_options raw = Raw(options);
    gpushm_attachment* handle = nullptr;
    if (gpushm_create(handle_, name.c_str(), size_bytes, &raw, &handle) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return Attachment(handle);
  }

  /// Puts new memory behind a name; 0 bytes: as many as it has.
  Expected<Attachment> Replace(const std::string& name, uint64_t size_bytes = 0,
                               const CreateOptions& options = {}) const {
    const gpushm_create_options raw = Raw(options);
    gpushm_attachment* handle = nullptr;
    if (gpushm_replace(handle_, name.c_str(), size_bytes, &raw, &handle) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return Attachment(handle);
  }

  /// Offers memory that the application has; `address` is a CUdeviceptr.
  Expected<OfferResult> Offer(const std::string& name, uint64_t address, uint64_t size_bytes,
                              const OfferOptions& options = {}) const {
    auto raw = internal::Sized<gpushm_offer_options>();
    raw.writers = options.writers;
    raw.one_writer = options.one_writer ? 1 : 0;
    raw.on_writer_exit = options.on_writer_exit;
    raw.allow_copy = options.allow_copy ? 1 : 0;
    raw.timeout_ms = options.timeout.ms();
    raw.stream = options.stream;
    auto result = internal::Sized<OfferResult>();
    if (gpushm_offer(handle_, name.c_str(), address, size_bytes, &raw, &result) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return result;
  }

  Expected<void> Delete(const std::string& name, Timeout timeout = {}) const {
    auto options = internal::Sized<gpushm_delete_options>();
    options.timeout_ms = timeout.ms();
    return internal::Check(gpushm_delete(handle_, name.c_str(), &options));
  }

  // ---- files

  Expected<TransferResult> Load(const std::string& name, const std::string& path,
                                const TransferOptions& options = {}) const {
    return Transfer(gpushm_load, name, path.c_str(), -1, options);
  }
  /// From a descriptor, which stays open: a pipe to its end, or a file from where it stands.
  Expected<TransferResult> Load(const std::string& name, int descriptor,
                                const TransferOptions& options = {}) const {
    return Transfer(gpushm_load, name, nullptr, descriptor, options);
  }
  Expected<TransferResult> Save(const std::string& name, const std::string& path,
                                const TransferOptions& options = {}) const {
    return Transfer(gpushm_save, name, path.c_str(), -1, options);
  }
  /// To a descriptor, in order; it stays open.
  Expected<TransferResult> Save(const std::string& name, int descriptor,
                                const TransferOptions& options = {}) const {
    return Transfer(gpushm_save, name, nullptr, descriptor, options);
  }

  gpushm_client* get() const { return handle_; }

 private:
  explicit Client(gpushm_client* handle) : handle_(handle) {}

  static gpushm_create_options Raw(const CreateOptions& options) {
    auto raw = internal::Sized<gpushm_create_options>();
    raw.writers = options.writers;
    raw.one_writer = options.one_writer ? 1 : 0;
    raw.on_writer_exit = options.on_writer_exit;
    raw.unpublished = options.unpublished ? 1 : 0;
    raw.timeout_ms = options.timeout.ms();
    return raw;
  }

  // Asks with more room until everything fits.
  template <typename T, typename Ask>
  static Expected<std::vector<T>> Collect(Ask ask) {
    std::vector<T> entries;
    size_t count = 0;
    do {
      entries.assign(count == 0 ? 64 : count + count / 4, internal::Sized<T>());
      if (ask(entries.data(), entries.size(), &count) != GPUSHM_OK) {
        return std::unexpected(Error::Last());
      }
    } while (count > entries.size());
    entries.resize(count);
    return entries;
  }

  template <typename Function>
  Expected<TransferResult> Transfer(Function function, const std::string& name, const char* path,
                                    int descriptor, const TransferOptions& options) const {
    auto raw = internal::Sized<gpushm_transfer_options>();
    raw.method = options.method;
    raw.chunk_bytes = options.chunk_bytes;
    raw.file_method = options.file_method;
    raw.chunks = options.chunks;
    raw.threads = options.threads;
    raw.descriptor = descriptor;
    raw.whole = options.whole ? 1 : 0;
    raw.timeout_ms = options.timeout.ms();
    if (options.progress) {
      raw.user = const_cast<TransferOptions*>(&options);
      raw.progress = [](void* user, uint64_t done_bytes, uint64_t total_bytes) {
        return static_cast<TransferOptions*>(user)->progress(done_bytes, total_bytes) ? 0 : 1;
      };
    }
    auto result = internal::Sized<TransferResult>();
    if (function(handle_, name.c_str(), path, &raw, &result) != GPUSHM_OK) {
      return std::unexpected(Error::Last());
    }
    return result;
  }

  gpushm_client* handle_;
};

}  // namespace gpushm

#endif  // GPUSHM_GPUSHM_HPP_
