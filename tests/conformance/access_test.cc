// Who may do what with memory: rights of mappings, descriptors, uids, host pages.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "platform/daemon/descriptor.h"
#include "tests/conformance/harness.h"

namespace gpushm::conformance {
namespace {

CONFORMANCE_CASE(ImportedMemoryCannotBeExportedAgain, 20) {
  Start([](Channel&) {
    const UniqueFd fd = CreateDescriptor(kChunkBytes);
    const DeviceMemory imported = Take(DeviceMemory::Import(Cuda(), fd.get()));
    int again = -1;
    ExpectAnswer(Cuda().cuMemExportToShareableHandle(&again, imported.handle(),
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                 CUDA_ERROR_INVALID_VALUE, "export of imported memory");
  }).Join();
}

CONFORMANCE_CASE(MemoryMustAskForDescriptorsWhenCreated, 20) {
  Start([](Channel&) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    Must(Cuda().cuMemCreate(&handle, kChunkBytes, &properties, 0), "cuMemCreate");
    int fd = -1;
    ExpectAnswer(Cuda().cuMemExportToShareableHandle(&fd, handle,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                 CUDA_ERROR_INVALID_VALUE, "export of memory made without a handle type");
    Must(Cuda().cuMemRelease(handle), "cuMemRelease");
  }).Join();
}

// Goal: broker and plugin distinguish GPU memory from any other descriptor by calls that cannot
// block (platform/daemon/descriptor.h).
// Method: they are applied to what the driver exports.
CONFORMANCE_CASE(AnExportedDescriptorIsRecognised, 20) {
  Start([](Channel&) {
    const UniqueFd fd = CreateDescriptor(kChunkBytes);
    const char* const state = std::getenv("GPUSHM_SIM_DIR");
    const MemoryKind kind = Cuda().simulated()
                                ? MemoryKind::Of(state != nullptr ? state : "/var/tmp/gpushm-sim")
                                : MemoryKind{};
    const Result<void> checked = CheckMemory(fd.get(), kind);
    EXPECT_TRUE(checked) << checked.error().ToString();
    EXPECT_FALSE(CheckMemory(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)).get(), kind));
  }).Join();
}

// Goal: allocations that are mapped side by side are found one by one, and their access is set and
// ended in one call each, also by a process that imported them. An allocation is mapped whole.
CONFORMANCE_CASE(MappingsSideBySideAreUsedAsOne, 20) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    const uint64_t sizes[] = {kChunkBytes, 10 * kChunkBytes, kChunkBytes};
    std::vector<DeviceMapping::Block> blocks;
    std::vector<UniqueFd> descriptors;
    for (const uint64_t size : sizes) {
      blocks.push_back({Take(DeviceMemory::Create(api, 0, size)), size});
      descriptors.push_back(Take(blocks.back().memory.Export()));
    }
    const DeviceMapping own = Take(DeviceMapping::Map(api, blocks, 0, Access::kReadWrite));
    uint64_t at = 0;
    for (const uint64_t size : sizes) {
      CUdeviceptr base = 0;
      size_t bytes = 0;
      Must(api.cuMemGetAddressRange(&base, &bytes, own.address() + at + size / 2),
           "cuMemGetAddressRange");
      Expect(base == own.address() + at && bytes == size, "an allocation of its own is found");
      at += size;
    }
    CUdeviceptr base = 0;
    size_t bytes = 0;
    ExpectAnswer(api.cuMemGetAddressRange(&base, &bytes, own.address() + at), CUDA_ERROR_NOT_FOUND,
                 "the range behind the last one");
    const CUdeviceptr border = own.address() + kChunkBytes - 4;
    Must(api.cuMemsetD32(border, 7, 2), "a store across the border");

    std::vector<DeviceMapping::Block> imported;
    for (size_t i = 0; i < descriptors.size(); ++i) {
      imported.push_back({Take(DeviceMemory::Import(api, descriptors[i].get())), sizes[i]});
    }
    {
      const DeviceMapping other = Take(DeviceMapping::Map(api, imported, 0, Access::kRead));
      Expect(ReadWord(other.address() + kChunkBytes - 4) == (uint64_t{7} << 32 | 7),
             "a load across the border");
      Expect(other.size_bytes() == 12 * kChunkBytes, "one range");
    }
    CUdeviceptr alone = 0;
    Must(api.cuMemAddressReserve(&alone, 10 * kChunkBytes, 0, 0, 0), "cuMemAddressReserve");
    ExpectAnswer(api.cuMemMap(alone, kChunkBytes, 0, imported[1].memory.handle(), 0),
                 CUDA_ERROR_NOT_SUPPORTED, "a map of the first part of an allocation");
  }).Join();
}

// Goal: memory that other hardware may register can be shared like any other.
CONFORMANCE_CASE(MemoryForOtherHardwareIsSharedAsAny, 20) {
  Child maker = Start([](Channel& channel) {
    int supported = 0;
    Must(Cuda().cuDeviceGetAttribute(
             &supported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0),
         "cuDeviceGetAttribute");
    Note("memory of cuMemCreate for GPUDirect: " + std::to_string(supported));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.allocFlags.gpuDirectRDMACapable = supported != 0 ? 1 : 0;
    CUmemGenericAllocationHandle handle = 0;
    ExpectAnswer(Cuda().cuMemCreate(&handle, kChunkBytes, &properties, 0), CUDA_SUCCESS,
                 "cuMemCreate for GPUDirect");
    int fd = -1;
    ExpectAnswer(Cuda().cuMemExportToShareableHandle(&fd, handle,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                 CUDA_SUCCESS, "its export");
    const UniqueFd owned(fd);
    UseContext();
    const Mapped mapped = MapDescriptor(fd, kChunkBytes);
    WriteWord(mapped.address(), 7);
    channel.Send("d", 1, fd);
    channel.Await();
    Expect(ReadWord(mapped.address()) == 8, "a peer's write is not seen");
  });
  const UniqueFd fd = maker.channel.ReceiveDescriptor();
  Child user = Start([&](Channel&) {
    UseContext();
    const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes);
    Expect(ReadWord(mapped.address()) == 7, "the maker's write is not seen");
    WriteWord(mapped.address(), 8);
  });
  user.Join();
  maker.Finish();
}

CONFORMANCE_CASE(ForeignDescriptorIsRefused, 20) {
  Start([](Channel&) {
    const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    const UniqueFd memory(memfd_create("foreign", MFD_CLOEXEC));
    Expect(ftruncate(memory.get(), static_cast<off_t>(kChunkBytes)) == 0, "ftruncate");
    for (const int fd : {null.get(), memory.get()}) {
      CUmemGenericAllocationHandle handle = 0;
      const CUresult result = Cuda().cuMemImportFromShareableHandle(
          &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      Note(std::string("import of ") + (fd == null.get() ? "/dev/null: " : "a memfd: ") +
           NameOf(result));
      Expect(result != CUDA_SUCCESS, "a foreign descriptor was accepted");
    }
  }).Join();
}

CONFORMANCE_CASE(AnotherUserCanImport, 20) {
  Holder holder = HoldMemory();
  const UniqueFd& fd = holder.descriptor;
  Start(
      [&fd](Channel&) {
        UseContext();
        const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes);
        WriteWord(mapped.address(), 3);
        Expect(ReadWord(mapped.address()) == 3, "the mapping does not work");
      },
      {.uid = 65532})
      .Join();
  holder.Finish();
}

// The form with a kernel is in kernel_test.cc; this one uses the driver's own fill and copy.
CONFORMANCE_CASE(ReadOnlyMappingRefusesMemset, 20) {
  Child holder = Start([](Channel& channel) {
    UseContext();
    const UniqueFd fd = CreateDescriptor(kChunkBytes);
    WriteWord(MapDescriptor(fd.get(), kChunkBytes).address(), 77);
    channel.Send("d", 1, fd.get());
    channel.Await();
  });
  const UniqueFd fd = holder.channel.ReceiveDescriptor();
  for (const bool copy : {false, true}) {
    Start([&fd, copy](Channel&) {
      const CudaApi& api = UseContext();
      const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes, Access::kRead);
      Expect(ReadWord(mapped.address()) == 77, "a read-only mapping cannot be read");
      const uint64_t word = 1;
      CUresult result = copy ? api.cuMemcpyHtoD(mapped.address(), &word, sizeof word)
                             : api.cuMemsetD32(mapped.address(), 1, 16);
      const std::string what = copy ? "cuMemcpyHtoD" : "cuMemsetD32";
      Note(what + " on PROT_READ, the call: " + NameOf(result));
      if (result == CUDA_SUCCESS) result = api.cuCtxSynchronize();
      Note(what + " on PROT_READ, synchronised: " + NameOf(result));
      Expect(result != CUDA_SUCCESS, what + " wrote to a read-only mapping");
    }).Join();
  }
  Start([&fd](Channel&) {
    UseContext();
    const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes, Access::kRead);
    Expect(ReadWord(mapped.address()) == 77, "the data changed, or the fault spread");
    CUmemAccessDesc all{};
    all.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    all.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ExpectAnswer(Cuda().cuMemSetAccess(mapped.address(), kChunkBytes, &all, 1), CUDA_SUCCESS,
                 "a reader raises its own mapping to read-write");
    WriteWord(mapped.address(), 78);
  }).Join();
  holder.Finish();
}

CONFORMANCE_CASE(MappingWithoutAccessRefuses, 20) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    const DeviceMemory memory = Take(DeviceMemory::Create(api, 0, kChunkBytes));
    CUdeviceptr address = 0;
    Must(api.cuMemAddressReserve(&address, kChunkBytes, 0, 0, 0), "cuMemAddressReserve");
    Must(api.cuMemMap(address, kChunkBytes, 0, memory.handle(), 0), "cuMemMap");
    uint64_t word = 0;
    const CUresult result = api.cuMemcpyDtoH(&word, address, sizeof word);
    Note("cuMemcpyDtoH before cuMemSetAccess: " + NameOf(result));
    Expect(result != CUDA_SUCCESS, "memory without access rights was read");
  }).Join();
}

CONFORMANCE_CASE(PartOfAnAllocationCannotBeMapped, 20) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    const DeviceMemory memory = Take(DeviceMemory::Create(api, 0, 3 * kChunkBytes));
    CUdeviceptr address = 0;
    Must(api.cuMemAddressReserve(&address, kChunkBytes, 0, 0, 0), "cuMemAddressReserve");
    ExpectAnswer(api.cuMemMap(address, kChunkBytes, 0, memory.handle(), 0),
                 CUDA_ERROR_NOT_SUPPORTED, "cuMemMap of a third of the memory");
    Must(api.cuMemAddressFree(address, kChunkBytes), "cuMemAddressFree");
  }).Join();
}

CONFORMANCE_CASE(RetainedHandleOfMappedMemory, 20) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    const DeviceMemory memory = Take(DeviceMemory::Create(api, 0, kChunkBytes));
    const DeviceMapping mapping =
        Take(DeviceMapping::Map(api, memory, kChunkBytes, 0, Access::kReadWrite));
    const DeviceMemory retained = Take(DeviceMemory::Retain(api, mapping.address() + 4096));
    const UniqueFd fd = Take(retained.Export());
    Expect(fd.valid(), "a retained handle of own memory cannot be exported");
    CUdeviceptr legacy = 0;
    Must(api.cuMemAlloc(&legacy, kChunkBytes), "cuMemAlloc");
    CUmemGenericAllocationHandle handle = 0;
    ExpectAnswer(api.cuMemRetainAllocationHandle(
                     &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(legacy))),
                 CUDA_ERROR_INVALID_VALUE, "cuMemRetainAllocationHandle of cuMemAlloc'ed memory");
  }).Join();
}

CONFORMANCE_CASE(PointerAttributesTellTheKindOfMemory, 20) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    const UniqueFd fd = CreateDescriptor(kChunkBytes);
    const Mapped vmm = MapDescriptor(fd.get(), kChunkBytes);
    CUdeviceptr legacy = 0;
    Must(api.cuMemAlloc(&legacy, kChunkBytes), "cuMemAlloc");
    for (const CUdeviceptr address : {legacy, vmm.address()}) {
      const std::string kind = address == legacy ? "cuMemAlloc" : "VMM";
      unsigned type = 0;
      unsigned long long handles = 0;
      Must(api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), "type");
      // A boolean of four bytes, although cuda.h does not say so.
      std::array<int, 2> ipc = {-1, -1};
      Must(api.cuPointerGetAttribute(ipc.data(), CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                     address),
           "IS_LEGACY_CUDA_IPC_CAPABLE");
      Must(api.cuPointerGetAttribute(&handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address),
           "ALLOWED_HANDLE_TYPES");
      Note(kind + ": ipc " + std::to_string(ipc[0]) + ", handle types " + std::to_string(handles));
      Expect(type == CU_MEMORYTYPE_DEVICE, kind + " is not device memory");
      Expect(ipc[0] == static_cast<int>(address == legacy),
             kind + " has the wrong IS_LEGACY_CUDA_IPC_CAPABLE, or not of four bytes");
      Expect(ipc[1] == -1, "a boolean attribute has more than four bytes");
    }
    int host = 0;
    CUmemorytype type{};
    ExpectAnswer(
        api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(&host))),
        CUDA_ERROR_INVALID_VALUE, "attribute of plain host memory");
  }).Join();
}

CONFORMANCE_CASE(HostPagesThatCanBeRegistered, 20) {
  Start([](Channel&) {
    const CudaApi& api = UseContext();
    char disk_name[] = "/var/tmp/gpushm-conformance-XXXXXX";
    const UniqueFd disk(mkstemp(disk_name));
    unlink(disk_name);
    const UniqueFd memory(memfd_create("page", MFD_CLOEXEC));
    char shm_name[] = "/dev/shm/gpushm-conformance-XXXXXX";
    const UniqueFd shm(mkstemp(shm_name));
    unlink(shm_name);
    const auto try_page = [&](int fd, const std::string& what, CUresult want) {
      Expect(fd < 0 || ftruncate(fd, 4096) == 0, "ftruncate");
      void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                              fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
      *static_cast<volatile char*>(page) = 1;
      ExpectAnswer(api.cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP), want,
                   "cuMemHostRegister of " + what);
    };
    try_page(memory.get(), "a memfd's page", CUDA_SUCCESS);
    try_page(shm.get(), "a /dev/shm page", CUDA_SUCCESS);
    try_page(-1, "an anonymous page", CUDA_SUCCESS);
    try_page(disk.get(), "a disk file's page", CUDA_ERROR_INVALID_VALUE);
  }).Join();
}

}  // namespace
}  // namespace gpushm::conformance
