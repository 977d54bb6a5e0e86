// The project's error type. A Status says which kind of failure it is, what failed, and what to do
// about it; it exists only for failures, so functions return Result<T> or Result<void>.
//
// Three kinds of failure, kept apart everywhere:
//   the caller's input   -> a Status
//   our own bug          -> GPUSHM_ASSERT in a daemon; kInternal in the library, which runs in
//                           somebody else's process
//   a peer's bytes       -> validated where they are used; a Status, and the connection is closed
#pragma once

#include <expected>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace gpushm {

// One value per kind of failure a caller may branch on. The numbers are those of gpushm.h's
// gpushm_status and of the wire protocol: never renumber, only append.
enum class Code : int {
  kInvalidArgument = 1,  // The request makes no sense as given.
  kNotFound = 2,         // No buffer (file, device ...) of that name.
  kAlreadyExists = 3,    // The name is taken.
  kDenied = 4,           // The pod's configuration does not allow it.
  kExhausted = 5,        // A limit of docs/reference/limits.md, the pool or the card is used up.
  kContended = 6,        // Bounded retries ran out; try again.
  kTimeout = 7,          // The deadline passed.
  kIncompatible = 8,     // A layout or protocol version that this side does not speak.
  kCorrupt = 9,          // Bytes from a peer or from shared memory fail validation.
  kUnavailable = 10,     // No broker answers.
  kOrphaned = 11,        // The broker that gave this attachment is gone; its bytes are history.
  kStale = 12,           // Another generation is behind the name now.
  kPeerDied = 13,        // The process at the other end died.
  kDeviceLost = 14,      // The GPU fell off the bus or must be reset.
  kBusy = 15,            // Work is pending on it.
  kUnsupported = 16,     // This driver, GPU, kernel or memory cannot do it.
  kDriver = 17,          // A CUDA or NVML call failed.
  kSystem = 18,          // A system call failed; sys_errno() says how.
  kForked = 19,          // Used in a child of fork(); CUDA and gpushm need a fresh process.
  kLoading = 20,         // The buffer exists; its content is still being loaded.
  kInternal = 21,        // A bug of gpushm.
  kEnded = 22,           // The other end closed what it shared: there is no more.
};
inline constexpr int kMaxCode = 22;

// "NOT_FOUND", ...: as printed by gpushmctl and used as metric label.
std::string_view CodeName(Code code);

class [[nodiscard]] Status {
 public:
  // `what`: what failed, naming the thing. `remedy`: what the reader can do about it; may be empty.
  Status(Code code, std::string what, std::string remedy = {}, int sys_errno = 0);

  Code code() const { return detail_->code; }
  const std::string& what() const { return detail_->what; }
  const std::string& remedy() const { return detail_->remedy; }
  int sys_errno() const { return detail_->sys_errno; }

  // "NOT_FOUND: no buffer \"weigths\". Remedy: ..." in one line.
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

// Joins its arguments as operator<< prints them.
template <typename... Args>
std::string Concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

inline std::unexpected<Status> Fail(Code code, std::string what, std::string remedy = {}) {
  return std::unexpected(Status(code, std::move(what), std::move(remedy)));
}

// A failed system call: appends strerror(error).
std::unexpected<Status> FailSystem(int error, std::string_view what, std::string remedy = {});

// Ends a daemon on our own bug, with file and line. Never used in the library's code paths, and
// never on a peer's bytes.
[[noreturn]] void AssertionFailed(const char* expression, const char* file, int line);
#define GPUSHM_ASSERT(expression) \
  ((expression) ? (void)0 : ::gpushm::AssertionFailed(#expression, __FILE__, __LINE__))

}  // namespace gpushm
