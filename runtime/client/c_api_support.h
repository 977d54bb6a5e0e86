// What every function of the C ABI is wrapped in: the fork guard, the catch-all, the thread's last
// error, and structs of other sizes than this library's.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/client/client.h"
#include "runtime/client/wait.h"
#include "runtime/include/gpushm/gpushm.h"

// The C handle of a client. An attachment's handle is the Attachment itself.
struct gpushm_client {
  std::unique_ptr<gpushm::client::Client> client;
};

namespace gpushm::client {

// A struct that is larger than this has no plausible struct_size.
inline constexpr size_t kMaxStructBytes = 4096;

// Stores the failure for gpushm_last_error; never throws, and allocates only what it can do
// without.
gpushm_status Remember(const Status& status) noexcept;
// With texts that live for ever.
gpushm_status RememberStatic(gpushm_status code, const char* what, const char* remedy) noexcept;

// True in a child of fork().
bool IsForkedChild() noexcept;

inline gpushm_status RememberForked() noexcept {
  return RememberStatic(GPUSHM_FORKED, "gpushm was called in a child of fork()",
                        "open a client in a fresh process: use spawn or exec instead of fork");
}

inline Client* ClientOf(gpushm_client* client) {
  return client == nullptr ? nullptr : client->client.get();
}
inline Client* ClientOf(gpushm_attachment* attachment) {
  return attachment == nullptr ? nullptr
                               : reinterpret_cast<Attachment*>(attachment)->facts().client;
}

// Runs one call: `body` returns Result<void>. `client` counts its failure; may be null.
template <typename Body>
gpushm_status Enter(Client* client, Body body) noexcept {
  if (IsForkedChild()) return RememberForked();
  try {
    const Result<void> done = body();
    if (done) return GPUSHM_OK;
    if (client != nullptr) client->counters().AddError(done.error().code());
    return Remember(done.error());
  } catch (const std::bad_alloc&) {
    return RememberStatic(GPUSHM_EXHAUSTED, "host memory is used up", "free some");
  } catch (const std::exception& error) {
    return RememberStatic(GPUSHM_INTERNAL, "an exception inside gpushm", "please report it");
  } catch (...) {
    return RememberStatic(GPUSHM_INTERNAL, "an exception inside gpushm", "please report it");
  }
}
// Of a call that is a question: its failure is an answer.
template <typename Body>
gpushm_status Enter(Body body) noexcept {
  return Enter(nullptr, std::move(body));
}

inline Result<void> CheckArgument(bool holds, const char* what) {
  if (holds) return {};
  return Fail(Code::kInvalidArgument, what);
}

// Checks a struct_size that the caller set.
Result<void> CheckStructSize(size_t struct_size, const char* name);
// Options of a newer header: what this library does not know must be zero.
Result<void> CheckUnknownTail(const void* options, size_t known, size_t struct_size,
                              const char* name);

// The caller's options in this library's layout: NULL gives defaults, missing fields are zero.
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

// Fills the caller's struct, whatever its size: what does not fit is left out, what this library
// does not know is zeroed. `struct_size` keeps the caller's value. Check it before work is done.
template <typename Info>
void WriteInfo(Info info, void* given, size_t struct_size) {
  static_assert(std::is_trivially_copyable_v<Info> && offsetof(Info, struct_size) == 0);
  info.struct_size = struct_size;
  std::memcpy(given, &info, std::min(struct_size, sizeof info));
  if (struct_size > sizeof info) {
    std::memset(static_cast<char*>(given) + sizeof info, 0, struct_size - sizeof info);
  }
}

// A signal, barrier or ring's call: what fails says `what` it is, "signal", and its name.
template <typename Object, typename Body>
gpushm_status EnterWith(Object* object, const char* what, Body body) noexcept {
  return Enter(object == nullptr ? nullptr : object->client(), [&]() -> Result<void> {
    if (object == nullptr) return Fail(Code::kInvalidArgument, Concat(what, " is NULL"));
    const Result<void> done = body(*object);
    if (done) return {};
    return std::unexpected(done.error().WithContext(Concat(what, " \"", object->name(), '"')));
  });
}

// Opens a signal, barrier or ring: `open` gets the client, the name, the options and how long to
// wait, and returns a pointer to what `Handle` holds.
template <typename Handle, typename Options, typename Open>
gpushm_status OpenNamed(gpushm_client* client, const char* name, const Options* options,
                        const char* what, Handle** handle, Open open) {
  return Enter(ClientOf(client), [&]() -> Result<void> {
    if (client == nullptr || name == nullptr || handle == nullptr) {
      return Fail(Code::kInvalidArgument, Concat("client, name or ", what, " is NULL"));
    }
    *handle = nullptr;
    const auto given = ReadOptions(options, Concat(what, "_options").c_str());
    if (!given) return std::unexpected(given.error());
    const auto wait = Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const std::string_view text(name, strnlen(name, limits::kNameBytes + 2));
    auto opened = open(client->client.get(), text, *given, *wait);
    if (!opened) {
      return std::unexpected(opened.error().WithContext(Concat("open ", what, " \"", text, '"')));
    }
    *handle = new Handle{std::move(*opened)};
    return {};
  });
}

// Calls `fill` for a struct that the caller gets, whatever its size.
template <typename Info, typename Fill>
Result<void> FillInfo(Info* info, const char* name, Fill fill) {
  if (info == nullptr) return Fail(Code::kInvalidArgument, Concat(name, " is NULL"));
  if (auto valid = CheckStructSize(info->struct_size, name); !valid) return valid;
  Info filled{};
  if (Result<void> done = fill(&filled); !done) return done;
  WriteInfo(filled, info, info->struct_size);
  return {};
}

inline Access ToAccess(uint32_t access) {
  return access == GPUSHM_READ_WRITE ? Access::kReadWrite : Access::kRead;
}

inline Attachment* FromHandle(gpushm_attachment* handle) {
  return reinterpret_cast<Attachment*>(handle);
}
inline const Attachment* FromHandle(const gpushm_attachment* handle) {
  return reinterpret_cast<const Attachment*>(handle);
}
inline gpushm_attachment* ToHandle(Attachment* attachment) {
  return reinterpret_cast<gpushm_attachment*>(attachment);
}

template <size_t N>
void CopyText(char (&to)[N], std::string_view text) {
  static_assert(N == GPUSHM_NAME_BYTES);
  std::memset(to, 0, N);
  text.copy(to, N - 1);
}

}  // namespace gpushm::client
