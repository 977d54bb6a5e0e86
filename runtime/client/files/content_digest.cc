#include "runtime/client/files/content_digest.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "contract/tensors/digest.h"
#include "contract/tensors/table.h"
#include "runtime/client/client.h"
#include "runtime/client/content.h"
#include "runtime/client/description.h"
#include "runtime/client/files/steps.h"

namespace gpushm::client {
namespace {

// Reads until the room is full or the file ends. `offset` less than 0: where the stream is.
Result<uint64_t> ReadFully(const OpenFile& file, int64_t offset, std::span<std::byte> room) {
  uint64_t done = 0;
  while (done < room.size()) {
    const ssize_t got = offset < 0
                            ? read(file.fd, room.data() + done, room.size() - done)
                            : pread(file.fd, room.data() + done, room.size() - done,
                                    static_cast<off_t>(static_cast<uint64_t>(offset) + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailSystem(errno, Concat("read ", file.name));
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

Result<Digest> DigestOfRaw(const OpenFile& file) {
  std::vector<std::byte> block(tensors::kDigestBlockBytes);
  std::vector<Digest> digests;
  for (uint64_t at = 0;;) {
    const int64_t offset = file.is_stream() ? -1 : static_cast<int64_t>(at);
    const Result<uint64_t> bytes = ReadFully(file, offset, block);
    if (!bytes) return std::unexpected(bytes.error());
    if (*bytes != 0) digests.push_back(gpushm::DigestOf(std::span(block).first(*bytes)));
    at += *bytes;
    if (*bytes < block.size()) return tensors::RawDigest(at, digests);
  }
}

// Of each tensor by its place in the buffer, where the files' segments follow each other.
Result<Digest> DigestOfTensors(const LoadSource& source, const tensors::TensorTable& table) {
  struct Place {
    TransferSegment segment;
    const OpenFile* file;
  };
  std::vector<Place> places;
  for (const LoadSource::Part& part : source.parts) {
    for (const TransferSegment& segment : part.segments) places.push_back({segment, &part.file});
  }
  const auto end_of = [](const Place& place) {
    return place.segment.buffer_offset + place.segment.bytes;
  };
  std::ranges::sort(places, {}, end_of);
  std::vector<std::byte> room(tensors::kDigestBlockBytes);
  std::vector<Digest> digests;
  for (const tensors::DigestPart& part : tensors::TensorParts(table)) {
    DigestSums sums;
    for (uint64_t at = 0; at < part.bytes;) {
      const auto place = std::ranges::upper_bound(places, part.offset + at, {}, end_of);
      const uint64_t bytes = std::min<uint64_t>(part.bytes - at, room.size());
      const uint64_t offset =
          place->segment.file_offset + part.offset + at - place->segment.buffer_offset;
      const auto some = std::span(room).first(bytes);
      const Result<uint64_t> got = ReadFully(*place->file, static_cast<int64_t>(offset), some);
      if (!got) return std::unexpected(got.error());
      if (*got != bytes) {
        return Fail(Code::kInvalidArgument,
                    Concat(place->file->name, " ended before byte ", offset + bytes),
                    "the file was shortened meanwhile: wait until it is whole");
      }
      sums.Add(at, some);
      at += bytes;
    }
    digests.push_back(sums.Finish(part.bytes));
  }
  return tensors::TensorsDigest(table, digests);
}

}  // namespace

Result<Digest> DigestOf(const DeviceContent& content, DeviceDigest* digests) {
  std::optional<tensors::TensorTable> table;
  if (tensors::TensorTable::IsTable(content.description)) {
    auto opened = tensors::TensorTable::Open(content.description, content.size_bytes);
    if (!opened) return std::unexpected(opened.error());
    table.emplace(*opened);
  }
  std::vector<DeviceRange> ranges;
  for (const tensors::DigestPart& part :
       table ? tensors::TensorParts(*table) : tensors::RawParts(content.content_bytes)) {
    ranges.push_back({content.address + part.offset, part.bytes});
  }
  const auto parts = digests->Of(ranges);
  if (!parts) return std::unexpected(parts.error());
  return table ? tensors::TensorsDigest(*table, *parts)
               : tensors::RawDigest(content.content_bytes, *parts);
}

Result<Digest> DigestOf(const LoadSource& source) {
  if (!source.has_tensors()) return DigestOfRaw(source.parts.front().file);
  const auto table = tensors::TensorTable::Open(source.table, source.buffer_bytes);
  if (!table) return std::unexpected(table.error());
  return DigestOfTensors(source, *table);
}

Result<Digest> DigestOfContent(Attachment* attachment, const Wait& wait) {
  const Attachment::Facts& facts = attachment->facts();
  if (auto whole = CheckWhole(*attachment); !whole) return std::unexpected(whole.error());
  if (attachment->device_mapping() == nullptr || facts.peer_way == PeerWay::kStaged) {
    return Fail(Code::kUnsupported,
                "only an attachment with transport vmm that is not a staged copy has a digest",
                "attach the buffer on the GPU where it is");
  }
  const auto description = Describe(facts.client, facts.name, facts.generation, wait);
  if (!description) return std::unexpected(description.error());
  const Result<const CudaApi*> api = facts.client->driver().Api();
  if (!api) return std::unexpected(api.error());
  const uint64_t content_bytes = attachment->ContentBytes();
  Digest digest;
  const auto made = WithContext(facts.client, facts.gpu, [&]() -> Result<TransferOutcome> {
    DeviceDigest digests(**api, content_bytes);
    const auto of_content = DigestOf({.address = facts.address,
                                      .size_bytes = facts.size_bytes,
                                      .content_bytes = content_bytes,
                                      .description = (*description)->bytes()},
                                     &digests);
    if (!of_content) return std::unexpected(of_content.error());
    digest = *of_content;
    return TransferOutcome{};
  });
  if (!made) return std::unexpected(made.error());
  // Others see it with the generation. Who publishes does not write any more.
  if (attachment->unpublished()) {
    if (auto said = ReportContent(*attachment, content_bytes, true, wait, digest); !said) {
      return std::unexpected(said.error());
    }
  }
  return digest;
}

}  // namespace gpushm::client
