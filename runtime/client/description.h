// The description of one generation of a buffer: sealed host memory that says what its bytes are
// (docs/design/descriptions.md). It does not depend on the client that opened it.
//
// Threads: any; it never changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "platform/base/sealed_memory.h"
#include "platform/base/status.h"
#include "runtime/client/attachment.h"
#include "runtime/client/handles.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class Description {
 public:
  // An empty mapping: the generation has no description.
  Description(std::string buffer, uint64_t generation, Mapping mapping)
      : buffer_(std::move(buffer)), generation_(generation), mapping_(std::move(mapping)) {}

  const std::string& buffer() const { return buffer_; }
  uint64_t generation() const { return generation_; }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(mapping_.address()), mapping_.bytes()};
  }
  const Handle& handle() const { return handle_; }

 private:
  const std::string buffer_;
  const uint64_t generation_;
  const Mapping mapping_;
  const Handle handle_{HandleKind::kDescription, this};
};

Result<void> SetDescription(const Attachment& attachment, std::span<const std::byte> bytes,
                            const Wait& wait);
// The same for sealed memory that has these bytes.
Result<void> SendDescription(const Attachment& attachment, const UniqueFd& memory,
                             uint64_t size_bytes, const Wait& wait);
// `generation` 0: the current one, which is waited for. Otherwise exactly that one. `required`:
// also waits until it has a description.
Result<std::unique_ptr<Description>> Describe(Client* client, std::string_view name,
                                              uint64_t generation, const Wait& wait,
                                              bool required = false);

}  // namespace gpushm::client
