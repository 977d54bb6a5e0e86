// Cases that need a kernel. The simulated driver runs that of the digest only.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "platform/base/digest.h"
#include "platform/driver/digest_images.h"
#include "platform/driver/digest_kernel.h"
#include "platform/transfer/device_digest.h"
#include "tests/conformance/harness.h"

namespace gpushm::conformance {
namespace {

constexpr char kProgram[] = R"ptx(
.version 6.0
.target sm_50
.address_size 64
.visible .entry store_word(.param .u64 where, .param .u64 value) {
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [where];
  ld.param.u64 %rd2, [value];
  cvta.to.global.u64 %rd3, %rd1;
  st.global.u64 [%rd3], %rd2;
  ret;
}
.visible .entry copy_word(.param .u64 from, .param .u64 where) {
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [from];
  ld.param.u64 %rd2, [where];
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  ld.global.u64 %rd5, [%rd3];
  st.global.u64 [%rd4], %rd5;
  ret;
}
)ptx";

void NeedKernels() {
  if (Driver().simulated) SkipCase("kernels run on GPUs only");
}

// Runs a kernel of two 64-bit arguments on one thread; returns the result after it ended.
CUresult Launch(const char* name, uint64_t first, uint64_t second) {
  const CudaApi& api = Cuda();
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  Must(api.cuModuleLoadData(&module, kProgram), "cuModuleLoadData");
  Must(api.cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
  void* arguments[] = {&first, &second};
  Must(api.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
       "cuLaunchKernel");
  return api.cuCtxSynchronize();
}

// Under MPS a fault is that of all clients: mps_story.py of tests/gpu_node shows it.
CONFORMANCE_CASE(KernelWriteToReadOnlyMappingFaultsOnlyTheWriter, 40) {
  NeedKernels();
  if (UnderMps()) SkipCase("under MPS a fault ends the work of all clients");
  Child bystander = Start([](Channel& channel) {
    UseContext();
    const UniqueFd fd = CreateDescriptor(kChunkBytes);
    const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes);
    WriteWord(mapped.address(), 77);
    channel.Send("d", 1, fd.get());
    channel.Await();
    Expect(ReadWord(mapped.address()) == 77, "the data changed, or the fault spread");
  });
  const UniqueFd fd = bystander.channel.ReceiveDescriptor();
  Start([&fd](Channel&) {
    UseContext();
    const Mapped read_only = MapDescriptor(fd.get(), kChunkBytes, Access::kRead);
    const UniqueFd scratch_fd = CreateDescriptor(kChunkBytes);
    const Mapped scratch = MapDescriptor(scratch_fd.get(), kChunkBytes);
    Must(Launch("copy_word", read_only.address(), scratch.address()), "a kernel's read");
    Expect(ReadWord(scratch.address()) == 77, "a kernel read something else");
    ExpectAnswer(Launch("store_word", read_only.address(), 1), CUDA_ERROR_ILLEGAL_ADDRESS,
                 "a kernel's write to a PROT_READ mapping");
    uint64_t word = 0;
    Note("cuMemcpyDtoH afterwards: " +
         NameOf(Cuda().cuMemcpyDtoH(&word, scratch.address(), sizeof word)));
  }).Join();
  bystander.Finish();
}

CONFORMANCE_CASE(KernelStoreWakesWait, 30) {
  NeedKernels();
  Holder holder = HoldMemory();
  const UniqueFd& fd = holder.descriptor;
  Child waiter = Start([&fd](Channel& channel) {
    UseContext();
    const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes);
    const Stream stream = Take(Stream::Create(Cuda()));
    Must(Cuda().cuStreamWaitValue64(stream.get(), mapped.address(), 1, CU_STREAM_WAIT_VALUE_GEQ),
         "cuStreamWaitValue64");
    channel.Signal();
    Expect(QueryFor(stream.get(), 5000) == CUDA_SUCCESS, "nothing woke the wait");
  });
  waiter.channel.Await();
  Start([&fd](Channel&) {
    UseContext();
    Must(Launch("store_word", MapDescriptor(fd.get(), kChunkBytes).address(), 1), "store_word");
  }).Join();
  waiter.Join();
  holder.Finish();
}

CONFORMANCE_CASE(KernelsGoOnAfterCreatorsDeath, 30) {
  NeedKernels();
  Holder holder = HoldMemory();
  const UniqueFd& fd = holder.descriptor;
  Child user = Start([&fd](Channel& channel) {
    UseContext();
    const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes);
    channel.Signal();
    channel.Await();
    Must(Launch("store_word", mapped.address(), 8), "store_word");
    Expect(ReadWord(mapped.address()) == 8, "the kernel's write is lost");
  });
  user.channel.Await();
  holder.Kill();
  user.Finish();
}

// The driver takes machine code that is for its GPU, and compiles PTX for any.
CONFORMANCE_CASE(DigestKernelIsForTodaysGpusAndForAny, 60) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    CUmodule module = nullptr;
    const auto images = digest_kernel::Images();
    for (const unsigned char* const image : images.first(images.size() - 1)) {
      const CUresult code = api.cuModuleLoadData(&module, image);
      Note("cuModuleLoadData of machine code: " + NameOf(code));
      Expect(code == CUDA_SUCCESS || code == CUDA_ERROR_NO_BINARY_FOR_GPU, NameOf(code));
      if (code == CUDA_SUCCESS) Must(api.cuModuleUnload(module), "cuModuleUnload");
    }
    Must(api.cuModuleLoadData(&module, images.back()), "cuModuleLoadData of PTX");
    CUfunction function = nullptr;
    Must(api.cuModuleGetFunction(&function, module, digest_kernel::kName), "cuModuleGetFunction");
    Must(api.cuModuleUnload(module), "cuModuleUnload");
  }).Join();
}

// The kernel gives what the processor gives, for ranges of all lengths and at all addresses.
CONFORMANCE_CASE(DigestKernelIsThatOfTheProcessor, 60) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    constexpr uint64_t kBytes = 64 * kMiB;
    const UniqueFd fd = CreateDescriptor(kBytes);
    const Mapped mapped = MapDescriptor(fd.get(), kBytes);
    std::mt19937_64 random(1);
    std::vector<std::byte> bytes(kBytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    Must(api.cuMemcpyHtoD(mapped.address(), bytes.data(), kBytes), "cuMemcpyHtoD");
    std::vector<DeviceRange> ranges = {{mapped.address(), kBytes}, {mapped.address(), 0}};
    for (uint64_t i = 0; i < 3000; ++i) {
      // Half of them begin where a tensor does, and many are no whole pieces.
      const uint64_t size =
          i % 3 == 0 ? random() % 40 : random() % (i % 50 == 0 ? 8 * kMiB : 50'000);
      const uint64_t offset = random() % (kBytes - size);
      ranges.push_back({mapped.address() + (i % 2 == 0 ? offset / 256 * 256 : offset), size});
    }
    DeviceDigest digest(api, kBytes);
    const std::vector<Digest> made = Take(digest.Of(ranges));
    Expect(digest.by_kernel(), "the driver did not take the kernel");
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto part =
          std::span(bytes).subspan(ranges[i].address - mapped.address(), ranges[i].bytes);
      Expect(made[i] == DigestOf(part),
             Concat("the digest of ", part.size(), " bytes at ", ranges[i].address));
    }
  }).Join();
}

}  // namespace
}  // namespace gpushm::conformance
