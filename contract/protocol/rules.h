// Field rules that messages.cc and link.cc share. Internal.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "contract/limits.h"
#include "contract/protocol/messages.h"
#include "platform/base/quote.h"
#include "platform/base/utf8.h"

namespace gpushm::protocol {

inline std::unexpected<Status> Broken(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("a peer broke the protocol: ", rule), kOtherPeer);
}

inline bool IsTerminated(std::span<const char> text) {
  return std::find(text.begin(), text.end(), '\0') != text.end();
}

// NUL-padded to the end, so that no stack bytes of a process travel behind the text.
inline bool IsPadded(std::span<const char> field) {
  const auto end = std::find(field.begin(), field.end(), '\0');
  return end != field.end() && std::all_of(end, field.end(), [](char c) { return c == '\0'; });
}

inline bool IsName(const NameField& field) {
  return IsPadded(field) && IsDnsLabel(FromNameField(field));
}
inline bool IsEmpty(const NameField& field) { return IsPadded(field) && field[0] == '\0'; }
inline bool IsBlocks(uint32_t transport) { return transport == Transport::kBlocks; }

// All bytes before the padding, also those that a name may not have.
inline std::string_view Unpadded(std::span<const char> field) {
  const std::string_view bytes(field.data(), field.size());
  return bytes.substr(0, bytes.find_last_not_of('\0') + 1);
}

// The rules of one kind of message, for a Validate that lists them, one on each line. The first one
// that does not hold is the result. Its text is made only then, and has the value and the rule.
class Rules {
 public:
  // `message` must outlive this.
  explicit Rules(std::string_view message) : message_(message) {}

  template <typename... Text>
  Rules& That(bool holds, const Text&... text) {
    if (!holds && result_) result_ = Broken(Concat(message_, ": ", text...));
    return *this;
  }
  Rules& Range(std::string_view field, uint64_t value, uint64_t least, uint64_t most) {
    if (least == most) return That(value == least, field, " is ", value, ", must be ", least);
    return That(least <= value && value <= most, field, " is ", value, ", must be ", least,
                most - least == 1 ? " or " : " to ", most);
  }
  Rules& Zero(std::string_view field, uint64_t value) { return Range(field, value, 0, 0); }
  Rules& NotZero(std::string_view field, uint64_t value) {
    return That(value != 0, field, " is 0, must not be 0");
  }
  Rules& Flags(uint32_t flags, uint32_t known) {
    return That((flags & ~known) == 0, "unknown flags 0x", std::hex, flags & ~known,
                ", the known ones are 0x", known);
  }
  Rules& UnpublishedIsAttached(uint32_t flags) {
    return That((flags & kFlagUnpublished) == 0 || (flags & kFlagAttach) != 0, "flags 0x", std::hex,
                flags, " have kFlagUnpublished without kFlagAttach, 0x", kFlagAttach);
  }
  Rules& Name(std::string_view field, const NameField& name) {
    return IsName(name) ? *this
                        : That(false, field, ' ', Quote(Unpadded(name)), " is not a DNS label");
  }
  // At least the first 63 bytes of one.
  Rules& PodName(std::string_view field, const NameField& name) {
    return That(IsPadded(name) && IsDnsSubdomain(Unpadded(name)), field, ' ', Quote(Unpadded(name)),
                " is not the name of a pod");
  }
  Rules& PodNameOrEmpty(std::string_view field, const NameField& name) {
    return IsEmpty(name) ? *this : PodName(field, name);
  }
  Rules& NameOrEmpty(std::string_view field, const NameField& name) {
    return IsEmpty(name) ? *this : Name(field, name);
  }
  Rules& Empty(std::string_view field, const NameField& name) {
    return IsEmpty(name) ? *this
                         : That(false, field, " is ", Quote(Unpadded(name)), ", must be empty");
  }
  Rules& Terminated(std::string_view field, std::span<const char> text) {
    return That(IsTerminated(text), field, " is not NUL-terminated: it has ", text.size(),
                " bytes without a NUL");
  }

  // One line of text that is not empty.
  Rules& Line(std::string_view field, std::span<const char> text) {
    const std::string_view line = Unpadded(text);
    return That(IsPadded(text) && !line.empty() && IsLine(line), field, " is ", Quote(line),
                ", must be a line of 1 to ", text.size() - 1, " bytes of UTF-8");
  }

  Rules& Reserved(uint64_t value) { return Zero("reserved", value); }
  Rules& Access(uint32_t value) { return Range("access", value, 1, gpushm::Access::kReadWrite); }
  Rules& AnyTransport(uint32_t value) { return Range("transport", value, 1, Transport::kBlocks); }
  // The number of blocks that goes with a transport.
  Rules& Blocks(uint32_t transport, uint32_t blocks) {
    if (IsBlocks(transport)) return Range("number of blocks", blocks, 1, limits::kBlocks);
    return That(blocks == 0, "number of blocks is ", blocks, ", must be 0 with transport ",
                transport);
  }
  Rules& AnyPeerWay(uint32_t value) { return Range("peer_way", value, 0, PeerWay::kStaged); }
  Rules& WriterExit(uint32_t value) {
    return Range("on_writer_exit", value, 0, OnWriterExit::kDrop);
  }
  Rules& Size(std::string_view field, uint64_t bytes) {
    return Range(field, bytes, 1, limits::kBufferBytes);
  }
  // A buffer inside its allocation.
  Rules& Sizes(uint64_t size_bytes, uint64_t mapped_bytes) {
    return Size("size_bytes", size_bytes)
        .Range("mapped_bytes", mapped_bytes, size_bytes, limits::kBufferBytes);
  }

  Result<void> result() const { return result_; }

 private:
  std::string_view message_;
  Result<void> result_;
};

}  // namespace gpushm::protocol
