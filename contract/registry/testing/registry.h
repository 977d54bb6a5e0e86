// For tests, fuzzers and benchmarks of registries.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "contract/registry/checksum.h"
#include "contract/registry/reader.h"
#include "contract/registry/record.h"
#include "contract/registry/writer.h"

namespace gpushm::registry {

inline BufferRecord SomeRecord(std::string_view name, uint64_t generation) {
  BufferRecord record;
  record.name = Name(name);
  record.generation = generation;
  record.size_bytes = generation * 1000 + 1;
  record.mapped_bytes = record.size_bytes + 4096;
  record.gpu[15] = 7;
  record.created_unix_ns = generation;
  record.creator = Name("decoder");
  return record;
}

// A record's frame from another version: it has `record_words` words, and those that the current
// version does not know contain arbitrary bytes.
inline std::vector<uint64_t> FrameOf(const BufferRecord& record, uint32_t record_words) {
  std::vector<uint64_t> words(record_words, 0xabababababababab);
  const size_t known = std::min<size_t>(record_words - 1, kKnownWords);
  std::memcpy(words.data(), static_cast<const void*>(&record), known * 8);
  words.back() = Checksum(std::span(words).first(record_words - 1));
  return words;
}

// Ends the test program if the writer's own segment is refused.
inline std::unique_ptr<RegistryReader> OpenReader(const RegistryWriter& writer) {
  auto reader = RegistryReader::Open(UniqueFd(fcntl(writer.fd(), F_DUPFD_CLOEXEC, 0)));
  if (!reader) {
    std::fprintf(stderr, "%s\n", reader.error().ToString().c_str());
    std::abort();
  }
  return std::move(*reader);
}

}  // namespace gpushm::registry
