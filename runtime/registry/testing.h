// Helpers of this folder's tests, fuzzers and benchmarks.
#pragma once

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "runtime/registry/reader.h"
#include "runtime/registry/record.h"
#include "runtime/registry/writer.h"

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
