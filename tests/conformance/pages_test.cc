// Pages of files that the GPU reads, and copies in batches: what loads rely on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/conformance/harness.h"

namespace gpushm::conformance {
namespace {

constexpr uint64_t kFileBytes = 4 * kMiB;

uint64_t WordAt(uint64_t offset) { return offset * 0x9e3779b97f4a7c15 + 1; }

// A file whose words tell their places, mapped as a load maps it.
class MappedFile {
 public:
  explicit MappedFile(const std::string& folder) {
    std::string name = folder + "/gpushm-conformance-XXXXXX";
    file_.Reset(mkstemp(name.data()));
    unlink(name.c_str());
    std::vector<uint64_t> words(kFileBytes / sizeof(uint64_t));
    for (size_t i = 0; i < words.size(); ++i) words[i] = WordAt(i * sizeof(uint64_t));
    Expect(write(file_.get(), words.data(), kFileBytes) == static_cast<ssize_t>(kFileBytes),
           "a file in " + folder);
    memory_ = mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, file_.get(), 0);
    Expect(memory_ != MAP_FAILED, "mmap");
  }
  int descriptor() const { return file_.get(); }
  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(memory_) + offset; }
  CUresult Register(unsigned flags, uint64_t offset = 0, uint64_t size_bytes = kFileBytes) const {
    return Cuda().cuMemHostRegister(at(offset), size_bytes, flags);
  }

 private:
  UniqueFd file_;
  void* memory_ = nullptr;
};

CUdeviceptr Allocate(uint64_t size_bytes) {
  CUdeviceptr address = 0;
  Must(Cuda().cuMemAlloc(&address, size_bytes), "cuMemAlloc");
  Must(Cuda().cuMemsetD8(address, 0, size_bytes), "cuMemsetD8");
  Must(Cuda().cuCtxSynchronize(), "cuCtxSynchronize");  // Other streams do not wait for it.
  return address;
}

// The word at a multiple of 8.
void ExpectWord(CUdeviceptr address, uint64_t want, const std::string& what) {
  const uint64_t got = ReadWord(address);
  Expect(got == want,
         what + ": the GPU has " + std::to_string(got) + " instead of " + std::to_string(want));
}

// The driver's processor reads smaller copies itself, up to 24 KiB on an H200 (580.159). A load
// copies pieces below 64 KiB from memory of its own.
constexpr uint64_t kByGpuBytes = 65536;

// Copies of the sizes for which drivers have different ways, each from its own place.
void ExpectCopies(const MappedFile& file, const std::string& what, uint64_t least_bytes = 0) {
  const Stream stream = Take(Stream::Create(Cuda()));
  const CUdeviceptr target = Allocate(kFileBytes);
  uint64_t offset = 0;
  for (const uint64_t size : {uint64_t{8}, uint64_t{64}, uint64_t{4096}, uint64_t{65536},
                              uint64_t{65536 + 8}, kMiB, 2 * kMiB}) {
    if (size < least_bytes) continue;
    Must(Cuda().cuMemcpyHtoDAsync(target + offset, file.at(offset), size, stream.get()),
         what + ": cuMemcpyHtoDAsync of " + std::to_string(size));
    Must(Cuda().cuStreamSynchronize(stream.get()), what + ": " + std::to_string(size) + " bytes");
    ExpectWord(target + offset, WordAt(offset), what);
    ExpectWord(target + offset + size - 8, WordAt(offset + size - 8), what);
    offset += size;
  }
  Must(Cuda().cuMemFree(target), "cuMemFree");
}

CONFORMANCE_CASE(PagesOfAFileAreRegisteredForReading, 30) {
  for (const char* const folder : {"/var/tmp", "/dev/shm"}) {
    Start([folder](Channel&) {
      UseContext();
      const MappedFile file(folder);
      const std::string where = std::string(" of a file in ") + folder;
      if (std::string(folder) == "/var/tmp") {
        ExpectAnswer(file.Register(0), CUDA_ERROR_INVALID_VALUE,
                     "cuMemHostRegister without READ_ONLY" + where);
      }
      // Two parts side by side, as a load registers them.
      const uint64_t first = 3 * 65536;
      Must(file.Register(CU_MEMHOSTREGISTER_READ_ONLY, 0, first), "the first part" + where);
      ExpectAnswer(file.Register(CU_MEMHOSTREGISTER_READ_ONLY, first, kFileBytes - first),
                   CUDA_SUCCESS, "cuMemHostRegister for reading" + where);
      const CUdeviceptr target = Allocate(kFileBytes);
      Must(Cuda().cuMemcpyHtoD(target, file.at(0), first), "copy of the first part");
      ExpectWord(target + first - 8, WordAt(first - 8), "the first part");
      Must(Cuda().cuMemHostUnregister(file.at(0)), "cuMemHostUnregister");
      Must(Cuda().cuMemHostUnregister(file.at(first)), "cuMemHostUnregister");
      Must(file.Register(CU_MEMHOSTREGISTER_READ_ONLY), "all of it again");
      ExpectCopies(file, "registered pages");
      Must(Cuda().cuMemHostUnregister(file.at(0)), "cuMemHostUnregister");
    }).Join();
  }
}

// Goal: a file that is cut during a load costs nobody his life, and the GPU has old bytes.
CONFORMANCE_CASE(RegisteredPagesOutliveACutFile, 30) {
  Start([](Channel&) {
    UseContext();
    const MappedFile file("/var/tmp");
    Must(file.Register(CU_MEMHOSTREGISTER_READ_ONLY), "cuMemHostRegister");
    Expect(ftruncate(file.descriptor(), 0) == 0, "ftruncate");
    ExpectCopies(file, "pages of a file that was cut", kByGpuBytes);
    Must(Cuda().cuMemHostUnregister(file.at(0)), "cuMemHostUnregister");
    const CUresult again = file.Register(CU_MEMHOSTREGISTER_READ_ONLY);
    Note("cuMemHostRegister behind a file's end: " + NameOf(again));
    Expect(again != CUDA_SUCCESS, "pages that no file has were registered");
  }).Join();
}

CONFORMANCE_CASE(PagesOfAFileNeedNoPrivilege, 30) {
  const MappedFile file("/var/tmp");
  Start(
      [&file](Channel&) {
        const rlimit locked{64 << 10, 64 << 10};
        Expect(setrlimit(RLIMIT_MEMLOCK, &locked) == 0, "setrlimit");
        UseContext();
        ExpectAnswer(file.Register(CU_MEMHOSTREGISTER_READ_ONLY), CUDA_SUCCESS,
                     "cuMemHostRegister as uid 65532 with 64 KiB of RLIMIT_MEMLOCK");
        ExpectCopies(file, "registered pages");
        Must(Cuda().cuMemHostUnregister(file.at(0)), "cuMemHostUnregister");
      },
      {.uid = 65532})
      .Join();
}

// Goal: a batch between pinned memory and the GPU has the same bytes as copies one by one, in both
// directions. Not from the pages of a file: such a batch of 2,000 pieces ended in LAUNCH_FAILED on
// an H200 (580.159).
CONFORMANCE_CASE(CopiesInABatch, 30) {
  if (Driver().version < 12080) SkipCase("cuMemcpyBatchAsync came with CUDA 12.8");
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    const MappedFile file("/var/tmp");
    const Stream stream = Take(Stream::Create(api));
    const CUdeviceptr middle = Allocate(kFileBytes);
    void* source = nullptr;
    Must(api.cuMemHostAlloc(&source, kFileBytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    Expect(pread(file.descriptor(), source, kFileBytes, 0) == static_cast<ssize_t>(kFileBytes),
           "pread");
    void* host = nullptr;
    Must(api.cuMemHostAlloc(&host, kFileBytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    const auto to = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(host));
    const auto from = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(source));
    const auto batch = [&](CUdeviceptr target, CUdeviceptr source, const std::string& what) {
      std::vector<CUdeviceptr> targets;
      std::vector<CUdeviceptr> sources;
      std::vector<size_t> sizes;
      for (uint64_t at = 0; at < kFileBytes; at += sizes.back()) {
        sizes.push_back(std::min<size_t>(kFileBytes - at, 1 + sizes.size() * 37 % 16000));
        // From the end of the target on, so that one copy of all would be wrong.
        targets.push_back(target + kFileBytes - at - sizes.back());
        sources.push_back(source + at);
      }
      CopyAttributes attributes{};
      attributes.source_order = CopyAttributes::kInStreamOrder;
      size_t first = 0;
      size_t failed = 0;
      constexpr size_t kPieces = 512;  // Of a call, as a load makes it.
      for (size_t i = 0; i < sizes.size(); i += kPieces) {
        Must(
            api.copy_batch(&targets[i], &sources[i], &sizes[i], std::min(kPieces, sizes.size() - i),
                           &attributes, &first, 1, &failed, stream.get()),
            what);
      }
      Must(api.cuStreamSynchronize(stream.get()), what);
      return sizes;
    };
    batch(middle, from, "a batch from pinned memory to the GPU");
    const std::vector<size_t> sizes = batch(to, middle, "a batch from the GPU");
    // The second batch mirrors the pieces of the first one, in its own boundaries.
    std::vector<std::byte> once(kFileBytes);
    std::vector<std::byte> twice(kFileBytes);
    std::vector<std::byte> original(kFileBytes);
    Expect(pread(file.descriptor(), original.data(), kFileBytes, 0) ==
               static_cast<ssize_t>(kFileBytes),
           "pread");
    const auto mirror = [&](const std::vector<std::byte>& source, std::vector<std::byte>* target) {
      uint64_t at = 0;
      for (const size_t size : sizes) {
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(at), size,
                    target->begin() + static_cast<ptrdiff_t>(kFileBytes - at - size));
        at += size;
      }
    };
    mirror(original, &once);
    mirror(once, &twice);
    Expect(std::equal(twice.begin(), twice.end(), static_cast<std::byte*>(host)),
           "the batches have other bytes");
    Must(api.cuMemFreeHost(source), "cuMemFreeHost");
    Must(api.cuMemFreeHost(host), "cuMemFreeHost");
  }).Join();
}

}  // namespace
}  // namespace gpushm::conformance
