// A digest of bytes, in 128 bits: g1 of docs/design/digest.md. It finds mistakes, not malice: who
// wants to can make two contents with one digest.
//
// Threads: pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "platform/base/digest_rule.h"

namespace gpushm {

// All zero: none.
struct Digest {
  std::array<uint64_t, 2> halves{};

  bool empty() const { return halves[0] == 0 && halves[1] == 0; }
  // "g1:" and 32 hexadecimal digits; empty if there is none.
  std::string ToString() const;
  // What ToString returns, also with upper-case digits. Nothing for any other text, and for zeros.
  static std::optional<Digest> Parse(std::string_view text);
  friend bool operator==(const Digest&, const Digest&) = default;
};

// Collects the pieces of one content, in any order. Sums of several collections may be added.
struct DigestSums {
  std::array<uint64_t, 2> halves{};

  // `offset`: of the first byte in the content, a multiple of digest_rule::kPieceBytes. Only the
  // bytes at the end of the content may have another length than a multiple of it.
  void Add(uint64_t offset, std::span<const std::byte> bytes);
  // `bytes`: the length of the content.
  Digest Finish(uint64_t bytes) const;
};

Digest DigestOf(std::span<const std::byte> bytes);

}  // namespace gpushm
