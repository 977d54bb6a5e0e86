#include "platform/transfer/device_digest.h"

#include <algorithm>
#include <array>
#include <utility>

#include "platform/driver/device.h"
#include "platform/driver/digest_images.h"
#include "platform/driver/digest_kernel.h"
#include "platform/driver/stream_waits.h"

namespace gpushm {
namespace {

namespace kernel = digest_kernel;

// Ranges of one launch: 40 bytes of the GPU's memory each.
constexpr size_t kRangesAtOnce = 65536;
// Of pinned memory, for the processor.
constexpr uint64_t kHostBytes = uint64_t{4} << 20;
static_assert(kHostBytes % digest_rule::kPieceBytes == 0);
// More threads than a multiprocessor has do not read faster.
constexpr uint32_t kBlocksOfMultiprocessor = 8;

// Memory of the current context, for as long as a launch takes.
class Scratch {
 public:
  Scratch(const CudaApi& api, uint64_t bytes) : api_(api) {
    if (api_.cuMemAlloc(&address_, bytes) != CUDA_SUCCESS) address_ = 0;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (address_ != 0) api_.cuMemFree(address_);
  }
  CUdeviceptr address() const { return address_; }  // 0: there is none.

 private:
  const CudaApi& api_;
  CUdeviceptr address_ = 0;
};

}  // namespace

// A driver without code for its GPU compiles PTX. One that cannot (an image without its compiler,
// CUDA_DISABLE_PTX_JIT) is no error.
DeviceDigest::DeviceDigest(const CudaApi& api, uint64_t bytes) : api_(api) {
  if (bytes < kKernelBytes) return;
  for (const unsigned char* const image : kernel::Images()) {
    if (api_.cuModuleLoadData(&module_, image) != CUDA_SUCCESS) {
      module_ = nullptr;
    } else if (api_.cuModuleGetFunction(&kernel_, module_, kernel::kName) == CUDA_SUCCESS) {
      return;
    } else {
      api_.cuModuleUnload(std::exchange(module_, nullptr));
    }
  }
}

DeviceDigest::~DeviceDigest() {
  if (module_ != nullptr) api_.cuModuleUnload(module_);
}

Result<std::vector<Digest>> DeviceDigest::Of(std::span<const DeviceRange> ranges) {
  std::vector<Digest> digests;
  digests.reserve(ranges.size());
  for (size_t at = 0; at < ranges.size(); at += kRangesAtOnce) {
    const auto some = ranges.subspan(at, std::min(kRangesAtOnce, ranges.size() - at));
    auto sums = module_ != nullptr ? ByKernel(some) : ByProcessor(some);
    if (!sums) return std::unexpected(sums.error());
    for (size_t i = 0; i < some.size(); ++i) digests.push_back((*sums)[i].Finish(some[i].bytes));
  }
  return digests;
}

Result<std::vector<DigestSums>> DeviceDigest::ByKernel(std::span<const DeviceRange> ranges) {
  std::vector<kernel::Range> table;
  table.reserve(ranges.size());
  uint64_t pieces = 0;
  for (const DeviceRange& range : ranges) {
    table.push_back({range.address, range.bytes, pieces});
    pieces += kernel::PiecesOf(range.bytes);
  }
  std::vector<DigestSums> sums(ranges.size());
  if (pieces == 0) return sums;
  static_assert(sizeof(DigestSums) == sizeof(kernel::Sums));
  const uint64_t table_bytes = table.size() * sizeof(kernel::Range);
  const uint64_t sums_bytes = sums.size() * sizeof(DigestSums);
  const Scratch scratch(api_, table_bytes + sums_bytes);
  if (scratch.address() == 0) return ByProcessor(ranges);  // The card is full.
  CUdeviceptr table_address = scratch.address() + sums_bytes;
  CUdeviceptr sums_address = scratch.address();
  CUdevice device = 0;
  int multiprocessors = 0;
  if (auto done = api_.Check(api_.cuCtxGetDevice(&device), "cuCtxGetDevice"); !done) {
    return std::unexpected(done.error());
  }
  if (auto done =
          api_.Check(api_.cuDeviceGetAttribute(&multiprocessors,
                                               CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
                     "cuDeviceGetAttribute");
      !done) {
    return std::unexpected(done.error());
  }
  const Result<Stream> stream = MakeRunningStream(api_);
  if (!stream) return std::unexpected(stream.error());
  constexpr uint64_t kBlockPieces = uint64_t{kernel::kThreads} / 32 * kernel::kSpanPieces;
  const auto blocks = static_cast<uint32_t>(
      std::min((pieces + kBlockPieces - 1) / kBlockPieces,
               uint64_t{kBlocksOfMultiprocessor} * static_cast<uint32_t>(multiprocessors)));
  auto count = static_cast<uint32_t>(ranges.size());
  std::array<void*, 4> arguments{&table_address, &count, &pieces, &sums_address};
  auto done =
      api_.Check(api_.cuMemcpyHtoDAsync(table_address, table.data(), table_bytes, stream->get()),
                 "cuMemcpyHtoDAsync of the digest's ranges");
  if (done) {
    done = api_.Check(api_.cuMemsetD8Async(sums_address, 0, sums_bytes, stream->get()),
                      "cuMemsetD8Async of the digest's sums");
  }
  if (done) {
    done = api_.Check(api_.cuLaunchKernel(kernel_, blocks, 1, 1, kernel::kThreads, 1, 1, 0,
                                          stream->get(), arguments.data(), nullptr),
                      "cuLaunchKernel of the digest");
  }
  if (done) {
    done = api_.Check(api_.cuMemcpyDtoHAsync(sums.data(), sums_address, sums_bytes, stream->get()),
                      "cuMemcpyDtoHAsync of the digest's sums");
  }
  // Also after a failure: the memory is freed next.
  const CUresult ended = api_.cuStreamSynchronize(stream->get());
  if (done) done = api_.Check(ended, "cuStreamSynchronize of the digest");
  if (!done) return std::unexpected(done.error());
  by_kernel_ = true;
  return sums;
}

Result<std::vector<DigestSums>> DeviceDigest::ByProcessor(std::span<const DeviceRange> ranges) {
  by_kernel_ = false;
  std::vector<DigestSums> sums(ranges.size());
  uint64_t largest = 0;
  for (const DeviceRange& range : ranges) largest = std::max(largest, range.bytes);
  if (largest == 0) return sums;
  const Result<PinnedBuffer> memory = PinnedBuffer::Allocate(api_, std::min(largest, kHostBytes));
  if (!memory) return std::unexpected(memory.error());
  const Result<Stream> stream = MakeRunningStream(api_);
  if (!stream) return std::unexpected(stream.error());
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (uint64_t at = 0; at < ranges[i].bytes; at += kHostBytes) {
      const uint64_t bytes = std::min(ranges[i].bytes - at, kHostBytes);
      auto done = api_.Check(
          api_.cuMemcpyDtoHAsync(memory->data(), ranges[i].address + at, bytes, stream->get()),
          "cuMemcpyDtoHAsync to the digest");
      if (done) {
        done = api_.Check(api_.cuStreamSynchronize(stream->get()),
                          "cuStreamSynchronize of the digest");
      }
      if (!done) return std::unexpected(done.error());
      sums[i].Add(at, {memory->data(), bytes});
    }
  }
  return sums;
}

}  // namespace gpushm
