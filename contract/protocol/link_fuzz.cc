// For any bytes, ParseLinkHeader and every ParseLink<> return a value or a Status and access
// nothing outside the message. What they accept encodes to the same bytes again.
#include "contract/protocol/link.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "contract/protocol/testing/link.h"

namespace gpushm::protocol {
namespace {

void ParseAll(std::span<const std::byte> message) {
  const auto header = ParseLinkHeader(message);
  testing::ForEachLinkMessage([&]<typename Body>(LinkKind kind) {
    const auto body = ParseLink<Body>(message);
    if (!body || !header) return;
    Buffer again;
    const size_t size = EncodeLink(kind, *body, &again);
    const size_t skip = sizeof(LinkHeader);  // Its kind may be another one of the same size.
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
