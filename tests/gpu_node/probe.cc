// What a container does on its GPU, for the node's test: it computes, measures, takes memory,
// faults, and opens another one's memory.
//
// usage: gpushm-gpu-probe COMMAND ARGUMENT
//   serve SECONDS   launches an empty kernel after the other: "n", "p50_us", "p99_us"
//   spin SECONDS    keeps the GPU busy; says {"busy": true} once it does
//   limit HOW       takes 64 MiB at a time, by "malloc" or "create", until it cannot: "mib"
//   fault           lets a kernel write to address 0
//   export SOCKET   gives memory with 7 in it, and an event, to one import by CUDA IPC: reads 8
//   import SOCKET   reads 7 there, writes 8, and records the event
//   peer BUFFER     attaches it for all GPUs, and reads it in place on another one: "text" at its
//                   start, "way" (gpushm_peer_method), "device", "reader", "attach_us" (the median
//                   of attaches after the first), "bytes_per_second" (of copies there)
//
// It uses the GPU with the number in $GPUSHM_PROBE_GPU, or the first one.
// Each says one line of JSON on standard output; "error" names what the driver said. The simulated
// driver runs no kernels: there, serve and spin fill memory, and fault does nothing.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/bench/spin_kernel.h"

namespace gpushm {
namespace {

constexpr char kStoreModule[] = R"ptx(
.version 6.0
.target sm_50
.address_size 64
.visible .entry store(.param .u64 address) {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [address];
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
)ptx";

constexpr uint64_t kPieceBytes = uint64_t{64} << 20;
constexpr uint64_t kSpinNs = 200'000;
constexpr int kSpinsAtOnce = 50;
constexpr uint64_t kMostPieces = 64;
constexpr int kIpcTimeoutS = 20;
constexpr int kPeerRounds = 20;

[[noreturn]] void End(const std::string& line, int status = 0) {
  std::cout << line << "\n" << std::flush;
  _exit(status);  // A context after a fault need not end in order.
}

class Gpu {
 public:
  Gpu() : api_(*CudaApi::Load(DriverFolderFromEnvironment()).value()) {
    Must(api_.cuInit(0), "cuInit");
    const char* const number = std::getenv("GPUSHM_PROBE_GPU");
    const int device = number == nullptr ? 0 : std::atoi(number);
    Must(api_.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
    Must(api_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    Must(api_.cuMemAlloc(&scratch_, 4096), "cuMemAlloc");
    kernels_ = !api_.simulated();
    if (!kernels_) return;
    spin_ = Kernel(bench::kSpinModule, "spin");
    store_ = Kernel(kStoreModule, "store");
    Must(api_.cuDeviceGetAttribute(&processors_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
         "cuDeviceGetAttribute");
  }

  void Must(CUresult result, std::string_view call) const {
    if (result == CUDA_SUCCESS) return;
    End(Concat(R"({"error": ")", NameOf(result), R"(", "call": ")", call, "\"}"), 1);
  }
  std::string NameOf(CUresult result) const {
    const char* name = nullptr;
    return api_.cuGetErrorName(result, &name) == CUDA_SUCCESS ? name
                                                              : Concat(static_cast<int>(result));
  }

  CUfunction Kernel(const char* text, const char* name) const {
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    Must(api_.cuModuleLoadData(&module, text), "cuModuleLoadData");
    Must(api_.cuModuleGetFunction(&kernel, module, name), "cuModuleGetFunction");
    return kernel;
  }

  void Spin(uint64_t duration_ns, unsigned blocks) const {
    void* arguments[] = {&duration_ns};
    if (kernels_) {
      return Must(
          api_.cuLaunchKernel(spin_, blocks, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr),
          "cuLaunchKernel");
    }
    Must(api_.cuMemsetD32Async(scratch_, 1, 1, nullptr), "cuMemsetD32Async");
  }
  void Synchronize() const { Must(api_.cuCtxSynchronize(), "cuCtxSynchronize"); }

  void Serve(int64_t seconds) const {
    std::vector<int64_t> took_ns;
    const int64_t end_ns = MonotonicNs() + seconds * 1'000'000'000;
    do {
      const int64_t start_ns = MonotonicNs();
      Spin(0, 1);
      Synchronize();
      took_ns.push_back(MonotonicNs() - start_ns);
      usleep(200);  // sleep: the rhythm of a process that is not always busy.
    } while (MonotonicNs() < end_ns);
    std::ranges::sort(took_ns);
    const auto us = [&](size_t part) {
      return static_cast<double>(took_ns[took_ns.size() * part / 100]) / 1000;
    };
    End(Concat(R"({"n": )", took_ns.size(), R"(, "p50_us": )", us(50), R"(, "p99_us": )", us(99),
               "}"));
  }

  void KeepBusy(int64_t seconds) const {
    const int64_t end_ns = MonotonicNs() + seconds * 1'000'000'000;
    for (bool first = true; MonotonicNs() < end_ns; first = false) {
      for (int i = 0; i < kSpinsAtOnce; ++i) Spin(kSpinNs, static_cast<unsigned>(processors_));
      Synchronize();
      if (first) std::cout << "{\"busy\": true}\n" << std::flush;
    }
    End("{}");
  }

  void Limit(std::string_view how) const {
    CUresult result = CUDA_SUCCESS;
    uint64_t pieces = 0;
    while (result == CUDA_SUCCESS && pieces < kMostPieces) {
      CUdeviceptr address = 0;
      CUmemGenericAllocationHandle handle = 0;
      CUmemAllocationProp properties{};
      properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      result = how == "malloc" ? api_.cuMemAlloc(&address, kPieceBytes)
                               : api_.cuMemCreate(&handle, kPieceBytes, &properties, 0);
      if (result == CUDA_SUCCESS) ++pieces;
    }
    End(Concat(R"({"mib": )", pieces * (kPieceBytes >> 20), R"(, "refusal": ")", NameOf(result),
               "\"}"));
  }

  void Fault() const {
    if (!kernels_) End(R"({"simulated": true})");
    uint64_t nowhere = 0;
    void* arguments[] = {&nowhere};
    Must(api_.cuLaunchKernel(store_, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
         "cuLaunchKernel");
    Synchronize();
    End("{}");
  }

  struct Handles {
    CUipcMemHandle memory;
    CUipcEventHandle event;
  };

  void Export(int peer) const {
    CUevent event = nullptr;
    Handles handles{};
    uint32_t value = 0;
    Must(api_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS),
         "cuEventCreate");
    Must(api_.cuMemsetD32(scratch_, 7, 1), "cuMemsetD32");
    Synchronize();
    Must(api_.cuIpcGetMemHandle(&handles.memory, scratch_), "cuIpcGetMemHandle");
    Must(api_.cuIpcGetEventHandle(&handles.event, event), "cuIpcGetEventHandle");
    char done = 0;
    if (write(peer, &handles, sizeof handles) != sizeof handles || read(peer, &done, 1) != 1) {
      End(R"({"error": "the other process ended"})", 1);
    }
    Must(api_.cuEventSynchronize(event), "cuEventSynchronize");
    Must(api_.cuMemcpyDtoH(&value, scratch_, sizeof value), "cuMemcpyDtoH");
    End(Concat(R"({"read": )", value, "}"), value == 8 ? 0 : 1);
  }

  void Import(int peer) const {
    CUevent event = nullptr;
    CUdeviceptr address = 0;
    Handles handles{};
    uint32_t value = 0;
    if (read(peer, &handles, sizeof handles) != sizeof handles) {
      End(R"({"error": "the other process ended"})", 1);
    }
    Must(api_.cuIpcOpenMemHandle(&address, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
         "cuIpcOpenMemHandle");
    Must(api_.cuIpcOpenEventHandle(&event, handles.event), "cuIpcOpenEventHandle");
    Must(api_.cuMemcpyDtoH(&value, address, sizeof value), "cuMemcpyDtoH");
    Must(api_.cuMemsetD32Async(address, 8, 1, nullptr), "cuMemsetD32Async");
    Must(api_.cuEventRecord(event, nullptr), "cuEventRecord");
    Synchronize();
    if (write(peer, "x", 1) != 1) End(R"({"error": "the other process ended"})", 1);
    End(Concat(R"({"read": )", value, "}"), value == 7 ? 0 : 1);
  }

 private:
  const CudaApi& api_;
  CUcontext context_ = nullptr;
  CUdeviceptr scratch_ = 0;
  CUfunction spin_ = nullptr;
  CUfunction store_ = nullptr;
  int processors_ = 1;
  bool kernels_ = false;
};

// A connection to the other process, whichever comes first.
UniqueFd Meet(const char* path, bool listens) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::string(path).copy(address.sun_path, sizeof address.sun_path - 1);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  const Deadline end = Deadline::AfterMs(kIpcTimeoutS * 1000);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = kIpcTimeoutS, .tv_usec = 0};
  for (const int which : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    setsockopt(fd.get(), SOL_SOCKET, which, &limit, sizeof limit);
  }
  if (listens) {
    unlink(path);
    if (bind(fd.get(), to, sizeof address) != 0 || listen(fd.get(), 1) != 0) return {};
    return UniqueFd(accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  while (connect(fd.get(), to, sizeof address) != 0) {
    if (end.Passed()) return {};
    usleep(10'000);  // sleep: until the next try.
  }
  return fd;
}

// A function of the library that the container was given.
template <typename Function>
Function* Library(const char* name) {
  static void* const library = dlopen("libgpushm.so.0", RTLD_NOW);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function*>(found);
}

void ReadOnPeer(const char* buffer) {
  const auto check = [](gpushm_status status) {
    if (status == GPUSHM_OK) return;
    throw std::runtime_error(Library<decltype(gpushm_last_error)>("gpushm_last_error")()->text);
  };
  const Result<const CudaApi*> api = CudaApi::Load(DriverFolderFromEnvironment());
  if (!api) throw std::runtime_error(api.error().ToString());
  const CudaApi& cuda = **api;
  const auto devices = ListDevices(cuda);
  if (!devices) throw std::runtime_error(devices.error().ToString());
  gpushm_client* client = nullptr;
  gpushm_attachment* attachment = nullptr;
  gpushm_info info;
  GPUSHM_INIT(&info);
  check(Library<decltype(gpushm_open)>("gpushm_open")(nullptr, &client));
  check(Library<decltype(gpushm_lookup)>("gpushm_lookup")(client, buffer, &info));
  const uint32_t reader = info.gpu == 0 ? 1 : 0;
  gpushm_attach_options options;
  GPUSHM_INIT(&options);
  options.peer_devices = uint64_t{1} << reader;
  options.timeout_ms = GPUSHM_DEFAULT_TIMEOUT_MS;
  const auto detach = Library<decltype(gpushm_attachment_detach)>("gpushm_attachment_detach");
  std::vector<int64_t> took_ns;
  for (int i = 0; i <= kPeerRounds; ++i) {
    if (attachment != nullptr) check(detach(attachment, nullptr));
    const int64_t start_ns = MonotonicNs();
    check(Library<decltype(gpushm_attach)>("gpushm_attach")(client, buffer, &options, &attachment));
    if (i > 0) took_ns.push_back(MonotonicNs() - start_ns);
  }
  std::ranges::sort(took_ns);
  gpushm_attachment_info attached;
  GPUSHM_INIT(&attached);
  check(Library<decltype(gpushm_attachment_get_info)>("gpushm_attachment_get_info")(attachment,
                                                                                    &attached));
  CUcontext context = nullptr;
  std::array<char, 17> text{};
  const auto must = [](CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) throw std::runtime_error(Concat(call, ": result ", result));
  };
  must(cuda.cuDevicePrimaryCtxRetain(&context, devices->at(reader).device), "retain");
  must(cuda.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  const CUdeviceptr address =
      Library<decltype(gpushm_attachment_address)>("gpushm_attachment_address")(attachment);
  must(cuda.cuMemcpyDtoH(text.data(), address, text.size() - 1), "cuMemcpyDtoH");
  CUdeviceptr copy = 0;
  must(cuda.cuMemAlloc(&copy, attached.size_bytes), "cuMemAlloc");
  int64_t start_ns = 0;
  for (int i = 0; i <= kPeerRounds; ++i) {
    if (i == 1) start_ns = MonotonicNs();  // The first copy does not count.
    must(cuda.cuMemcpyDtoDAsync(copy, address, attached.size_bytes, nullptr), "cuMemcpyDtoDAsync");
    if (i == 0) must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  const double seconds = static_cast<double>(MonotonicNs() - start_ns) * 1e-9;
  const double bytes_per_second = kPeerRounds * static_cast<double>(attached.size_bytes) / seconds;
  End(Concat(R"({"text": ")", text.data(), R"(", "way": )", attached.peer_method, R"(, "device": )",
             attached.device, R"(, "reader": )", reader, R"(, "attach_us": )",
             took_ns[took_ns.size() / 2] / 1000, R"(, "bytes_per_second": )",
             static_cast<int64_t>(bytes_per_second), "}"));
}

int Run(std::string_view what, const char* argument) {
  if (what == "peer") ReadOnPeer(argument);
  UniqueFd peer;
  if (what == "export" || what == "import") {
    peer = Meet(argument, what == "export");
    if (!peer) End(R"({"error": "the other process did not come"})", 1);
  }
  const Gpu gpu;
  if (what == "serve") gpu.Serve(std::atol(argument));
  if (what == "spin") gpu.KeepBusy(std::atol(argument));
  if (what == "limit") gpu.Limit(argument);
  if (what == "fault") gpu.Fault();
  if (what == "export") gpu.Export(peer.get());
  if (what == "import") gpu.Import(peer.get());
  std::cerr << "gpushm-gpu-probe: see the head of tests/gpu_node/probe.cc\n";
  return 2;
}

}  // namespace
}  // namespace gpushm

int main(int argc, char** argv) try {
  return argc < 2 ? 2 : gpushm::Run(argv[1], argc > 2 ? argv[2] : "");
} catch (const std::exception& error) {
  std::cerr << "gpushm-gpu-probe: " << error.what() << "\n";
  return 1;
}
