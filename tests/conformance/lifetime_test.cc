// How long GPU memory lives, to whom it is charged, and what a new owner sees in it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/conformance/harness.h"

namespace gpushm::conformance {
namespace {

constexpr uint64_t kBig = 256 * kMiB;

// A process that creates memory without a context, sends its descriptor, and stays.
Child StartHolder(uint64_t size_bytes, const ChildOptions& options = {}) {
  return Start(
      [size_bytes](Channel& channel) {
        const DeviceMemory memory = Take(DeviceMemory::Create(Cuda(), 0, size_bytes));
        const UniqueFd fd = Take(memory.Export());
        channel.Send("d", 1, fd.get());
        pause();
      },
      options);
}

UniqueFd ReceiveDescriptor(Child& child) {
  UniqueFd fd = child.channel.ReceiveDescriptor();
  Expect(fd.valid(), "no descriptor came");
  return fd;
}

CONFORMANCE_CASE(NoContextHolderCostsOnlyItsBytes, 20) {
  const uint64_t before = UsedBytes();
  Child holder = StartHolder(1024 * kMiB);
  const UniqueFd fd = ReceiveDescriptor(holder);
  const uint64_t used = UsedBytes() - before;
  Note("1024 MiB held, MiB used: " + std::to_string(used / kMiB));
  Expect(Near(used, 1024 * kMiB), "a holder without a context should cost no more than its bytes");
  holder.Kill();
}

CONFORMANCE_CASE(ContextCostsHundredsOfMebibytes, 20) {
  const uint64_t before = UsedBytes();
  Child child = Start([](Channel& channel) {
    UseContext();
    channel.Signal();
    pause();
  });
  child.channel.Await();
  const uint64_t used = UsedBytes() - before;
  Note("MiB used by a primary context: " + std::to_string(used / kMiB));
  Expect(used > 200 * kMiB && used < 1024 * kMiB, "a context costs about 523 MiB on H200");
  child.Kill();
  Expect(Near(AwaitUsed(before), before), "its memory is not free after SIGKILL");
}

CONFORMANCE_CASE(DescriptorAloneKeepsMemory, 30) {
  const uint64_t before = UsedBytes();
  Child holder = Start([](Channel& channel) {
    UseContext();
    const DeviceMemory memory = Take(DeviceMemory::Create(Cuda(), 0, kBig));
    const UniqueFd fd = Take(memory.Export());
    const Mapped mapped = MapDescriptor(fd.get(), kBig);
    WriteWord(mapped.address() + kBig - 8, 0xC0FFEE);
    channel.Send("d", 1, fd.get());
    pause();
  });
  UniqueFd fd = ReceiveDescriptor(holder);
  holder.Kill();
  // From here on this process, which never calls CUDA, is the only holder.
  Expect(Near(AwaitUsed(before + kBig), before + kBig), "the memory went with its creator");
  Start([&fd](Channel&) {
    UseContext();
    const Mapped mapped = MapDescriptor(fd.get(), kBig);
    Expect(ReadWord(mapped.address() + kBig - 8) == 0xC0FFEE, "the data is gone");
  }).Join();
  fd.Reset();
  Expect(Near(AwaitUsed(before), before), "the memory stays after the last descriptor");
}

CONFORMANCE_CASE(MappingSurvivesCreatorsDeath, 20) {
  Child holder = StartHolder(kChunkBytes);
  UniqueFd fd = ReceiveDescriptor(holder);
  Child user = Start([&fd](Channel& channel) {
    UseContext();
    const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes);
    fd.Reset();
    WriteWord(mapped.address(), 11);
    channel.Signal();
    channel.Await();
    Expect(ReadWord(mapped.address()) == 11, "the data changed");
    WriteWord(mapped.address(), 12);
    Expect(ReadWord(mapped.address()) == 12, "the mapping is dead");
  });
  user.channel.Await();
  holder.Kill();
  fd.Reset();
  user.Finish();
}

CONFORMANCE_CASE(MemoryIsFreeAtOnceAfterRelease, 20) {
  const uint64_t before = UsedBytes();
  Child child = Start([](Channel& channel) {
    {
      const DeviceMemory memory = Take(DeviceMemory::Create(Cuda(), 0, 1024 * kMiB));
      channel.Signal();
      channel.Await();
    }
    channel.Signal();
    pause();
  });
  child.channel.Await();
  Expect(Near(UsedBytes(), before + 1024 * kMiB), "the memory is not counted");
  child.channel.Signal();
  child.channel.Await();
  Expect(Near(UsedBytes(), before), "released memory is still used");
  child.Kill();
}

CONFORMANCE_CASE(MemoryOfDeadProcessIsScrubbed, 40) {
  constexpr int kCount = 4;
  constexpr uint64_t kSize = 64 * kMiB;
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    std::vector<Mapped> kept;
    for (int i = 0; i < kCount; ++i) {
      kept.push_back(MapDescriptor(CreateDescriptor(kSize).get(), kSize));
      Must(api.cuMemsetD32(kept.back().address(), 0xDEADBEEF, kSize / 4), "cuMemsetD32");
    }
    Must(api.cuCtxSynchronize(), "cuCtxSynchronize");
  }).Join();
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    std::vector<uint32_t> words(kSize / 4);
    std::vector<Mapped> kept;
    uint64_t stale = 0;
    for (int i = 0; i < kCount; ++i) {
      kept.push_back(MapDescriptor(CreateDescriptor(kSize).get(), kSize));
      Must(api.cuMemcpyDtoH(words.data(), kept.back().address(), kSize), "cuMemcpyDtoH");
      for (const uint32_t word : words) stale += word == 0xDEADBEEF ? 1 : 0;
    }
    Expect(stale == 0, "words of a dead process were seen: " + std::to_string(stale));
  }).Join();
}

CONFORMANCE_CASE(ReleasedMemoryIsScrubbedInTheSameProcess, 20) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    for (int i = 0; i < 4; ++i) {
      const Mapped mapped = MapDescriptor(CreateDescriptor(64 * kMiB).get(), 64 * kMiB);
      Expect(ReadWord(mapped.address() + 4096) == 0, "stale bytes were seen");
      Must(api.cuMemsetD32(mapped.address(), 0xABAD1DEA, 16 * kMiB), "cuMemsetD32");
      Must(api.cuCtxSynchronize(), "cuCtxSynchronize");
    }
  }).Join();
}

CONFORMANCE_CASE(ImportAndMapNeedNoContext, 20) {
  Start([](Channel&) {
    const UniqueFd fd = CreateDescriptor(64 * kMiB);
    const Mapped mapped = MapDescriptor(fd.get(), 64 * kMiB);
    CUcontext current = nullptr;
    Must(Cuda().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    Expect(current == nullptr, "a context appeared");
    uint64_t word = 1;
    ExpectAnswer(Cuda().cuMemcpyHtoD(mapped.address(), &word, sizeof word),
                 CUDA_ERROR_INVALID_CONTEXT, "cuMemcpyHtoD without a context");
    UseContext();
    WriteWord(mapped.address(), 7);
    Expect(ReadWord(mapped.address()) == 7, "the mapping is not valid in a later context");
  }).Join();
}

CONFORMANCE_CASE(MemoryOutlivesReleasedHandle, 20) {
  Start([](Channel&) {
    UseContext();
    DeviceMapping mapping = [] {
      const DeviceMemory memory = Take(DeviceMemory::Create(Cuda(), 0, kChunkBytes));
      return Take(DeviceMapping::Map(Cuda(), memory, kChunkBytes, 0, Access::kReadWrite));
    }();
    WriteWord(mapping.address(), 5);
    Expect(ReadWord(mapping.address()) == 5, "the mapping does not keep the memory");
  }).Join();
}

CONFORMANCE_CASE(ChildOfForkCannotUseTheDriver, 20) {
  Start([](Channel&) {
    Cuda();
    Start([](Channel&) {
      const CudaApi& api = *Take(CudaApi::Load(DriverFolderFromEnvironment()));
      ExpectAnswer(api.cuInit(0), CUDA_ERROR_NOT_INITIALIZED, "cuInit in a forked child");
      int count = 0;
      ExpectAnswer(api.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED,
                   "cuDeviceGetCount in a forked child");
    }).Join();
  }).Join();
}

// Loading it does not yet use it.
CONFORMANCE_CASE(ChildOfForkMayUseADriverThatWasOnlyLoaded, 40) {
  Start([](Channel&) {
    const CudaApi& api = *Take(CudaApi::Load(DriverFolderFromEnvironment()));
    const auto use = [](Channel&) {
      UseContext();
      const Mapped mapped = MapDescriptor(CreateDescriptor(kChunkBytes).get(), kChunkBytes);
      WriteWord(mapped.address(), 7);
      Expect(ReadWord(mapped.address()) == 7, "the data changed");
    };
    Start(use).Join();
    ExpectAnswer(api.cuInit(0), CUDA_SUCCESS, "cuInit in the parent, after its child's");
    Start([](Channel&) {
      const CudaApi& inherited = *Take(CudaApi::Load(DriverFolderFromEnvironment()));
      ExpectAnswer(inherited.cuInit(0), CUDA_ERROR_NOT_INITIALIZED, "cuInit in its next child");
    }).Join();
  }).Join();
}

CONFORMANCE_CASE(CallsBeforeInitAreRefused, 20) {
  Start([](Channel&) {
    const CudaApi& api = *Take(CudaApi::Load(DriverFolderFromEnvironment()));
    int count = 0;
    ExpectAnswer(api.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED,
                 "cuDeviceGetCount before cuInit");
  }).Join();
}

}  // namespace
}  // namespace gpushm::conformance
