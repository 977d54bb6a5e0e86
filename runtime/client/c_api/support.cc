#include "runtime/client/c_api/support.h"

#include <algorithm>

namespace gpushm::client {
namespace {

struct LastError {
  std::string text;
  std::string what;
  std::string remedy;
  gpushm_error view{GPUSHM_OK, "", "", ""};
};
thread_local LastError last_error;

}  // namespace

gpushm_status RememberStatic(gpushm_status code, const char* what, const char* remedy) noexcept {
  last_error.view = gpushm_error{code, what, what, remedy};
  return code;
}

gpushm_status Remember(const Status& status) noexcept {
  const gpushm_status code = ToStatus(status.code());
  try {
    last_error.text = status.ToString();
    last_error.what = status.what();
    last_error.remedy = status.remedy();
    last_error.view = gpushm_error{code, last_error.text.c_str(), last_error.what.c_str(),
                                   last_error.remedy.c_str()};
    return code;
  } catch (...) {
    return RememberStatic(code, "out of host memory: the text of this error is lost", "");
  }
}

gpushm_status RememberException(const char* text) noexcept {
  constexpr const char* kRemedy = "this is a bug of gpushm: please report it";
  constexpr size_t kMaxTextBytes = 256;
  try {
    const std::string_view shown(text, strnlen(text, kMaxTextBytes));
    return Remember(
        Status(Code::kInternal, Concat("an exception was thrown inside gpushm: ", shown), kRemedy));
  } catch (...) {
    return RememberStatic(GPUSHM_INTERNAL, "an exception was thrown inside gpushm", kRemedy);
  }
}

gpushm_status RememberWhyNot(HandleKind kind, const void* handle) noexcept {
  return Enter([&]() -> Result<void> { return std::unexpected(Handle::WhyNot(kind, handle)); });
}

Result<void> CheckStructSize(size_t struct_size, const char* name) {
  if (struct_size >= sizeof(size_t) && struct_size <= kMaxStructBytes) return {};
  return Fail(Code::kInvalidArgument, Concat(name, ".struct_size is invalid: ", struct_size),
              "set it to the size of the struct, as GPUSHM_INIT does");
}

Result<void> CheckReservedValue(const char* field, uint64_t value) {
  if (value == 0) return {};
  return Fail(Code::kUnsupported,
              Concat(field, " is ", value, ": this library (version ", gpushm_version(),
                     ") supports only 0"),
              "leave it 0, or update libgpushm to a version that supports it");
}

Result<void> CheckReservedType(const char* field, std::span<const unsigned char> type) {
  if (std::ranges::all_of(type, [](unsigned char byte) { return byte == 0; })) return {};
  return Fail(
      Code::kUnsupported,
      Concat(field, " is set: this library (version ", gpushm_version(), ") cannot compare types"),
      "leave all its bytes 0, or update libgpushm to a version that supports it");
}

Result<void> CheckUnknownTail(const void* options, size_t known, size_t struct_size,
                              const char* name) {
  const auto* bytes = static_cast<const unsigned char*>(options);
  for (size_t i = known; i < struct_size; ++i) {
    if (bytes[i] != 0) {
      return Fail(Code::kInvalidArgument,
                  Concat(name, " sets a field that this library (version ", gpushm_version(),
                         ") does not know"),
                  "update libgpushm, which the node's plugin mounts "
                  "into the container, or leave the field zero");
    }
  }
  return {};
}

}  // namespace gpushm::client

using gpushm::client::last_error;

extern "C" {

const gpushm_error* gpushm_last_error(void) { return &last_error.view; }

const char* gpushm_status_name(gpushm_status status) {
  if (status == GPUSHM_OK) return "OK";
  const int code = static_cast<int>(status);
  if (code < 0 || code > gpushm::kMaxCode) return "UNKNOWN";
  return gpushm::CodeName(static_cast<gpushm::Code>(code)).data();
}

int gpushm_version(void) {
  return GPUSHM_VERSION_MAJOR * 10000 + GPUSHM_VERSION_MINOR * 100 + GPUSHM_VERSION_PATCH;
}

}  // extern "C"
