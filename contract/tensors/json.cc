#include "contract/tensors/json.h"

#include "platform/base/quote.h"

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>

namespace gpushm::tensors {

Result<void> ParseJsonObject(std::string_view text, JsonHandler* handler) {
  const size_t begin = text.find_first_not_of(" \t\n\r");
  if (begin == std::string_view::npos || text[begin] != '{') {
    return Fail(Code::kInvalidArgument,
                Concat("it is not a JSON object: it begins with ", Quote(text.substr(0, 8))));
  }
  // The parser would take a NUL for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return Fail(Code::kInvalidArgument, Concat("it is not JSON: byte ", nul + 1, " is NUL"));
  }
  const bool parsed = nlohmann::json::sax_parse(text, handler);
  if (handler->failure()) return std::unexpected(*handler->failure());
  if (!parsed) return Fail(Code::kInvalidArgument, "it is not JSON");
  return {};
}

std::unexpected<Status> FailShort(std::string what) {
  return Fail(Code::kBusy, std::move(what), "wait until all of it is there, or fetch it again");
}

Result<std::string> ReadText(int fd, uint64_t offset, uint64_t size_bytes) {
  std::string text(size_bytes, '\0');
  uint64_t done = 0;
  while (done < size_bytes) {
    const ssize_t got =
        pread(fd, text.data() + done, size_bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailSystem(errno, "it cannot be read");
    if (got == 0) {
      return FailShort(Concat("it became shorter: it ends at byte ", offset + done, ", and ",
                              offset + size_bytes, " were there"));
    }
    done += static_cast<uint64_t>(got);
  }
  return text;
}

}  // namespace gpushm::tensors
