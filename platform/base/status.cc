#include "platform/base/status.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpushm {

std::string_view CodeName(Code code) {
  static constexpr std::array<std::string_view, kMaxCode + 1> kNames = {
      "OK",        "INVALID_ARGUMENT", "NOT_FOUND",    "ALREADY_EXISTS", "DENIED",      "EXHAUSTED",
      "CONTENDED", "TIMEOUT",          "INCOMPATIBLE", "CORRUPT",        "UNAVAILABLE", "ORPHANED",
      "STALE",     "PEER_DIED",        "DEVICE_LOST",  "BUSY",           "UNSUPPORTED", "DRIVER",
      "SYSTEM",    "FORKED",           "LOADING",      "INTERNAL",       "ENDED"};
  const int index = static_cast<int>(code);
  if (index < 0 || index > kMaxCode) return "UNKNOWN";
  return kNames[static_cast<size_t>(index)];
}

Status::Status(Code code, std::string what, std::string remedy, int sys_errno)
    : detail_(std::make_shared<const Detail>(
          Detail{code, std::move(what), std::move(remedy), sys_errno})) {}

std::string Status::ToString() const {
  std::string text = Concat(CodeName(code()), ": ", what());
  if (!remedy().empty()) text += Concat(". Remedy: ", remedy());
  return text;
}

Status Status::WithContext(std::string_view context) const {
  return Status(code(), Concat(context, ": ", what()), remedy(), sys_errno());
}

std::unexpected<Status> FailSystem(int error, std::string_view what, std::string remedy) {
  std::array<char, 128> buffer{};
  const char* text = strerror_r(error, buffer.data(), buffer.size());
  return std::unexpected(Status(Code::kSystem, Concat(what, ": ", text), std::move(remedy), error));
}

void AssertionFailed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "gpushm: bug: assertion %s failed at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace gpushm
