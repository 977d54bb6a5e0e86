// For any file, ParseSpec returns a binding or a Status. An accepted binding is written to a spec
// that reads as the same binding.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "plugin/cdi/spec_text.h"

// The input is the file's name, a line feed, and the file's text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::plugin::cdi;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\n');
  if (end == std::string::npos) return 0;
  const auto binding = ParseSpec(input.substr(0, end), input.substr(end + 1));
  if (!binding) return 0;
  const auto text = SpecText(*binding, {});
  if (!text) std::abort();
  const auto again = ParseSpec(SpecFileName(binding->resource, binding->name()), *text);
  if (!again || !(*again == *binding)) std::abort();
  return 0;
}
