// For any bytes, ParseHeader, ParseError and every Parse<> return a value or a Status and access
// nothing outside the message. What they accept encodes to the same bytes again.
#include "contract/protocol/messages.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "contract/protocol/testing/messages.h"

namespace gpushm::protocol {
namespace {

void ParseAll(std::span<const std::byte> message) {
  const auto header = ParseHeader(message);
  [[maybe_unused]] const auto error = ParseError(message);
  testing::ForEachMessage([&]<typename Body>(Kind kind, bool reply) {
    const auto body = Parse<Body>(message);
    if (!body || !header) return;
    Buffer again;
    const size_t size = Encode(kind, reply, header->request_id, header->status, *body, &again);
    const size_t skip = sizeof(Header);  // Its kind may be another one of the same size.
    if (size != message.size() ||
        !std::equal(message.begin() + skip, message.end(), again.begin() + skip)) {
      std::abort();
    }
  });
}

}  // namespace
}  // namespace gpushm::protocol

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of the exact size, so that reading behind it is detected.
  const std::vector<std::byte> message(reinterpret_cast<const std::byte*>(data),
                                       reinterpret_cast<const std::byte*>(data) + size);
  gpushm::protocol::ParseAll(message);
  return 0;
}
