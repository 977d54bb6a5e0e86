// Sizes, counts, and several GPUs.
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <optional>

#include "tests/conformance/harness.h"

namespace gpushm::conformance {
namespace {

CONFORMANCE_CASE(CardIsFullAtItsSize, 40) {
  const uint64_t before = UsedBytes();
  Start([](Channel&) {
    constexpr uint64_t kStep = 1024 * kMiB;
    std::vector<DeviceMemory> kept;
    uint64_t held = 0;
    const auto over =
        DeviceMemory::Create(Cuda(), 0, RoundUp(Driver().total_bytes, kChunkBytes) + kChunkBytes);
    Expect(!over && over.error().code() == Code::kExhausted, "more than the card was allocated");
    for (uint64_t step = 16 * kStep; step >= kStep; step /= 4) {
      for (;;) {
        auto memory = DeviceMemory::Create(Cuda(), 0, step);
        if (!memory) {
          Expect(memory.error().code() == Code::kExhausted, memory.error().ToString());
          break;
        }
        kept.push_back(std::move(*memory));
        held += step;
      }
    }
    Note("GiB held at OUT_OF_MEMORY: " + std::to_string(held >> 30) + " of " +
         std::to_string(Driver().total_bytes >> 30));
    Expect(held + 4 * kStep >= Driver().total_bytes - (Driver().total_bytes / 4),
           "far less than the card was allocated; is the GPU in use?");
    kept.clear();
    const auto again = DeviceMemory::Create(Cuda(), 0, kStep);
    Expect(again.has_value(), "the card stays full after the release");
  }).Join();
  Expect(Near(AwaitUsed(before), before), "memory stays used");
}

CONFORMANCE_CASE(SizesAreMultiplesOfTheGranularity, 20) {
  Start([](Channel&) {
    const uint64_t granularity = ListDevices(Cuda())->front().granularity;
    Note("granularity: " + std::to_string(granularity));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    ExpectAnswer(Cuda().cuMemCreate(&handle, granularity + 4096, &properties, 0),
                 CUDA_ERROR_INVALID_VALUE, "cuMemCreate of an odd size");
    ExpectAnswer(Cuda().cuMemCreate(&handle, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE,
                 "cuMemCreate of 0 bytes");
  }).Join();
}

CONFORMANCE_CASE(ThousandImportsInOneProcess, 60) {
  Start([](Channel&) {
    UseContext();
    std::vector<Mapped> kept;
    constexpr size_t kCount = 1000;
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < kCount; ++i) {
      const UniqueFd fd = CreateDescriptor(kChunkBytes);
      kept.push_back(MapDescriptor(fd.get(), kChunkBytes));
    }
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(
        std::chrono::steady_clock::now() - begin);
    Note("us for create, export, import and map: " +
         std::to_string(static_cast<size_t>(took.count()) / kCount));
    WriteWord(kept.back().address(), 4);
    Expect(ReadWord(kept.back().address()) == 4 && ReadWord(kept.front().address()) == 0,
           "the mappings are mixed up");
  }).Join();
}

CONFORMANCE_CASE(AttributesThatTheProjectReads, 20) {
  Start([](Channel&) {
    const std::pair<CUdevice_attribute, const char*> wanted[] = {
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "VMM"},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "posix descriptors"},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit memops"},
        {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, "read-only registration"},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addressing"}};
    for (const auto& [attribute, name] : wanted) {
      int value = 0;
      Must(Cuda().cuDeviceGetAttribute(&value, attribute, 0), name);
      Note(std::string(name) + ": " + std::to_string(value));
      Expect(value == 1, std::string(name) + " is missing");
    }
    for (const auto& [attribute, name] :
         {std::pair{CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, "ipc events"},
          std::pair{CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, "dma-buf"},
          std::pair{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "fabric"}}) {
      int value = 0;
      Must(Cuda().cuDeviceGetAttribute(&value, attribute, 0), name);
      Note(std::string(name) + ": " + std::to_string(value));
    }
  }).Join();
}

CONFORMANCE_CASE(HolderWithoutContextIsNotAmongTheProcesses, 20) {
  const auto processes = [] {
    const NvmlApi& nvml = *Take(NvmlApi::Load(DriverFolderFromEnvironment()));
    nvmlDevice_t device = nullptr;
    unsigned count = 64;
    std::vector<nvmlProcessInfo_t> infos(count);
    if (nvml.nvmlDeviceGetHandleByUUID(Driver().uuid, &device) != NVML_SUCCESS ||
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos.data()) !=
            NVML_SUCCESS) {
      SkipCase("NVML lists no processes here");
    }
    return count;
  };
  const unsigned before = processes();
  Child holder = Start([](Channel& channel) {
    const UniqueFd fd = CreateDescriptor(64 * kMiB);
    channel.Signal();
    channel.Await();
    UseContext();
    channel.Signal();
    channel.Await();
  });
  holder.channel.Await();
  Expect(processes() == before, "a holder without a context is listed");
  holder.channel.Signal();
  holder.channel.Await();
  Note("processes with a context: " + std::to_string(processes() - before));
  holder.Finish();
}

// The memory of process `pid` according to NVML; nothing if NVML does not list it.
static std::optional<uint64_t> UsedByProcess(unsigned pid) {
  const NvmlApi& nvml = *Take(NvmlApi::Load(DriverFolderFromEnvironment()));
  nvmlDevice_t device = nullptr;
  unsigned count = 64;
  std::vector<nvmlProcessInfo_t> infos(count);
  if (nvml.nvmlDeviceGetHandleByUUID(Driver().uuid, &device) != NVML_SUCCESS ||
      nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos.data()) != NVML_SUCCESS) {
    SkipCase("NVML lists no processes here");
  }
  for (unsigned i = 0; i < count; ++i) {
    if (infos[i].pid == pid) return infos[i].usedGpuMemory;
  }
  return std::nullopt;
}

// To which process NVML's list assigns an imported allocation.
CONFORMANCE_CASE(NvmlCountsImportedMemory, 30) {
  Child holder = Start([](Channel& channel) {
    const UniqueFd fd = CreateDescriptor(256 * kMiB);
    channel.Send("x", 1, fd.get());
    channel.Await();
  });
  const UniqueFd fd = holder.channel.ReceiveDescriptor();
  Child importer = Start([](Channel& channel) {
    const CudaApi& api = UseContext();
    char sent = 0;
    const UniqueFd memory = channel.Receive(&sent, 1);
    const auto pid = static_cast<unsigned>(getpid());
    channel.Send(&pid, sizeof pid);
    channel.Await();
    const Mapped mapped = MapDescriptor(memory.get(), 256 * kMiB);
    channel.Signal();
    channel.Await();
    CUdeviceptr own = 0;
    Must(api.cuMemAlloc(&own, 128 * kMiB), "cuMemAlloc");
    channel.Signal();
    channel.Await();
  });
  importer.channel.Send("x", 1, fd.get());
  unsigned pid = 0;
  importer.channel.Receive(&pid, sizeof pid);
  const auto context = UsedByProcess(pid);
  if (!context) SkipCase("NVML's PIDs are not those of this PID namespace");
  importer.channel.Signal();
  importer.channel.Await();
  const auto mapped = UsedByProcess(pid);
  importer.channel.Signal();
  importer.channel.Await();
  const auto with_own = UsedByProcess(pid);
  Expect(mapped && with_own, "the process is listed no more");
  Note("MiB more after mapping 256 of another process: " +
       std::to_string((*mapped - *context) / kMiB) +
       ", after 128 of its own: " + std::to_string((*with_own - *mapped) / kMiB));
  Expect(Near(*mapped - *context, 0, 4 * kMiB), "imported memory counts for the importer");
  Expect(Near(*with_own - *mapped, 128 * kMiB, 4 * kMiB), "its own memory does not count");
  importer.Finish();
  holder.Finish();
}

CONFORMANCE_CASE(PeerGpuMapsTheMemory, 30) {
  if (Driver().devices < 2) SkipCase("needs two GPUs");
  Start([](Channel&) {
    const CudaApi& api = Cuda();
    const UniqueFd fd = CreateDescriptor(kChunkBytes, 0);
    const PrimaryContext context = Take(PrimaryContext::Retain(api, 1));
    Expect(context.MakeCurrent().has_value(), "cuCtxSetCurrent");
    const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes, Access::kReadWrite, 1);
    WriteWord(mapped.address(), 6);
    Expect(ReadWord(mapped.address()) == 6, "peer memory does not work");
  }).Join();
}

CONFORMANCE_CASE(MemoryOfAnInvisibleGpuCanBeImported, 30) {
  if (Driver().devices < 2) SkipCase("needs two GPUs");
  Child holder = Start([](Channel& channel) {
    const UniqueFd fd = CreateDescriptor(kChunkBytes, 1);
    channel.Send("d", 1, fd.get());
    channel.Await();
  });
  const UniqueFd fd = holder.channel.ReceiveDescriptor();
  Start(
      [&fd](Channel&) {
        UseContext();
        const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes);
        WriteWord(mapped.address(), 6);
        Expect(ReadWord(mapped.address()) == 6, "peer memory does not work");
      },
      {.environment = {"CUDA_VISIBLE_DEVICES=0"}})
      .Join();
  holder.Finish();
}

}  // namespace
}  // namespace gpushm::conformance
