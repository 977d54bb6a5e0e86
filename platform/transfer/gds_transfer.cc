#include "platform/transfer/gds_transfer.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "platform/base/clock.h"
#include "platform/driver/device.h"
#include "platform/driver/stream_waits.h"
#include "platform/transfer/file_io.h"
#include "platform/transfer/gds_file.h"

namespace gpushm {
namespace {

// The last bytes of the file, which do not fill a block, in host memory.
struct alignas(kDirectAlignBytes) Tail {
  std::array<std::byte, kDirectAlignBytes> bytes{};
};

const StreamTick kNoTick = [] { return Result<void>(); };  // Files never make the caller wait.

uint64_t WholeBlocks(const TransferJob& job) {
  return job.size_bytes / kDirectAlignBytes * kDirectAlignBytes;
}

// Nothing overlaps here: chunks only limit the bytes between progress calls and the bytes
// registered at a time.
constexpr uint64_t kRegisteredBytes = uint64_t{64} << 20;

uint64_t ChunkOf(const TransferJob& job) {
  const uint64_t wanted = job.chunk_bytes == 0 ? kRegisteredBytes : job.chunk_bytes;
  return RoundUp(std::clamp(wanted, kMinTransferChunkBytes, kMaxTransferChunkBytes),
                 kDirectAlignBytes);
}

// Uses a stream of its own and waits for it, because the default stream waits for others, and a
// context for all.
template <typename Copy>
Result<void> CopyApart(const CudaApi& api, const char* what, Copy copy) {
  const Result<Stream> stream = MakeRunningStream(api);
  if (!stream) return std::unexpected(stream.error());
  if (auto begun = api.Check(copy(stream->get()), what); !begun) return begun;
  return api.Check(api.cuStreamSynchronize(stream->get()), "cuStreamSynchronize");
}

Result<uint64_t> LoadTail(const CudaApi& api, const TransferJob& job, uint64_t offset) {
  Tail tail;
  FileReader reader(job.file, FileWay::kDirect, 0, 0, kNoTick);
  reader.Begin(tail.bytes.data(), job.size_bytes - offset, offset);
  const Result<uint64_t> got = reader.End();
  if (!got || *got == 0) return got;
  auto copied = CopyApart(api, "cuMemcpyHtoDAsync", [&](CUstream stream) {
    return api.cuMemcpyHtoDAsync(job.address + offset, tail.bytes.data(), *got, stream);
  });
  if (!copied) return std::unexpected(copied.error());
  return got;
}

Result<void> SaveTail(const CudaApi& api, const TransferJob& job, uint64_t offset) {
  Tail tail;
  const uint64_t size = job.size_bytes - offset;
  auto copied = CopyApart(api, "cuMemcpyDtoHAsync", [&](CUstream stream) {
    return api.cuMemcpyDtoHAsync(tail.bytes.data(), job.address + offset, size, stream);
  });
  if (!copied) return copied;
  return FileWriter(job.file, FileWay::kDirect, kNoTick).Write(tail.bytes.data(), size, offset);
}

}  // namespace

Result<TransferReport> LoadByGds(const CudaApi& api, const TransferJob& job) {
  TransferReport report{.way = FileWay::kGds};
  const int64_t start_ns = MonotonicNs();
  const uint64_t whole = WholeBlocks(job);
  bool at_end = false;
  while (report.bytes < whole && !at_end) {
    if (auto go_on = CallProgress(job.progress, report.bytes); !go_on) {
      return std::unexpected(go_on.error());
    }
    const uint64_t wanted = std::min(ChunkOf(job), whole - report.bytes);
    const Result<uint64_t> got = job.gds->Read(job.address + report.bytes, wanted, report.bytes);
    if (!got) return std::unexpected(got.error());
    report.bytes += *got;
    at_end = *got < wanted;
  }
  if (!at_end && whole < job.size_bytes) {
    const Result<uint64_t> got = LoadTail(api, job, whole);
    if (!got) return std::unexpected(got.error());
    report.bytes += *got;
  }
  report.moving_ns = MonotonicNs() - start_ns;
  if (auto done = CallProgress(job.progress, report.bytes); !done) {
    return std::unexpected(done.error());
  }
  return report;
}

Result<TransferReport> SaveByGds(const CudaApi& api, const TransferJob& job) {
  TransferReport report{.way = FileWay::kGds};
  const int64_t start_ns = MonotonicNs();
  const uint64_t whole = WholeBlocks(job);
  while (report.bytes < whole) {
    const uint64_t size = std::min(ChunkOf(job), whole - report.bytes);
    if (auto done = job.gds->Write(job.address + report.bytes, size, report.bytes); !done) {
      return std::unexpected(done.error());
    }
    report.bytes += size;
    if (auto go_on = CallProgress(job.progress, report.bytes); !go_on) {
      return std::unexpected(go_on.error());
    }
  }
  if (whole < job.size_bytes) {
    if (auto done = SaveTail(api, job, whole); !done) return std::unexpected(done.error());
    report.bytes = job.size_bytes;
    if (auto go_on = CallProgress(job.progress, report.bytes); !go_on) {
      return std::unexpected(go_on.error());
    }
  }
  const FileWriter writer(job.file, FileWay::kDirect, kNoTick);
  if (auto done = writer.Finish(job.size_bytes); !done) return std::unexpected(done.error());
  report.moving_ns = MonotonicNs() - start_ns;
  return report;
}

}  // namespace gpushm
