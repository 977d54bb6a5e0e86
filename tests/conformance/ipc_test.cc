// Legacy interprocess handles, and the same through descriptors, between kinds of containers.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/conformance/harness.h"

namespace {
pid_t told_pid = 0;  // Of this process; 0: the real one.
}

// Stands before libc's, for the driver too (docs/design/cuda-ipc.md).
extern "C" __attribute__((visibility("default"))) pid_t getpid() noexcept {
  return told_pid != 0 ? told_pid : static_cast<pid_t>(syscall(SYS_getpid));
}

namespace gpushm::conformance {
namespace {

struct Handles {
  CUipcMemHandle memory;
  CUipcEventHandle event;
};

// A process with memory from cuMemAlloc (which contains the word 0x5151), an interprocess event and
// a VMM descriptor. On the message "record", it records the event after a wait that never ends.
// The driver is told the PID `told`, unless that is 0.
Child StartExporter(const ChildOptions& options = {}, pid_t told = 0) {
  return Start(
      [told](Channel& channel) {
        told_pid = told;
        const CudaApi& api = UseContext();
        CUdeviceptr address = 0;
        Must(api.cuMemAlloc(&address, kChunkBytes), "cuMemAlloc");
        WriteWord(address, 0x5151);
        CUevent event = nullptr;
        Must(api.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
             "cuEventCreate");
        Handles handles{};
        Must(api.cuIpcGetMemHandle(&handles.memory, address), "cuIpcGetMemHandle");
        Must(api.cuIpcGetEventHandle(&handles.event, event), "cuIpcGetEventHandle");
        const UniqueFd fd = CreateDescriptor(kChunkBytes);
        WriteWord(MapDescriptor(fd.get(), kChunkBytes).address(), 0x5252);
        channel.Send(&handles, sizeof handles, fd.get());
        channel.Await();
        const Stream stream = Take(Stream::Create(api));
        Must(api.cuStreamWaitValue64(stream.get(), address + 4096, 1, CU_STREAM_WAIT_VALUE_GEQ),
             "cuStreamWaitValue64");
        Must(api.cuEventRecord(event, stream.get()), "cuEventRecord");
        channel.Signal();
        pause();
      },
      options);
}

struct Exported {
  Handles handles{};
  UniqueFd fd;
};

Exported ReceiveHandles(Child& exporter) {
  Exported exported;
  exported.fd = exporter.channel.Receive(&exported.handles, sizeof exported.handles);
  return exported;
}

void ExpectDescriptorWorks(const Exported& exported) {
  const Mapped mapped = MapDescriptor(exported.fd.get(), kChunkBytes);
  Expect(ReadWord(mapped.address()) == 0x5252, "the descriptor shows other bytes");
  Note("VMM descriptor: works");
}

CUresult OpenMemory(const Exported& exported, CUdeviceptr* address) {
  return Cuda().cuIpcOpenMemHandle(address, exported.handles.memory,
                                   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

struct ToldPids {
  pid_t exporter = 0, importer = 0;
};

void OpenAllAndExpect(const ChildOptions& exporter_options, const ChildOptions& importer_options,
                      CUresult memory_answer, CUresult event_answer, ToldPids told = {}) {
  if (told.exporter != 0 && UnderMps()) SkipCase("under MPS, the real PID must be told");
  Child exporter = StartExporter(exporter_options, told.exporter);
  const Exported exported = ReceiveHandles(exporter);
  Start(
      [&](Channel&) {
        told_pid = told.importer;
        const CudaApi& api = UseContext();
        ExpectDescriptorWorks(exported);
        CUevent event = nullptr;
        CUdeviceptr address = 0;
        if (memory_answer == CUDA_SUCCESS) {
          ExpectAnswer(OpenMemory(exported, &address), memory_answer, "cuIpcOpenMemHandle");
          Expect(ReadWord(address) == 0x5151, "cuIpc memory shows other bytes");
        }
        ExpectAnswer(api.cuIpcOpenEventHandle(&event, exported.handles.event), event_answer,
                     "cuIpcOpenEventHandle");
        if (event_answer == CUDA_SUCCESS) {
          Must(api.cuStreamWaitEvent(nullptr, event, 0), "cuStreamWaitEvent");
          Must(api.cuCtxSynchronize(),
               "cuCtxSynchronize after a wait for an event of the exporter");
        }
        if (memory_answer != CUDA_SUCCESS) {
          const CUresult result = OpenMemory(exported, &address);
          Note("cuIpcOpenMemHandle after the event's: " + NameOf(result));
          Expect(result != CUDA_SUCCESS, "cuIpc memory was opened between equal PIDs");
        }
      },
      importer_options)
      .Join();
  exporter.Kill();
}

CONFORMANCE_CASE(IpcInTheSameNamespaces, 30) {
  OpenAllAndExpect({}, {}, CUDA_SUCCESS, CUDA_SUCCESS);
}

CONFORMANCE_CASE(IpcBetweenIpcNamespaces, 30) {
  OpenAllAndExpect({.own_ipc_namespace = true}, {.own_ipc_namespace = true}, CUDA_SUCCESS,
                   CUDA_SUCCESS);
}

CONFORMANCE_CASE(IpcWithDifferingPidsAcrossPidNamespaces, 30) {
  OpenAllAndExpect({}, {.own_pid_namespace = true}, CUDA_SUCCESS, CUDA_SUCCESS);
}

// libgpushm-cudaipc.so relies on these two: the driver compares what libc's getpid answers, and
// nothing else. Under MPS the told number is in credentials too, and the kernel refuses it there.
CONFORMANCE_CASE(IpcBetweenEqualPidsWhenTheDriverIsToldOthers, 30) {
  OpenAllAndExpect({.own_pid_namespace = true}, {.own_pid_namespace = true}, CUDA_SUCCESS,
                   CUDA_SUCCESS, {.exporter = 1'234'567'890, .importer = 2'034'567'890});
}

// cuInit binds an abstract socket that it names after the PID it is told. Two processes of one
// network namespace would bind one name, and the second one's cuInit answers OPERATING_SYSTEM.
CONFORMANCE_CASE(IpcBetweenOtherPidsWhenTheDriverIsToldOne, 30) {
  OpenAllAndExpect({.own_network_namespace = true}, {.own_network_namespace = true},
                   CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT,
                   {.exporter = 1'234'567'890, .importer = 1'234'567'890});
}

CONFORMANCE_CASE(IpcEventWithEqualPids, 30) {
  OpenAllAndExpect({.own_pid_namespace = true}, {.own_pid_namespace = true},
                   CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
}

CONFORMANCE_CASE(IpcMemoryWithEqualPidsFailsAndPoisons, 30) {
  Child exporter = StartExporter({.own_pid_namespace = true});
  const Exported exported = ReceiveHandles(exporter);
  Start(
      [&](Channel&) {
        UseContext();
        ExpectDescriptorWorks(exported);
        CUdeviceptr address = 0;
        ExpectAnswer(OpenMemory(exported, &address), CUDA_ERROR_INVALID_CONTEXT,
                     "cuIpcOpenMemHandle with equal PIDs");
        Note("cuIpcOpenMemHandle again: " + NameOf(OpenMemory(exported, &address)));
        CUevent event = nullptr;
        Note("cuIpcOpenEventHandle afterwards: " +
             NameOf(Cuda().cuIpcOpenEventHandle(&event, exported.handles.event)));
        Note("cuCtxSynchronize afterwards: " + NameOf(Cuda().cuCtxSynchronize()));
      },
      {.own_pid_namespace = true})
      .Join();
  exporter.Kill();
}

CONFORMANCE_CASE(IpcMemoryOpenedTwiceHasOneAddress, 30) {
  Child exporter = StartExporter();
  const Exported exported = ReceiveHandles(exporter);
  Start([&](Channel&) {
    UseContext();
    CUdeviceptr first = 0;
    CUdeviceptr second = 0;
    Must(OpenMemory(exported, &first), "cuIpcOpenMemHandle");
    Must(OpenMemory(exported, &second), "cuIpcOpenMemHandle again");
    Expect(first == second, "the second opening has another address");
    Must(Cuda().cuIpcCloseMemHandle(first), "cuIpcCloseMemHandle");
    Expect(ReadWord(second) == 0x5151, "the first closing closed both");
  }).Join();
  exporter.Kill();
}

CONFORMANCE_CASE(IpcMemorySurvivesExportersDeath, 30) {
  Child exporter = StartExporter();
  const Exported exported = ReceiveHandles(exporter);
  Child importer = Start([&](Channel& channel) {
    UseContext();
    CUdeviceptr address = 0;
    Must(OpenMemory(exported, &address), "cuIpcOpenMemHandle");
    channel.Signal();
    channel.Await();
    Expect(ReadWord(address) == 0x5151, "the bytes went with the exporter");
    WriteWord(address, 1);
  });
  importer.channel.Await();
  exporter.Kill();
  importer.Finish();
}

CONFORMANCE_CASE(IpcMemoryOfDeadExporterIsInvalidHandle, 30) {
  Child exporter = StartExporter();
  const Exported exported = ReceiveHandles(exporter);
  exporter.Kill();
  Start([&](Channel&) {
    UseContext();
    CUdeviceptr address = 0;
    ExpectAnswer(OpenMemory(exported, &address), CUDA_ERROR_INVALID_HANDLE,
                 "cuIpcOpenMemHandle of a dead exporter");
  }).Join();
}

CONFORMANCE_CASE(IpcEventOfDeadExporterOpensAndNeverFires, 30) {
  Child exporter = StartExporter();
  const Exported exported = ReceiveHandles(exporter);
  exporter.channel.Signal();
  exporter.channel.Await();
  exporter.Kill();
  Start([&](Channel&) {
    UseContext();
    CUevent event = nullptr;
    ExpectAnswer(Cuda().cuIpcOpenEventHandle(&event, exported.handles.event), CUDA_SUCCESS,
                 "cuIpcOpenEventHandle of a dead exporter");
    usleep(300'000);  // sleep: to see that nothing comes.
    Note("cuEventQuery of it: " + NameOf(Cuda().cuEventQuery(event)));
  }).Join();
}

CONFORMANCE_CASE(IpcEventNeedsOneUid, 30) {
  OpenAllAndExpect({}, {.uid = 65532}, CUDA_SUCCESS, CUDA_ERROR_MAP_FAILED);
}

CONFORMANCE_CASE(IpcEventNeedsOneDevShm, 30) {
  OpenAllAndExpect({}, {.private_dev_shm = true}, CUDA_SUCCESS, CUDA_ERROR_MAP_FAILED);
}

CONFORMANCE_CASE(VmmMemoryHasNoIpcHandle, 20) {
  Start([](Channel&) {
    UseContext();
    const UniqueFd fd = CreateDescriptor(kChunkBytes);
    const Mapped mapped = MapDescriptor(fd.get(), kChunkBytes);
    CUipcMemHandle handle{};
    ExpectAnswer(Cuda().cuIpcGetMemHandle(&handle, mapped.address()), CUDA_ERROR_INVALID_VALUE,
                 "cuIpcGetMemHandle of VMM memory");
  }).Join();
}

}  // namespace
}  // namespace gpushm::conformance
