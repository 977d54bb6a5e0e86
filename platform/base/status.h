// The project's error type. A Status says which kind of failure it is, what failed, and what to do
// about it. It exists only for failures, so functions return Result<T> or Result<void>.
//
// Three kinds of failure are kept apart everywhere:
//   the caller's input   -> a Status
//   our own bug          -> GPUSHM_ASSERT in a daemon; kInternal in the library, because it runs in
//                           the user's process
//   a peer's bytes       -> validated where they are used; a Status, and the connection is closed
#pragma once

#include <expected>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace gpushm {

// One value for each kind of failure that a caller may branch on. The numbers are those of
// gpushm_status in gpushm.h and of the wire protocol: never renumber, only append.
enum class Code : int {
  kInvalidArgument = 1,  // The request is not valid as given.
  kNotFound = 2,         // There is no buffer (file, device ...) of that name.
  kAlreadyExists = 3,    // The name is taken.
  kDenied = 4,           // The pod's configuration does not allow it.
  kExhausted = 5,        // A limit of docs/reference/limits.md, the pool or the card is used up.
  kContended = 6,        // Bounded retries ran out; try again.
  kTimeout = 7,          // The deadline passed.
  kIncompatible = 8,     // A layout or protocol version that this side does not support.
  kCorrupt = 9,          // Bytes from a peer or from shared memory failed validation.
  kUnavailable = 10,     // No broker answers.
  kOrphaned = 11,        // The broker restarted without this buffer.
  kStale = 12,           // The name now refers to another generation.
  kPeerDied = 13,        // The process at the other end died.
  kDeviceLost = 14,      // The GPU fell off the bus or must be reset.
  kBusy = 15,            // Work is pending on it.
  kUnsupported = 16,     // This driver, GPU, kernel or memory does not support it.
  kDriver = 17,          // A CUDA or NVML call failed.
  kSystem = 18,          // A system call failed; sys_errno() has the error number.
  kForked = 19,          // Used in a child of fork(); CUDA and gpushm need a fresh process.
  kLoading = 20,         // The buffer exists; its content is still being loaded.
  kInternal = 21,        // A bug in gpushm.
  kEnded = 22,           // The other end closed what it shared; nothing more will come.
};
inline constexpr int kMaxCode = 22;

// "NOT_FOUND", ...: as gpushmctl prints it and as metric labels show it.
std::string_view CodeName(Code code);

class [[nodiscard]] Status {
 public:
  // `what`: what failed, with its name. `remedy`: what the reader can do about it; may be empty.
  Status(Code code, std::string what, std::string remedy = {}, int sys_errno = 0);

  Code code() const { return detail_->code; }
  const std::string& what() const { return detail_->what; }
  const std::string& remedy() const { return detail_->remedy; }
  int sys_errno() const { return detail_->sys_errno; }

  // One line: "NOT_FOUND: no buffer \"weigths\". Remedy: ...".
  std::string ToString() const;

  // The same failure with `context` before its text: "attach \"weights\": ...".
  Status WithContext(std::string_view context) const;

 private:
  struct Detail {
    Code code;
    std::string what;
    std::string remedy;
    int sys_errno;
  };
  std::shared_ptr<const Detail> detail_;
};

template <typename T>
using Result = std::expected<T, Status>;

// Joins its arguments, each printed as operator<< prints it.
template <typename... Args>
std::string Concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

inline std::unexpected<Status> Fail(Code code, std::string what, std::string remedy = {}) {
  return std::unexpected(Status(code, std::move(what), std::move(remedy)));
}

// A failed system call: appends strerror(error) to `what`.
std::unexpected<Status> FailSystem(int error, std::string_view what, std::string remedy = {});

// Ends a daemon because of a bug in gpushm, with file and line. The library never uses it, and
// nobody uses it on a peer's bytes.
[[noreturn]] void AssertionFailed(const char* expression, const char* file, int line);
#define GPUSHM_ASSERT(expression) \
  ((expression) ? (void)0 : ::gpushm::AssertionFailed(#expression, __FILE__, __LINE__))

}  // namespace gpushm
