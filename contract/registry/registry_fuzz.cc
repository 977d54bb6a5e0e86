// Arbitrary segment bytes: no crash, no endless loop, no access outside the mapping.
//
// The checksums would keep the fuzzer from everything behind them. So the input's first byte says
// which of them are made correct.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contract/registry/checksum.h"
#include "contract/registry/reader.h"

namespace gpushm::registry {
namespace {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, FreeMemory>;

constexpr uint8_t kMendHeader = 1;
constexpr uint8_t kMendRecords = 2;
constexpr uint8_t kMendSize = 4;
constexpr size_t kMaxBytes = 256 * 1024;

void MendHeader(std::byte* memory, size_t* bytes, bool mend_size) {
  HeaderConstants header;
  std::memcpy(&header, memory, sizeof(header));
  header.magic = kMagic;
  header.incompat_flags &= kKnownIncompatFlags;
  if (mend_size && header.header_size <= *bytes && header.slot_stride != 0) {
    const uint32_t reasons = header.incompat_flags != 0 ? kReasonsStride : 0;
    header.slot_count = static_cast<uint32_t>((*bytes - header.header_size) /
                                              (uint64_t{header.slot_stride} + reasons));
    *bytes = SegmentBytes(header);
  }
  std::array<uint64_t, sizeof(header) / 8> words;
  std::memcpy(words.data(), &header, sizeof(header));
  words.back() = Checksum(std::span(words).first(words.size() - 1));
  std::memcpy(memory, words.data(), sizeof(words));
}

void MendRecords(std::byte* memory, const HeaderConstants& header) {
  for (uint32_t slot = 0; slot < header.slot_count; ++slot) {
    auto* copies = reinterpret_cast<uint64_t*>(
        memory + header.header_size + size_t{slot} * header.slot_stride + kSlotCopiesOffset);
    for (const size_t copy : {size_t{0}, size_t{1}}) {
      const std::span<uint64_t> words(copies + copy * header.record_words, header.record_words);
      words.back() = Checksum(words.first(words.size() - 1));
    }
  }
}

void Exercise(const RegistryReader& reader) {
  static_cast<void>(reader.retired());
  static_cast<void>(reader.device_lost(0));
  static_cast<void>(reader.all_devices_lost());
  static_cast<void>(reader.WaitForChange(reader.table_version(), Deadline::AfterMs(0)));
  static_cast<void>(reader.IsCurrent(Ref{.version = 2, .slot = 0xffffffff}));
  static_cast<void>(reader.Find("weights"));
  static_cast<void>(reader.Find("no/name"));
  const Result<std::vector<BufferRecord>> list = reader.List();
  if (!list) return;
  for (const BufferRecord& record : *list) {
    if (RecordProblem(record) != nullptr) std::abort();
    const Result<Found> found = reader.Find(record.name.view());
    if (!found || !(found->record.name == record.name)) std::abort();
    if (!reader.IsCurrent(found->ref)) std::abort();
    const std::string reason = reader.ReasonOf(*found);
    if (!reason.empty() && !IsReason(reason)) std::abort();
  }
}

}  // namespace
}  // namespace gpushm::registry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::registry;
  if (size < 1 || size - 1 > kMaxBytes) return 0;
  const uint8_t mend = data[0];
  size_t bytes = size - 1;
  // Of exactly that size, so that AddressSanitizer detects an access outside.
  void* allocated = nullptr;
  if (posix_memalign(&allocated, kHeaderSize, bytes) != 0) return 0;
  const Memory memory(static_cast<std::byte*>(allocated));
  std::memcpy(memory.get(), data + 1, bytes);
  if ((mend & kMendHeader) != 0 && bytes >= sizeof(HeaderConstants)) {
    MendHeader(memory.get(), &bytes, (mend & kMendSize) != 0);
  }
  const gpushm::Result<HeaderConstants> header = ValidateHeader(memory.get(), bytes);
  if (!header) return 0;
  if ((mend & kMendRecords) != 0) MendRecords(memory.get(), *header);
  const auto reader = RegistryReader::OverMemory(memory.get(), bytes);
  if (!reader) std::abort();
  Exercise(**reader);

  // The writer continues, with a log that may contain garbage.
  auto* segment = reinterpret_cast<SegmentHeader*>(memory.get());
  segment->table_version.fetch_add(mend >> 3);
  Exercise(**reader);
  return 0;
}
