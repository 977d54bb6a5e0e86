#include "runtime/client/transfer_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/driver/device.h"

namespace gpushm {
namespace {

// A chunk on its way: host memory, and the stream that fills or drains it.
class Lane {
 public:
  static Result<Lane> Create(const CudaApi& api, uint64_t chunk_bytes) {
    Result<Stream> stream = Stream::Create(api);
    if (!stream) return std::unexpected(stream.error());
    Result<PinnedBuffer> memory = PinnedBuffer::Allocate(api, chunk_bytes);
    if (!memory) return std::unexpected(memory.error());
    return Lane(api, std::move(*stream), std::move(*memory));
  }

  Lane(Lane&&) = default;
  Lane& operator=(Lane&&) = delete;
  // The host memory must not go while the GPU still uses it.
  ~Lane() {
    if (stream_.get() != nullptr) api_->cuStreamSynchronize(stream_.get());
  }

  Result<void> Wait() const {
    return api_->Check(api_->cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
  }
  std::byte* data() const { return memory_.data(); }
  CUstream stream() const { return stream_.get(); }

  // Where in the buffer the chunk belongs that is under way; 0 bytes: none.
  uint64_t offset = 0;
  uint64_t size_bytes = 0;

 private:
  Lane(const CudaApi& api, Stream stream, PinnedBuffer memory)
      : api_(&api), memory_(std::move(memory)), stream_(std::move(stream)) {}
  const CudaApi* api_;
  PinnedBuffer memory_;
  Stream stream_;
};

struct Lanes {
  Lane first;
  Lane second;
};

uint64_t ChunkFor(uint64_t asked_bytes, uint64_t size_bytes) {
  const uint64_t wanted = asked_bytes == 0 ? kTransferChunkBytes : asked_bytes;
  const uint64_t bounded = std::clamp(wanted, kMinTransferChunkBytes, kMaxTransferChunkBytes);
  return std::min(bounded, std::max<uint64_t>(size_bytes, 1));
}

Result<Lanes> CreateLanes(const CudaApi& api, uint64_t chunk_bytes) {
  Result<Lane> first = Lane::Create(api, chunk_bytes);
  if (!first) return std::unexpected(first.error());
  Result<Lane> second = Lane::Create(api, chunk_bytes);
  if (!second) return std::unexpected(second.error());
  return Lanes{std::move(*first), std::move(*second)};
}

// Fewer bytes than asked for: the file's end.
Result<uint64_t> ReadUpTo(int file, std::byte* to, uint64_t size_bytes, uint64_t offset) {
  uint64_t done = 0;
  while (done < size_bytes) {
    const ssize_t got =
        pread(file, to + done, size_bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailSystem(errno, "read the file");
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

Result<void> WriteAll(int file, const std::byte* from, uint64_t size_bytes, uint64_t offset) {
  uint64_t done = 0;
  while (done < size_bytes) {
    const ssize_t put =
        pwrite(file, from + done, size_bytes - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return FailSystem(errno, "write the file");
    done += static_cast<uint64_t>(put);
  }
  return {};
}

Result<void> Report(const TransferProgress& progress, uint64_t done_bytes) {
  if (!progress || progress(done_bytes)) return {};
  return Fail(Code::kBusy, Concat("stopped after ", done_bytes, " bytes"));
}

}  // namespace

Result<uint64_t> CopyFileToDevice(const CudaApi& api, int file, CUdeviceptr to, uint64_t size_bytes,
                                  uint64_t chunk_bytes, const TransferProgress& progress) {
  const uint64_t chunk = ChunkFor(chunk_bytes, size_bytes);
  Result<Lanes> lanes = CreateLanes(api, chunk);
  if (!lanes) return std::unexpected(lanes.error());
  Lane* lane = &lanes->first;
  Lane* other = &lanes->second;
  uint64_t offset = 0;
  bool at_end = false;
  for (; offset < size_bytes && !at_end; std::swap(lane, other)) {
    if (auto done = lane->Wait(); !done) return std::unexpected(done.error());
    // The other lane's copy runs while this reads; what it carries is not counted as arrived.
    if (auto done = Report(progress, offset - other->size_bytes); !done) {
      return std::unexpected(done.error());
    }
    const uint64_t wanted = std::min(chunk, size_bytes - offset);
    const Result<uint64_t> part = ReadUpTo(file, lane->data(), wanted, offset);
    if (!part) return std::unexpected(part.error());
    at_end = *part < wanted;
    lane->size_bytes = *part;
    if (*part == 0) break;
    if (auto done =
            api.Check(api.cuMemcpyHtoDAsync(to + offset, lane->data(), *part, lane->stream()),
                      "cuMemcpyHtoDAsync");
        !done) {
      return std::unexpected(done.error());
    }
    offset += *part;
  }
  if (auto done = lane->Wait(); !done) return std::unexpected(done.error());
  if (auto done = other->Wait(); !done) return std::unexpected(done.error());
  if (auto done = Report(progress, offset); !done) return std::unexpected(done.error());
  return offset;
}

Result<uint64_t> CopyDeviceToFile(const CudaApi& api, CUdeviceptr from, uint64_t size_bytes,
                                  int file, uint64_t chunk_bytes,
                                  const TransferProgress& progress) {
  const uint64_t chunk = ChunkFor(chunk_bytes, size_bytes);
  Result<Lanes> lanes = CreateLanes(api, chunk);
  if (!lanes) return std::unexpected(lanes.error());
  uint64_t written = 0;
  const auto drain = [&](Lane& lane) -> Result<void> {
    if (lane.size_bytes == 0) return {};
    if (auto done = lane.Wait(); !done) return done;
    if (auto done = WriteAll(file, lane.data(), lane.size_bytes, lane.offset); !done) return done;
    written += std::exchange(lane.size_bytes, 0);
    return Report(progress, written);
  };
  Lane* lane = &lanes->first;
  Lane* other = &lanes->second;
  for (uint64_t offset = 0; offset < size_bytes; offset += chunk, std::swap(lane, other)) {
    const uint64_t part = std::min(chunk, size_bytes - offset);
    if (auto done =
            api.Check(api.cuMemcpyDtoHAsync(lane->data(), from + offset, part, lane->stream()),
                      "cuMemcpyDtoHAsync");
        !done) {
      return std::unexpected(done.error());
    }
    lane->offset = offset;
    lane->size_bytes = part;
    // While the GPU fills this lane, the other one's bytes go to the file.
    if (auto done = drain(*other); !done) return std::unexpected(done.error());
  }
  if (auto done = drain(*other); !done) return std::unexpected(done.error());
  if (auto done = drain(*lane); !done) return std::unexpected(done.error());
  return written;
}

}  // namespace gpushm
