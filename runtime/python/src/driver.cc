#include "driver.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

namespace gpushm::python {
namespace {

// As cuda.h has them; the driver keeps these interfaces for good.
using Device = int;
using Context = void*;
using Event = void*;
constexpr int kSuccess = 0;
constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr int kDeviceOrdinal = 9;       // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kCaptureModeRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr size_t kNameBytes = 256;

struct Location {
  int type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int device;
};

// CUmemAllocationProp.
struct AllocationProperties {
  int type = 1;          // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
  Location location;
  void* win32 = nullptr;
  uint64_t flags = 0;
};

// CUmemAccessDesc.
struct AccessTo {
  Location location;
  int access = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};

struct Driver {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*error_name)(int, const char**);
  int (*device_count)(int*);
  int (*device_name)(char*, int, Device);
  int (*device_get)(Device*, int);
  int (*device_uuid)(void*, Device);
  int (*context_current)(Context*);
  int (*context_push)(Context);
  int (*context_pop)(Context*);
  int (*primary_retain)(Context*, Device);
  int (*pointer_attribute)(void*, int, uint64_t);
  int (*stream_create)(Stream*, unsigned);
  int (*stream_synchronize)(Stream);
  int (*stream_wait_event)(Stream, Event, unsigned);
  int (*event_create)(Event*, unsigned);
  int (*event_record)(Event, Stream);
  int (*event_destroy)(Event);
  int (*context_synchronize)();
  int (*memory_granularity)(size_t*, const AllocationProperties*, int);
  int (*memory_create)(uint64_t*, size_t, const AllocationProperties*, uint64_t);
  int (*memory_release)(uint64_t);
  int (*address_reserve)(uint64_t*, size_t, size_t, uint64_t, uint64_t);
  int (*address_free)(uint64_t, size_t);
  int (*memory_map)(uint64_t, size_t, size_t, uint64_t, uint64_t);
  int (*memory_unmap)(uint64_t, size_t);
  int (*memory_set_access)(uint64_t, size_t, const AccessTo*, size_t);
  int (*copy_to_host)(void*, uint64_t, size_t, Stream);
  int (*copy_to_device)(uint64_t, const void*, size_t, Stream);
  int (*copy_on_device)(uint64_t, uint64_t, size_t, Stream);
};

std::string& Folder() {
  static std::string folder;
  return folder;
}

void Must(const Driver& driver, int result, const char* what) {
  if (result == kSuccess) return;
  const char* name = nullptr;
  if (driver.error_name(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  throw DriverError(std::string(what) + ": " + name);
}

Driver Open() {
  std::string file = Folder();
  if (file.empty()) {
    if (const char* folder = std::getenv("GPUSHM_DRIVER")) file = folder;
  }
  file += file.empty() ? "libcuda.so.1" : "/libcuda.so.1";
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw DriverError(std::string("no CUDA driver: ") + dlerror());
  Driver driver;
  const auto find = [&](const char* name, auto* function) {
    void* const symbol = dlsym(handle, name);
    if (symbol == nullptr) throw DriverError(file + " lacks " + name);
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
  };
  find("cuInit", &driver.init);
  find("cuDriverGetVersion", &driver.version);
  find("cuGetErrorName", &driver.error_name);
  find("cuDeviceGetCount", &driver.device_count);
  find("cuDeviceGetName", &driver.device_name);
  find("cuDeviceGet", &driver.device_get);
  find("cuDeviceGetUuid_v2", &driver.device_uuid);
  find("cuCtxGetCurrent", &driver.context_current);
  find("cuCtxPushCurrent_v2", &driver.context_push);
  find("cuCtxPopCurrent_v2", &driver.context_pop);
  find("cuDevicePrimaryCtxRetain", &driver.primary_retain);
  find("cuPointerGetAttribute", &driver.pointer_attribute);
  find("cuStreamCreate", &driver.stream_create);
  find("cuStreamSynchronize", &driver.stream_synchronize);
  find("cuStreamWaitEvent", &driver.stream_wait_event);
  find("cuEventCreate", &driver.event_create);
  find("cuEventRecord", &driver.event_record);
  find("cuEventDestroy_v2", &driver.event_destroy);
  find("cuCtxSynchronize", &driver.context_synchronize);
  find("cuMemGetAllocationGranularity", &driver.memory_granularity);
  find("cuMemCreate", &driver.memory_create);
  find("cuMemRelease", &driver.memory_release);
  find("cuMemAddressReserve", &driver.address_reserve);
  find("cuMemAddressFree", &driver.address_free);
  find("cuMemMap", &driver.memory_map);
  find("cuMemUnmap", &driver.memory_unmap);
  find("cuMemSetAccess", &driver.memory_set_access);
  find("cuMemcpyDtoHAsync_v2", &driver.copy_to_host);
  find("cuMemcpyHtoDAsync_v2", &driver.copy_to_device);
  find("cuMemcpyDtoDAsync_v2", &driver.copy_on_device);
  Must(driver, driver.init(0), "cuInit");
  return driver;
}

const Driver& Cuda() {
  static const Driver driver = Open();
  return driver;
}

struct Primary {
  Context context = nullptr;
  Stream stream = nullptr;  // For copies, so that they synchronise with nothing else.
};

// Never destroyed: the driver may be gone when static objects are.
Primary PrimaryOf(int device) {
  static auto& mutex = *new std::mutex;
  static auto& contexts = *new std::map<int, Primary>;
  const std::lock_guard lock(mutex);
  Primary& primary = contexts[device];
  if (primary.stream != nullptr) return primary;
  const Driver& cuda = Cuda();
  if (primary.context == nullptr) {
    Device handle = 0;
    Must(cuda, cuda.device_get(&handle, device), "cuDeviceGet");
    Must(cuda, cuda.primary_retain(&primary.context, handle), "cuDevicePrimaryCtxRetain");
  }
  Must(cuda, cuda.context_push(primary.context), "cuCtxPushCurrent");
  const int result = cuda.stream_create(&primary.stream, kNonBlocking);
  Context popped = nullptr;
  cuda.context_pop(&popped);
  Must(cuda, result, "cuStreamCreate");
  return primary;
}

// The device's primary context, current while this lives.
class PrimaryContext {
 public:
  explicit PrimaryContext(int device) : primary_(PrimaryOf(device)) {
    Must(Cuda(), Cuda().context_push(primary_.context), "cuCtxPushCurrent");
  }
  ~PrimaryContext() {
    Context popped = nullptr;
    Cuda().context_pop(&popped);
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  Stream stream() const { return primary_.stream; }

 private:
  const Primary primary_;
};

void Order(const Driver& cuda, Stream stream, Stream first) {
  Event event = nullptr;
  Must(cuda, cuda.event_create(&event, kDisableTiming), "cuEventCreate");
  int result = cuda.event_record(event, first);
  if (result == kSuccess) result = cuda.stream_wait_event(stream, event, 0);
  cuda.event_destroy(event);  // The driver keeps it until the wait is over.
  Must(cuda, result, "order between two streams");
}

}  // namespace

void SetDriverFolder(const std::string& folder) { Folder() = folder; }

int DriverVersion() {
  int version = 0;
  Must(Cuda(), Cuda().version(&version), "cuDriverGetVersion");
  return version;
}

int DeviceCount() {
  int count = 0;
  Must(Cuda(), Cuda().device_count(&count), "cuDeviceGetCount");
  return count;
}

int DeviceWithUuid(const uint8_t (&uuid)[kUuidBytes]) {
  for (int device = 0; device < DeviceCount(); ++device) {
    Device handle = 0;
    uint8_t found[kUuidBytes];
    Must(Cuda(), Cuda().device_get(&handle, device), "cuDeviceGet");
    Must(Cuda(), Cuda().device_uuid(found, handle), "cuDeviceGetUuid");
    if (std::equal(std::begin(found), std::end(found), std::begin(uuid))) return device;
  }
  return -1;
}

std::string DeviceName(int device) {
  std::array<char, kNameBytes> name{};
  Device handle = 0;
  Must(Cuda(), Cuda().device_get(&handle, device), "cuDeviceGet");
  Must(Cuda(), Cuda().device_name(name.data(), static_cast<int>(name.size()), handle),
       "cuDeviceGetName");
  return name.data();
}

int DeviceOf(uint64_t address) {
  int device = 0;
  return Cuda().pointer_attribute(&device, kDeviceOrdinal, address) == kSuccess ? device : 0;
}

namespace {

using ExchangeMode = int (*)(int*);

int HasNoModes(int* /*mode*/) { return kSuccess; }

// How many objects the process has loaded so far.
uint64_t Loads() {
  uint64_t loads = 0;
  const auto read = [](dl_phdr_info* info, size_t, void* user) {
    *static_cast<uint64_t*>(user) = info->dlpi_adds;
    return 1;
  };
  dl_iterate_phdr(read, &loads);
  return loads;
}

// cuThreadExchangeStreamCaptureMode. A process that has not loaded the driver captures nothing, and
// this does not load it.
ExchangeMode ExchangeCaptureMode() {
  static std::atomic<ExchangeMode> found{nullptr};
  static std::atomic<uint64_t> looked_at{0};
  if (const ExchangeMode known = found.load(std::memory_order_relaxed)) return known;
  const uint64_t loads = Loads();
  if (looked_at.load(std::memory_order_relaxed) == loads) return &HasNoModes;
  void* const handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) {
    looked_at.store(loads, std::memory_order_relaxed);
    return &HasNoModes;
  }
  void* const symbol = dlsym(handle, "cuThreadExchangeStreamCaptureMode");
  const ExchangeMode exchange =  // The simulated driver has none.
      symbol == nullptr ? &HasNoModes : reinterpret_cast<ExchangeMode>(symbol);
  found.store(exchange, std::memory_order_relaxed);
  return exchange;
}

}  // namespace

BesideCaptures::BesideCaptures() noexcept : mode_(kCaptureModeRelaxed) {
  ExchangeCaptureMode()(&mode_);
}

BesideCaptures::~BesideCaptures() { ExchangeCaptureMode()(&mode_); }

CurrentContext::CurrentContext(int device) {
  Context current = nullptr;
  if (device < 0 || (Cuda().context_current(&current) == kSuccess && current != nullptr)) return;
  Must(Cuda(), Cuda().context_push(PrimaryOf(device).context), "cuCtxPushCurrent");
  pushed_ = true;
}

CurrentContext::~CurrentContext() {
  Context popped = nullptr;
  if (pushed_) Cuda().context_pop(&popped);
}

namespace {

size_t RoundUp(const AllocationProperties& properties, size_t bytes) {
  size_t unit = 0;
  Must(Cuda(), Cuda().memory_granularity(&unit, &properties, 0), "cuMemGetAllocationGranularity");
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

uint64_t CreateShareable(int device, size_t bytes) {
  const PrimaryContext context(device);
  const Driver& cuda = Cuda();
  const AllocationProperties properties{.location = {.device = device}};
  const size_t size = RoundUp(properties, bytes);
  uint64_t address = 0;
  uint64_t memory = 0;
  Must(cuda, cuda.memory_create(&memory, size, &properties, 0), "cuMemCreate");
  int result = cuda.address_reserve(&address, size, 0, 0, 0);
  if (result == kSuccess) result = cuda.memory_map(address, size, 0, memory, 0);
  const AccessTo access{.location = properties.location};
  if (result == kSuccess) result = cuda.memory_set_access(address, size, &access, 1);
  cuda.memory_release(memory);  // The mapping keeps it.
  if (result != kSuccess && address != 0) {
    cuda.memory_unmap(address, size);  // Fails if it is not mapped.
    cuda.address_free(address, size);
  }
  Must(cuda, result, "map new memory");
  return address;
}

void FreeShareable(int device, uint64_t address, size_t bytes) {
  const PrimaryContext context(device);
  const Driver& cuda = Cuda();
  const size_t size = RoundUp({.location = {.device = device}}, bytes);
  cuda.context_synchronize();
  Must(cuda, cuda.memory_unmap(address, size), "cuMemUnmap");
  Must(cuda, cuda.address_free(address, size), "cuMemAddressFree");
}

void CopyToHost(int device, void* target, uint64_t source, size_t bytes, Stream after) {
  const PrimaryContext context(device);
  if (after != nullptr) Order(Cuda(), context.stream(), after);
  Must(Cuda(), Cuda().copy_to_host(target, source, bytes, context.stream()), "copy to the host");
  Must(Cuda(), Cuda().stream_synchronize(context.stream()), "copy to the host");
}

void CopyToDevice(int device, uint64_t target, const void* source, size_t bytes, Stream after) {
  const PrimaryContext context(device);
  if (after != nullptr) Order(Cuda(), context.stream(), after);
  Must(Cuda(), Cuda().copy_to_device(target, source, bytes, context.stream()),
       "copy from the host");
  Must(Cuda(), Cuda().stream_synchronize(context.stream()), "copy from the host");
}

void CopyOnDevice(int device, uint64_t target, uint64_t source, size_t bytes, Stream stream) {
  const PrimaryContext context(device);
  Must(Cuda(), Cuda().copy_on_device(target, source, bytes, stream), "copy on the device");
}

void Synchronize(int device, Stream stream) {
  const PrimaryContext context(device);
  Must(Cuda(), Cuda().stream_synchronize(stream), "cuStreamSynchronize");
}

void OrderAfter(int device, Stream stream, Stream first) {
  const PrimaryContext context(device);
  Order(Cuda(), stream, first);
}

}  // namespace gpushm::python
