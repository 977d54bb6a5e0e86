#include "contract/tensors/tensor.h"

#include "platform/base/utf8.h"

namespace gpushm::tensors {
namespace {

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = Utf8Length(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace

const char* TextProblem(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return "it has a NUL character";
  return IsUtf8(text) ? nullptr : "it is not UTF-8";
}

}  // namespace gpushm::tensors
