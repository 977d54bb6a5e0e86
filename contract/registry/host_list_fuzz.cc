// Arbitrary bytes as a pod's list: an error or a list of valid records.
#include "contract/registry/host_list.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "contract/registry/checksum.h"

namespace gpushm::registry {
namespace {

constexpr char kUid[] = "pod-0";
constexpr size_t kChecksumWord = 16;
constexpr size_t kHeaderWords = 17;

void Decode(std::span<const std::byte> bytes) {
  const Result<HostList> list = DecodeHostList(kUid, bytes);
  if (!list) return;
  for (const BufferRecord& buffer : list->buffers) {
    if (RecordProblem(buffer) != nullptr) std::abort();
  }
  // A list that was accepted can be written, and reads the same again.
  const Result<std::vector<uint64_t>> words = EncodeHostList(kUid, *list);
  if (!words) std::abort();
  const Result<HostList> again = DecodeHostList(kUid, std::as_bytes(std::span(*words)));
  if (!again || again->buffers.size() != list->buffers.size()) std::abort();
}

}  // namespace
}  // namespace gpushm::registry

// The bytes as they are, and once more with correct checksums.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::registry;
  Decode(std::as_bytes(std::span(data, size)));
  std::vector<uint64_t> words(size / 8);
  if (words.size() < kHeaderWords) return 0;
  std::memcpy(words.data(), data, words.size() * 8);
  uint32_t header_words = 0;
  uint32_t record_words = 0;
  std::memcpy(&header_words, &data[12], sizeof(header_words));
  std::memcpy(&record_words, &data[16], sizeof(record_words));
  if (header_words < words.size() && record_words >= kMinRecordWords) {
    std::span<uint64_t> rest = std::span(words).subspan(header_words);
    for (; rest.size() >= record_words; rest = rest.subspan(record_words)) {
      rest[record_words - 1] = Checksum(rest.first(record_words - 1));
    }
  }
  const std::span<const uint64_t> all(words);
  words[kChecksumWord] =
      Checksum(all.subspan(kChecksumWord + 1), Checksum(all.first(kChecksumWord)));
  Decode(std::as_bytes(all));
  return 0;
}
