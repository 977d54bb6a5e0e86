/// gpushm for C++: owners, results and std::chrono over the C functions of gpushm.h. The comments
/// in gpushm.h are the contract. The header is all; link with libgpushm (gpushm::gpushm in CMake).
///
///     auto client = gpushm::Client::Open();
///     if (!client) return Report(client.error());
///     auto weights = client->Attach("weights");
///     if (!weights) return Report(weights.error());   // error().text(): cause and remedy
///     Launch(weights->As<const float>(), weights->size_bytes() / sizeof(float));
///
/// It needs C++17, and compiles with GCC, clang and nvcc. No function throws an exception of its
/// own. Everything is in `inline namespace v0`, so that two versions of these headers can be in one
/// process.
///
/// Threads: any thread may call any function of a Client, except that no other thread may use it
/// while it is moved or destroyed. The same holds for a Description. One thread at a time may use
/// an Attachment, as with std::unique_ptr; attach once for each thread, because attachments are
/// counted.
///
/// fork(): what the parent opened is not open in the child. There, destructors change nothing, and
/// calls return GPUSHM_FORKED.
#ifndef GPUSHM_GPUSHM_HPP_
#define GPUSHM_GPUSHM_HPP_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpushm.h"
#include "result.hpp"

namespace gpushm {
inline namespace v0 {

/// A view of values that lie in a row: what std::span is, which C++17 does not have. It converts
/// from arrays, std::vector, std::array and std::span.
template <typename T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(T* data, size_t size) : data_(data), size_(size) {}
  template <size_t kSize>
  constexpr Span(T (&array)[kSize]) : data_(array), size_(kSize) {}  // NOLINT: implicit.
  template <typename Container,
            typename = std::enable_if_t<std::is_convertible_v<
                std::remove_pointer_t<decltype(std::declval<Container&>().data())> (*)[],
                T (*)[]>>>
  constexpr Span(Container&& container)  // NOLINT: implicit.
      : data_(container.data()), size_(container.size()) {}

  constexpr T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }
  constexpr T& operator[](size_t index) const { return data_[index]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

/// How long a call may wait. The default is ten seconds, and ten minutes for a transfer.
class Timeout {
  // Before its callers: clang 19 needs that for constant expressions.
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

 public:
  constexpr Timeout() = default;
  /// 0 or less does not wait. Other durations are rounded up to whole milliseconds. Any duration is
  /// allowed, for example std::chrono::hours::max(): the library waits a year at most.
  template <typename Rep, typename Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> wait)  // NOLINT: `5s` is a timeout.
      : ms_(ToMs(wait)) {}
  static constexpr Timeout DontWait() { return Timeout(std::chrono::milliseconds(0)); }
  constexpr int64_t ms() const { return ms_; }

 private:
  int64_t ms_ = 0;
};

/// The C structs under their C++ names; gpushm.h explains the fields.
using Info = gpushm_info;
using Reason = gpushm_reason;
using Holder = gpushm_holder;
using BrokerInfo = gpushm_broker_info;
using GpuInfo = gpushm_gpu_info;
using AttachmentInfo = gpushm_attachment_info;
using OfferResult = gpushm_offer_result;
using OfferInfo = gpushm_offer_info;
using TransferResult = gpushm_transfer_result;

struct OpenOptions {
  std::string folder{};   ///< Folder of the socket; empty: $GPUSHM_DIR, else /run/gpushm.
  std::string pod_uid{};  ///< For hostIPC pods: the pod whose buffers are meant.
  std::string driver{};   ///< Folder of libcuda.so.1; empty: $GPUSHM_DRIVER, else the loader's.
  Timeout timeout{};
};

struct AttachOptions {
  gpushm_access access = GPUSHM_ACCESS_READ;
  uint64_t generation = 0;  ///< 0: the current one; else exactly this one, or GPUSHM_STALE.
  Timeout timeout{};
  uint64_t peer_devices = 0;  ///< Bit i: the GPU with ordinal i of this process uses it as well.
  bool stage = false;         ///< A copy for a GPU that cannot reach it, see gpushm.h.
};

struct CreateOptions {
  gpushm_writers writers = GPUSHM_WRITERS_CREATOR;
  bool one_writer = false;
  gpushm_on_writer_exit on_writer_exit = GPUSHM_WRITER_EXIT_MARK;
  bool unpublished = false;  ///< Others see it only after Attachment::Publish.
  Timeout timeout{};
  gpushm_exist exist = GPUSHM_EXIST_FAIL;  ///< Of Create: what to do if the name exists.
  uint32_t gpu = 0;                        ///< Of Create: the GPU's number among the pod's.
};

struct DescriptionOptions {
  /// 0: the current one, once it exists and is not LOADING; else exactly this one, or GPUSHM_STALE.
  uint64_t generation = 0;
  Timeout timeout{};
};

struct OfferOptions {
  gpushm_writers writers = GPUSHM_WRITERS_CREATOR;
  bool one_writer = false;
  gpushm_on_writer_exit on_writer_exit = GPUSHM_WRITER_EXIT_MARK;
  bool allow_copy = false;  ///< Copy once if the memory cannot be shared as it is.
  Timeout timeout{};
  /// CUstream whose work fills the memory and is done before others see it. nullptr: see gpushm.h.
  void* stream = nullptr;
};

struct TransferOptions {
  uint64_t chunk_bytes = 0;
  gpushm_file_method file_method = GPUSHM_FILE_AUTO;
  uint32_t chunks = 0;
  uint32_t threads = 0;  ///< Besides the calling one; 0: up to 8, or GPUSHM_NO_THREADS.
  bool whole = false;    ///< To save: all of the buffer, not only its content.
  /// Called between chunks with (done, total); false stops. Must not throw.
  std::function<bool(uint64_t, uint64_t)> progress{};
  Timeout timeout{};
  gpushm_format format = GPUSHM_FORMAT_AUTO;  ///< What the bytes of the file are.
  uint64_t bytes = 0;    ///< To load: how many must come, neither less nor more; 0: not said.
  std::string digest{};  ///< To load: that of the content; empty: any content.
};

namespace detail {
template <typename T>
T Sized() {
  T value{};
  value.struct_size = sizeof value;
  return value;
}
inline Result<void> ToResult(gpushm_status status) {
  if (status == GPUSHM_OK) return {};
  return Error::Last();
}
inline const char* OrNull(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }
inline gpushm_description_options Raw(const DescriptionOptions& options) {
  auto raw = Sized<gpushm_description_options>();
  raw.generation = options.generation;
  raw.timeout_ms = options.timeout.ms();
  return raw;
}
/// `call` gets the options and the result as the C functions take them.
template <typename Call>
Result<TransferResult> Transfer(const TransferOptions& options, int descriptor, Call call) {
  auto raw = Sized<gpushm_transfer_options>();
  raw.chunk_bytes = options.chunk_bytes;
  raw.file_method = options.file_method;
  raw.chunks = options.chunks;
  raw.threads = options.threads;
  raw.descriptor = descriptor;
  raw.whole = options.whole ? 1 : 0;
  raw.format = options.format;
  raw.bytes = options.bytes;
  raw.digest = OrNull(options.digest);
  raw.timeout_ms = options.timeout.ms();
  if (options.progress) {
    raw.user = const_cast<TransferOptions*>(&options);
    raw.progress = [](void* user, uint64_t done_bytes, uint64_t total_bytes) {
      return static_cast<TransferOptions*>(user)->progress(done_bytes, total_bytes) ? 0 : 1;
    };
  }
  auto result = Sized<TransferResult>();
  if (call(&raw, &result) != GPUSHM_OK) return Error::Last();
  return result;
}
/// For std::unique_ptr of a handle whose close always succeeds.
template <auto kClose>
struct Closer {
  template <typename Handle>
  void operator()(Handle* handle) const {
    kClose(handle);
  }
};
}  // namespace detail

/// The digest that a buffer has after a load of that path; see gpushm_file_digest.
inline Result<std::string> FileDigest(const std::string& path,
                                      gpushm_format format = GPUSHM_FORMAT_AUTO) {
  char digest[GPUSHM_DIGEST_BYTES];
  if (gpushm_file_digest(path.c_str(), format, digest) != GPUSHM_OK) return Error::Last();
  return std::string(digest);
}

/// One use of a buffer by this process. The destructor detaches it at once and does not check
/// whether work on the GPU still uses the buffer, so that work must have ended. Detach(streams)
/// checks it, and returns GPUSHM_BUSY while work is pending. With the last attachment the lease
/// ends, and a generation that is not published yet is deleted.
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

  /// GPUSHM_OK, GPUSHM_STALE or GPUSHM_ORPHANED. One load, no system call.
  gpushm_status Check() const { return gpushm_attachment_check(handle_); }
  Result<AttachmentInfo> GetInfo() const {
    auto info = detail::Sized<AttachmentInfo>();
    if (gpushm_attachment_get_info(handle_, &info) != GPUSHM_OK) {
      return Error::Last();
    }
    return info;
  }

  /// Shows an unpublished buffer or generation to the other processes.
  Result<void> Publish() { return detail::ToResult(gpushm_attachment_publish(handle_)); }
  /// Sets how many bytes, from the start, are content, if the writer fills the buffer itself.
  Result<void> SetContent(uint64_t content_bytes) {
    return detail::ToResult(gpushm_attachment_set_content(handle_, content_bytes));
  }

  /// Says what the bytes of this generation are: 1 to GPUSHM_DESCRIPTION_BYTES bytes, which are
  /// copied and which everybody who may attach the buffer can read (Description). Call it before
  /// Publish; what is published and has a description keeps it (GPUSHM_ALREADY_EXISTS).
  Result<void> SetDescription(const void* data, uint64_t size_bytes) {
    return detail::ToResult(gpushm_attachment_set_description(handle_, data, size_bytes));
  }
  Result<void> SetDescription(std::string_view bytes) {
    return SetDescription(bytes.data(), bytes.size());
  }

  /// Fills this generation from a file. Meant for one that is not published: then readers have the
  /// former generation until Publish, and after a failure, too. See gpushm_attachment_load.
  Result<TransferResult> Load(const std::string& path, const TransferOptions& options = {}) {
    return Transfer(gpushm_attachment_load, path.c_str(), -1, options);
  }
  /// From a descriptor, which stays open: a pipe to its end, or a file from its position.
  Result<TransferResult> Load(int descriptor, const TransferOptions& options = {}) {
    return Transfer(gpushm_attachment_load, nullptr, descriptor, options);
  }
  /// Writes this generation's content to a file, also that of an older or unpublished generation.
  Result<TransferResult> Save(const std::string& path, const TransferOptions& options = {}) const {
    return Transfer(gpushm_attachment_save, path.c_str(), -1, options);
  }
  /// To a descriptor, in order; it stays open.
  Result<TransferResult> Save(int descriptor, const TransferOptions& options = {}) const {
    return Transfer(gpushm_attachment_save, nullptr, descriptor, options);
  }

  /// Of the content, from what the GPU's memory has now; see gpushm_attachment_digest. An
  /// unpublished generation keeps it.
  Result<std::string> Digest() {
    char digest[GPUSHM_DIGEST_BYTES];
    if (gpushm_attachment_digest(handle_, digest) != GPUSHM_OK) return Error::Last();
    return std::string(digest);
  }

  /// Detaches if no work is pending on `streams` (CUstream); GPUSHM_BUSY, and nothing is detached,
  /// otherwise. With `defer` the buffer is detached once that work has ended.
  Result<void> Detach(Span<void* const> streams = {}, bool defer = false) {
    auto options = detail::Sized<gpushm_detach_options>();
    options.streams = streams.data();
    options.stream_count = streams.size();
    options.defer = defer ? 1 : 0;
    auto done = detail::ToResult(gpushm_attachment_detach(handle_, &options));
    if (done) handle_ = nullptr;
    return done;
  }

  /// Puts a newer generation at this address, once the work on `streams` has ended; see
  /// gpushm_attachment_advance. No other work may use the buffer.
  /// `generation` 0: the newest.
  Result<void> Advance(Span<void* const> streams = {}, Timeout timeout = {},
                       uint64_t generation = 0) {
    auto options = detail::Sized<gpushm_advance_options>();
    options.generation = generation;
    options.streams = streams.data();
    options.stream_count = streams.size();
    options.timeout_ms = timeout.ms();
    return detail::ToResult(gpushm_attachment_advance(handle_, &options));
  }

  gpushm_attachment* get() const { return handle_; }
  /// Passes the handle to the caller, who detaches it.
  [[nodiscard]] gpushm_attachment* Release() { return std::exchange(handle_, nullptr); }

 private:
  template <typename Function>
  Result<TransferResult> Transfer(Function function, const char* path, int descriptor,
                                  const TransferOptions& options) const {
    return detail::Transfer(options, descriptor, [&](const auto* raw, auto* result) {
      return function(handle_, path, raw, result);
    });
  }
  void Reset() {
    if (handle_ != nullptr) (void)gpushm_attachment_detach(handle_, nullptr);
    handle_ = nullptr;
  }
  gpushm_attachment* handle_ = nullptr;
};

/// A connection to the broker of this pod. The destructor detaches what is still attached, and
/// closes signals, barriers and rings that are still open, whether work uses them or not: that work
/// must have ended. An Attachment that outlives its Client has the address 0, and its calls return
/// GPUSHM_INVALID_ARGUMENT.
class Client {
 public:
  static Result<Client> Open(const OpenOptions& options = {}) {
    auto raw = detail::Sized<gpushm_open_options>();
    raw.folder = detail::OrNull(options.folder);
    raw.pod_uid = detail::OrNull(options.pod_uid);
    raw.driver = detail::OrNull(options.driver);
    raw.timeout_ms = options.timeout.ms();
    gpushm_client* handle = nullptr;
    if (gpushm_open(&raw, &handle) != GPUSHM_OK) return Error::Last();
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
  Result<Info> Lookup(const std::string& name) const {
    auto info = detail::Sized<Info>();
    if (gpushm_lookup(handle_, name.c_str(), &info) != GPUSHM_OK) {
      return Error::Last();
    }
    return info;
  }

  /// Why a buffer has no content: `text` is one line, and "" if nobody stated a reason.
  /// Experimental.
  Result<Reason> LookupReason(const std::string& name) const {
    auto reason = detail::Sized<Reason>();
    if (gpushm_lookup_reason(handle_, name.c_str(), &reason) != GPUSHM_OK) {
      return Error::Last();
    }
    return reason;
  }

  /// All buffers, ordered by name.
  Result<std::vector<Info>> List() const {
    return Collect<Info>([&](Info* infos, size_t capacity, size_t* count) {
      return gpushm_list(handle_, infos, capacity, count);
    });
  }

  /// Waits until the buffer exists with at least this generation and has its content.
  Result<Info> Wait(const std::string& name, uint64_t min_generation = 0,
                    Timeout timeout = {}) const {
    auto options = detail::Sized<gpushm_wait_options>();
    options.timeout_ms = timeout.ms();
    auto info = detail::Sized<Info>();
    if (gpushm_wait(handle_, name.c_str(), min_generation, &options, &info) != GPUSHM_OK) {
      return Error::Last();
    }
    return info;
  }

  /// The processes that use the buffer; with an empty name, those that use any buffer.
  Result<std::vector<Holder>> ListHolders(const std::string& name = {}) const {
    return Collect<Holder>([&](Holder* holders, size_t capacity, size_t* count) {
      return gpushm_list_holders(handle_, detail::OrNull(name), holders, capacity, count);
    });
  }

  /// The pod's GPUs, by number.
  Result<std::vector<GpuInfo>> ListGpus() const {
    return Collect<GpuInfo>([&](GpuInfo* infos, size_t capacity, size_t* count) {
      return gpushm_list_gpus(handle_, infos, capacity, count);
    });
  }

  Result<BrokerInfo> GetBrokerInfo() const {
    auto info = detail::Sized<BrokerInfo>();
    if (gpushm_broker_get_info(handle_, &info) != GPUSHM_OK) return Error::Last();
    return info;
  }

  // ---- attaching and making

  Result<Attachment> Attach(const std::string& name, const AttachOptions& options = {}) const {
    auto raw = detail::Sized<gpushm_attach_options>();
    raw.access = options.access;
    raw.generation = options.generation;
    raw.timeout_ms = options.timeout.ms();
    raw.peer_devices = options.peer_devices;
    raw.stage = options.stage ? 1 : 0;
    gpushm_attachment* handle = nullptr;
    if (gpushm_attach(handle_, name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return Error::Last();
    }
    return Attachment(handle);
  }

  /// Makes a buffer in the pod's pool and attaches it for writing.
  Result<Attachment> Create(const std::string& name, uint64_t size_bytes,
                            const CreateOptions& options = {}) const {
    const gpushm_create_options raw = Raw(options);
    gpushm_attachment* handle = nullptr;
    if (gpushm_create(handle_, name.c_str(), size_bytes, &raw, &handle) != GPUSHM_OK) {
      return Error::Last();
    }
    return Attachment(handle);
  }

  /// Makes a buffer and does not attach it, which needs no GPU in this process, for example before
  /// Load. `unpublished` is not possible.
  Result<void> CreateUnattached(const std::string& name, uint64_t size_bytes,
                                const CreateOptions& options = {}) const {
    const gpushm_create_options raw = Raw(options);
    return detail::ToResult(gpushm_create(handle_, name.c_str(), size_bytes, &raw, nullptr));
  }

  /// Gives a name new memory; 0 bytes: the size that it has.
  Result<Attachment> Replace(const std::string& name, uint64_t size_bytes = 0,
                             const CreateOptions& options = {}) const {
    const gpushm_create_options raw = Raw(options);
    gpushm_attachment* handle = nullptr;
    if (gpushm_replace(handle_, name.c_str(), size_bytes, &raw, &handle) != GPUSHM_OK) {
      return Error::Last();
    }
    return Attachment(handle);
  }

  /// Offers memory that the application has; `address` is a CUdeviceptr.
  Result<OfferResult> Offer(const std::string& name, uint64_t address, uint64_t size_bytes,
                            const OfferOptions& options = {}) const {
    auto raw = detail::Sized<gpushm_offer_options>();
    raw.writers = options.writers;
    raw.one_writer = options.one_writer ? 1 : 0;
    raw.on_writer_exit = options.on_writer_exit;
    raw.allow_copy = options.allow_copy ? 1 : 0;
    raw.timeout_ms = options.timeout.ms();
    raw.stream = options.stream;
    auto result = detail::Sized<OfferResult>();
    if (gpushm_offer(handle_, name.c_str(), address, size_bytes, &raw, &result) != GPUSHM_OK) {
      return Error::Last();
    }
    return result;
  }

  /// Who uses offered memory still. `generation` is that of OfferResult.
  Result<OfferInfo> OfferState(const std::string& name, uint64_t generation) const {
    auto info = detail::Sized<OfferInfo>();
    if (gpushm_offer_state(handle_, name.c_str(), generation, &info) != GPUSHM_OK) {
      return Error::Last();
    }
    return info;
  }

  Result<void> Delete(const std::string& name, Timeout timeout = {}) const {
    auto options = detail::Sized<gpushm_delete_options>();
    options.timeout_ms = timeout.ms();
    return detail::ToResult(gpushm_delete(handle_, name.c_str(), &options));
  }

  // ---- files

  Result<TransferResult> Load(const std::string& name, const std::string& path,
                              const TransferOptions& options = {}) const {
    return Transfer(gpushm_load, name, path.c_str(), -1, options);
  }
  /// From a descriptor, which stays open: a pipe to its end, or a file from its position.
  Result<TransferResult> Load(const std::string& name, int descriptor,
                              const TransferOptions& options = {}) const {
    return Transfer(gpushm_load, name, nullptr, descriptor, options);
  }
  Result<TransferResult> Save(const std::string& name, const std::string& path,
                              const TransferOptions& options = {}) const {
    return Transfer(gpushm_save, name, path.c_str(), -1, options);
  }
  /// To a descriptor, in order; it stays open.
  Result<TransferResult> Save(const std::string& name, int descriptor,
                              const TransferOptions& options = {}) const {
    return Transfer(gpushm_save, name, nullptr, descriptor, options);
  }

  gpushm_client* get() const { return handle_; }

 private:
  explicit Client(gpushm_client* handle) : handle_(handle) {}

  static gpushm_create_options Raw(const CreateOptions& options) {
    auto raw = detail::Sized<gpushm_create_options>();
    raw.writers = options.writers;
    raw.one_writer = options.one_writer ? 1 : 0;
    raw.on_writer_exit = options.on_writer_exit;
    raw.unpublished = options.unpublished ? 1 : 0;
    raw.exist = options.exist;
    raw.gpu = options.gpu;
    raw.timeout_ms = options.timeout.ms();
    return raw;
  }

  // Asks with more room until everything fits.
  template <typename T, typename Ask>
  static Result<std::vector<T>> Collect(Ask ask) {
    std::vector<T> entries;
    size_t count = 0;
    do {
      entries.assign(count == 0 ? 64 : count + count / 4, detail::Sized<T>());
      if (ask(entries.data(), entries.size(), &count) != GPUSHM_OK) {
        return Error::Last();
      }
    } while (count > entries.size());
    entries.resize(count);
    return entries;
  }

  template <typename Function>
  Result<TransferResult> Transfer(Function function, const std::string& name, const char* path,
                                  int descriptor, const TransferOptions& options) const {
    return detail::Transfer(options, descriptor, [&](const auto* raw, auto* result) {
      return function(handle_, name.c_str(), path, raw, result);
    });
  }

  gpushm_client* handle_;
};

/// What a writer said about the bytes of one generation of a buffer (Attachment::SetDescription):
/// bytes in host memory that never change.
///
/// The destructor unmaps them, so that data() and text() are invalid afterwards; a move keeps them
/// valid. A Description holds no lease: the GPU memory and the work that uses it do not depend on
/// it, and its bytes stay readable when the generation or the Client is gone.
class Description {
 public:
  Description() = default;
  explicit Description(gpushm_description* handle) : handle_(handle) {}

  /// Needs the right to attach the buffer for reading, but no GPU. A generation without a
  /// description is no error: size() is 0 then.
  static Result<Description> Open(const Client& client, const std::string& name,
                                  const DescriptionOptions& options = {}) {
    const gpushm_description_options raw = detail::Raw(options);
    gpushm_description* handle = nullptr;
    if (gpushm_description_open(client.get(), name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return Error::Last();
    }
    return Description(handle);
  }

  explicit operator bool() const { return handle_ != nullptr; }
  /// Aligned to 4096; nullptr if there are none.
  const unsigned char* data() const {
    return static_cast<const unsigned char*>(gpushm_description_data(get()));
  }
  size_t size() const { return gpushm_description_size(get()); }
  /// All bytes as characters. No NUL ends them, unless the writer set one.
  std::string_view text() const { return {reinterpret_cast<const char*>(data()), size()}; }
  /// The generation that it describes: attach exactly that one (AttachOptions::generation).
  uint64_t generation() const { return gpushm_description_generation(get()); }

  gpushm_description* get() const { return handle_.get(); }

 private:
  std::unique_ptr<gpushm_description, detail::Closer<gpushm_description_close>> handle_;
};

/// The version of the library in use: major * 10000 + minor * 100 + patch.
inline int LibraryVersion() { return gpushm_version(); }

}  // namespace v0
}  // namespace gpushm

#endif  // GPUSHM_GPUSHM_HPP_
