#include "contract/tensors/tensor.h"

#include <algorithm>

#include "platform/base/utf8.h"

namespace gpushm::tensors {
namespace {

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = Utf8Length(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace

const char* NameProblem(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (std::any_of(name.begin(), name.end(), IsControl)) return "it has a control character";
  return IsUtf8(name) ? nullptr : "it is not UTF-8";
}

const char* TextProblem(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return "it has a NUL character";
  return IsUtf8(text) ? nullptr : "it is not UTF-8";
}

}  // namespace gpushm::tensors
