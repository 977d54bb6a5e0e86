// The frame around every function of the C ABI: handles, the catch-all, the thread's last error,
// and structs of other sizes than this library's.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "contract/limits.h"
#include "platform/base/status.h"
#include "runtime/client/client.h"
#include "runtime/client/handles.h"
#include "runtime/client/wait.h"
#include "runtime/include/gpushm/gpushm.h"

namespace gpushm::client {

// A larger struct_size is not plausible.
inline constexpr size_t kMaxStructBytes = 4096;

// Stores the failure for gpushm_last_error. It never throws, and it still works when host memory is
// used up.
gpushm_status Remember(const Status& status) noexcept;
// With texts that are never freed.
gpushm_status RememberStatic(gpushm_status code, const char* what, const char* remedy) noexcept;
// For an exception that should have been caught earlier; `text` is its what().
gpushm_status RememberException(const char* text) noexcept;

// The object behind a handle; null if the handle is not valid (any more).
inline Client* FromHandle(const gpushm_client* handle) noexcept {
  return static_cast<Client*>(Handle::Find(HandleKind::kClient, handle));
}
inline Attachment* FromHandle(const gpushm_attachment* handle) noexcept {
  return static_cast<Attachment*>(Handle::Find(HandleKind::kAttachment, handle));
}
// For invalid handles: stores the reason as the last error.
gpushm_status RememberWhyNot(HandleKind kind, const void* handle) noexcept;

// Runs one call: `body` returns Result<void>. A failure counts for `client`, which may be null.
template <typename Body>
gpushm_status Enter(Client* client, Body body) noexcept {
  try {
    const Result<void> done = body();
    if (done) return GPUSHM_OK;
    if (client != nullptr) client->counters().AddError(done.error().code());
    return Remember(done.error());
  } catch (const std::bad_alloc&) {
    return RememberStatic(GPUSHM_EXHAUSTED, "out of host memory",
                          "free host memory, or raise the container's memory limit");
  } catch (const std::exception& error) {
    return RememberException(error.what());
  } catch (...) {
    return RememberStatic(GPUSHM_INTERNAL, "an exception was thrown inside gpushm",
                          "this is a bug of gpushm: please report it");
  }
}
// For a call that only asks a question: its failure is an answer and does not count.
template <typename Body>
gpushm_status Enter(Body body) noexcept {
  return Enter(nullptr, std::move(body));
}
// `body` gets the client.
template <typename Body>
gpushm_status EnterClient(gpushm_client* handle, Body body) noexcept {
  Client* const client = FromHandle(handle);
  if (client == nullptr) return RememberWhyNot(HandleKind::kClient, handle);
  return Enter(client, [&] { return body(*client); });
}

inline Result<void> CheckArgument(bool holds, const char* what) {
  if (holds) return {};
  return Fail(Code::kInvalidArgument, what);
}

// Checks the struct_size that the caller set.
Result<void> CheckStructSize(size_t struct_size, const char* name);
// For options of a newer header: every field that this library does not know must be zero.
Result<void> CheckUnknownTail(const void* options, size_t known, size_t struct_size,
                              const char* name);

// For fields that only a later version gives a meaning to. They must be zero until then.
Result<void> CheckReservedValue(const char* field, uint64_t value);
Result<void> CheckReservedType(const char* field, std::span<const unsigned char> type);

// The caller's options in this library's layout. NULL gives the defaults; missing fields are zero.
template <typename Options>
Result<Options> ReadOptions(const Options* given, const char* name) {
  static_assert(std::is_trivially_copyable_v<Options> && offsetof(Options, struct_size) == 0);
  Options options{};
  if (given == nullptr) return options;
  size_t struct_size = 0;
  std::memcpy(&struct_size, given, sizeof struct_size);
  if (auto valid = CheckStructSize(struct_size, name); !valid) {
    return std::unexpected(valid.error());
  }
  if (auto valid = CheckUnknownTail(given, sizeof options, struct_size, name); !valid) {
    return std::unexpected(valid.error());
  }
  std::memcpy(&options, given, std::min(struct_size, sizeof options));
  return options;
}

// Fills the caller's struct of any size. Fields that do not fit are left out; bytes that this
// library does not know are zeroed. `struct_size` keeps the caller's value. Call CheckStructSize
// before the work is done.
template <typename Info>
void WriteInfo(Info info, void* given, size_t struct_size) {
  static_assert(std::is_trivially_copyable_v<Info> && offsetof(Info, struct_size) == 0);
  info.struct_size = struct_size;
  std::memcpy(given, &info, std::min(struct_size, sizeof info));
  if (struct_size > sizeof info) {
    std::memset(static_cast<char*>(given) + sizeof info, 0, struct_size - sizeof info);
  }
}

// A signal, barrier or ring that a handle of the C API refers to.
template <typename Object>
class Opened final : public ClientObject {
 public:
  Opened(HandleKind kind, std::unique_ptr<Object> opened)
      : object(std::move(opened)), handle(kind, this) {}
  const std::shared_ptr<Object> object;  // Waiters share it.
  const Handle handle;
};

// Calls `body` for a signal, barrier or ring. Errors begin with `what` ("signal") and its name.
template <typename Object, typename Body>
gpushm_status EnterWith(HandleKind kind, const void* handle, const char* what, Body body) noexcept {
  auto* const opened = static_cast<Opened<Object>*>(Handle::Find(kind, handle));
  if (opened == nullptr) return RememberWhyNot(kind, handle);
  return Enter(opened->object->client(), [&]() -> Result<void> {
    const Result<void> done = body(*opened->object);
    if (done) return {};
    return std::unexpected(
        done.error().WithContext(Concat(what, " \"", opened->object->name(), '"')));
  });
}

// Closes and destroys the object. If it cannot be closed, the error says why and it stays open.
template <typename Object>
gpushm_status CloseNamed(HandleKind kind, const void* handle, const char* what) {
  if (handle == nullptr) return GPUSHM_OK;
  const gpushm_status status =
      EnterWith<Object>(kind, handle, what, [](Object& object) { return object.Close(); });
  auto* const opened = static_cast<Opened<Object>*>(Handle::Find(kind, handle));
  if (status == GPUSHM_OK) opened->object->client()->Disown(opened);
  return status;
}

// Opens a signal, barrier or ring. `open` gets the client, the name, the options and the time to
// wait, and returns an owning pointer to the object.
template <typename Opaque, typename Options, typename Open>
gpushm_status OpenNamed(gpushm_client* client, const char* name, const Options* options,
                        HandleKind kind, const char* what, Opaque** handle, Open open) {
  return EnterClient(client, [&](Client& of) -> Result<void> {
    if (name == nullptr || handle == nullptr) {
      return Fail(Code::kInvalidArgument, Concat("name or ", what, " is NULL"));
    }
    *handle = nullptr;
    const auto given = ReadOptions(options, Concat(what, "_options").c_str());
    if (!given) return std::unexpected(given.error());
    const auto wait = Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const std::string_view text(name, strnlen(name, limits::kNameBytes + 2));
    auto opened = open(&of, text, *given, *wait);
    if (!opened) {
      return std::unexpected(opened.error().WithContext(Concat("open ", what, " \"", text, '"')));
    }
    using Object = std::remove_reference_t<decltype(**opened)>;
    auto owned = std::make_unique<Opened<Object>>(kind, std::move(*opened));
    *handle = owned->handle.template As<Opaque>();
    of.Own(std::move(owned));
    return {};
  });
}

// Calls `fill`, then copies the result into the caller's struct of any size.
template <typename Info, typename Fill>
Result<void> FillInfo(Info* info, const char* name, Fill fill) {
  if (info == nullptr) return Fail(Code::kInvalidArgument, Concat(name, " is NULL"));
  if (auto valid = CheckStructSize(info->struct_size, name); !valid) return valid;
  Info filled{};
  if (Result<void> done = fill(&filled); !done) return done;
  WriteInfo(filled, info, info->struct_size);
  return {};
}

inline Result<std::string_view> ReadName(const char* name) {
  if (name == nullptr) return Fail(Code::kInvalidArgument, "name is NULL");
  return std::string_view(name, strnlen(name, limits::kNameBytes + 2));
}

// Entries are `struct_size` of the first entry apart.
template <typename Info, typename Entries, typename Convert>
Result<void> WriteArray(const Entries& entries, Info* given, size_t capacity, size_t* count,
                        size_t stride, Convert convert) {
  size_t filled = 0;
  for (const auto& entry : entries) {
    if (filled == capacity) break;
    WriteInfo(convert(entry), reinterpret_cast<char*>(given) + filled * stride, stride);
    ++filled;
  }
  *count = entries.size();
  return {};
}

template <typename Info>
Result<size_t> Stride(const Info* given, size_t capacity, const size_t* count, const char* name) {
  if (count == nullptr) return Fail(Code::kInvalidArgument, "count is NULL");
  if (capacity == 0) return sizeof(Info);
  if (given == nullptr) return Fail(Code::kInvalidArgument, Concat(name, " is NULL"));
  if (auto valid = CheckStructSize(given->struct_size, name); !valid) {
    return std::unexpected(valid.error());
  }
  return given->struct_size;
}

inline std::vector<CUstream> ToStreams(void* const* streams, size_t count) {
  std::vector<CUstream> all;
  for (size_t i = 0; i < count; ++i) all.push_back(static_cast<CUstream>(streams[i]));
  return all;
}

// The numbers are the same (numbers.cc).
inline gpushm_status ToStatus(Code code) { return static_cast<gpushm_status>(code); }

inline Access ToAccess(uint32_t access) {
  return access == GPUSHM_ACCESS_READ_WRITE ? Access::kReadWrite : Access::kRead;
}

inline gpushm_attachment* ToHandle(const Attachment* attachment) {
  return attachment->handle().As<gpushm_attachment>();
}

template <size_t N>
void CopyText(char (&to)[N], std::string_view text) {
  std::memset(to, 0, N);
  text.copy(to, N - 1);
}
inline void CopyDigest(const Digest& digest, char* to) {
  std::memset(to, 0, GPUSHM_DIGEST_BYTES);
  digest.ToString().copy(to, GPUSHM_DIGEST_BYTES - 1);
}

}  // namespace gpushm::client
