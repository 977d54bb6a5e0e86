#include "simulator/cuda/event.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <mutex>

#include "simulator/cuda/driver.h"

namespace gpushm::sim {
namespace {

constexpr char kFolder[] = "/dev/shm/";
constexpr size_t kFileBytes = 4096;
// How long a dead exporter's events can be opened (as on the real driver).
constexpr time_t kKeepSeconds = 600;

std::string NamePrefix() { return "gpushm-sim.event." + std::to_string(getuid()) + "."; }

std::string PathOf(int32_t pid, uint32_t number) {
  return kFolder + NamePrefix() + std::to_string(pid) + "." + std::to_string(number);
}

// Removes the files that killed processes of this user left.
void SweepOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    DIR* folder = opendir(kFolder);
    if (folder == nullptr) return;
    const std::string prefix = NamePrefix();
    while (const dirent* entry = readdir(folder)) {
      if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) != 0) continue;
      const int fd = openat(dirfd(folder), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
      struct stat status{};
      if (fd >= 0 && fstat(fd, &status) == 0 && status.st_mtime + kKeepSeconds < time(nullptr) &&
          flock(fd, LOCK_EX | LOCK_NB) == 0) {
        unlinkat(dirfd(folder), entry->d_name, 0);
      }
      if (fd >= 0) close(fd);
    }
    closedir(folder);
  });
}

void* MapWords(int fd) {
  return mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

std::shared_ptr<Event> FindEvent(Driver& driver, CUevent handle) {
  const std::lock_guard lock(driver.mutex);
  const auto found = driver.events.find(handle);
  return found == driver.events.end() ? nullptr : found->second;
}

CUresult AddEvent(Driver& driver, std::shared_ptr<Event> event, CUevent* handle) {
  const std::lock_guard lock(driver.mutex);
  *handle = driver.NewHandle<CUevent>();
  driver.events[*handle] = std::move(event);
  return CUDA_SUCCESS;
}

}  // namespace

SharedEvent::~SharedEvent() {
  if (words != nullptr) munmap(words, kFileBytes);
  if (!owned_path.empty()) unlink(owned_path.c_str());
  if (fd >= 0) close(fd);
}

std::shared_ptr<SharedEvent> SharedEvent::Create() {
  static std::atomic<uint32_t> next = 0;
  SweepOnce();
  auto event = std::make_shared<SharedEvent>();
  event->number = ++next;
  const std::string path = PathOf(getpid(), event->number);
  unlink(path.c_str());  // Left by an earlier process with this PID.
  event->fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (event->fd < 0) return nullptr;
  event->owned_path = path;
  flock(event->fd, LOCK_SH | LOCK_NB);
  if (ftruncate(event->fd, kFileBytes) != 0) return nullptr;
  void* const words = MapWords(event->fd);
  if (words == MAP_FAILED) return nullptr;
  event->words = static_cast<Words*>(words);
  return event;
}

std::shared_ptr<SharedEvent> SharedEvent::Open(int32_t pid, uint32_t number) {
  const int fd = open(PathOf(pid, number).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return nullptr;
  struct stat status{};
  const bool sound = fstat(fd, &status) == 0 && status.st_size == kFileBytes;
  void* const words = sound ? MapWords(fd) : MAP_FAILED;
  close(fd);
  if (words == MAP_FAILED) return nullptr;
  auto event = std::make_shared<SharedEvent>();
  event->words = static_cast<Words*>(words);
  return event;
}

}  // namespace gpushm::sim

using gpushm::sim::AddEvent;
using gpushm::sim::Call;
using gpushm::sim::CallWithContext;
using gpushm::sim::Context;
using gpushm::sim::Driver;
using gpushm::sim::Engine;
using gpushm::sim::Event;
using gpushm::sim::FindEvent;
using gpushm::sim::SharedEvent;
using gpushm::sim::Stream;

namespace {

struct IpcEvent {  // Inside CUipcEventHandle.
  uint64_t magic;
  int32_t pid;
  uint32_t number;
};
constexpr uint64_t kIpcEventMagic = 0x544E45564D495321;

}  // namespace

CUresult CUDAAPI cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  return CallWithContext(
      "cuEventCreate", [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
        const bool shared = (Flags & CU_EVENT_INTERPROCESS) != 0;
        if (phEvent == nullptr || Flags > 7 || (shared && (Flags & CU_EVENT_DISABLE_TIMING) == 0)) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        auto event = std::make_shared<Event>();
        event->flags = Flags;
        if (shared) event->shared = SharedEvent::Create();
        if (shared && event->shared == nullptr) return CUDA_ERROR_MAP_FAILED;
        return AddEvent(driver, std::move(event), phEvent);
      });
}

CUresult CUDAAPI cuEventDestroy(CUevent hEvent) {
  return Call("cuEventDestroy", [&](Driver& driver) {
    std::shared_ptr<Event> gone;  // Its file is removed after the lock is released.
    const std::lock_guard lock(driver.mutex);
    const auto found = driver.events.find(hEvent);
    if (found == driver.events.end()) return CUDA_ERROR_INVALID_HANDLE;
    gone = std::move(found->second);
    driver.events.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) {
  return CallWithContext(
      "cuEventRecord", [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
        const auto event = FindEvent(driver, hEvent);
        if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        std::shared_ptr<Stream> stream;
        const CUresult result = driver.FindStream(hStream, &stream);
        if (result != CUDA_SUCCESS) return result;
        if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        const auto shared = event->shared;
        const uint64_t number =
            shared ? shared->words->recorded.fetch_add(1, std::memory_order_acq_rel) + 1 : 0;
        auto operation = stream->engine->Submit(*stream, [shared, number](Engine&) {
          if (shared) shared->words->completed.store(number, std::memory_order_release);
          return CUDA_SUCCESS;
        });
        const std::lock_guard lock(driver.mutex);
        event->last = std::move(operation);
        event->engine = stream->engine;
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
  return Call("cuEventQuery", [&](Driver& driver) {
    const auto event = FindEvent(driver, hEvent);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (event->shared) return event->shared->Done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    const std::lock_guard lock(driver.mutex);
    if (event->last == nullptr) return CUDA_SUCCESS;
    if (event->engine->error() != CUDA_SUCCESS) return event->engine->error();
    const bool done = event->last->done.load(std::memory_order_acquire);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) {
  return CallWithContext(
      "cuEventSynchronize", [&](Driver& driver, Context&, const std::shared_ptr<Engine>& engine) {
        const auto event = FindEvent(driver, hEvent);
        if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (event->shared) {
          engine->Poll([&] { return event->shared->Done() || engine->error() != CUDA_SUCCESS; });
          return engine->error();
        }
        std::shared_ptr<gpushm::sim::Operation> last;
        std::shared_ptr<Engine> recorded_on;
        {
          const std::lock_guard lock(driver.mutex);
          last = event->last;
          recorded_on = event->engine;
        }
        return last == nullptr ? CUDA_SUCCESS : recorded_on->Wait(last);
      });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return CallWithContext(
      "cuStreamWaitEvent", [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
        const auto event = FindEvent(driver, hEvent);
        if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (Flags > 1) return CUDA_ERROR_INVALID_VALUE;
        std::shared_ptr<Stream> stream;
        const CUresult result = driver.FindStream(hStream, &stream);
        if (result != CUDA_SUCCESS) return result;
        if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (const auto shared = event->shared) {
          const uint64_t target = shared->words->recorded.load(std::memory_order_acquire);
          stream->engine->Submit(*stream, [shared, target](Engine& engine) {
            engine.Poll(
                [&] { return shared->words->completed.load(std::memory_order_acquire) >= target; });
            return CUDA_SUCCESS;
          });
          return CUDA_SUCCESS;
        }
        std::shared_ptr<gpushm::sim::Operation> last;
        {
          const std::lock_guard lock(driver.mutex);
          last = event->last;
        }
        if (last == nullptr) return CUDA_SUCCESS;
        stream->engine->Submit(*stream, [last](Engine& engine) {
          engine.Poll([&] { return last->done.load(std::memory_order_acquire); });
          return CUDA_SUCCESS;
        });
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
  return CallWithContext(
      "cuIpcGetEventHandle", [&](Driver& driver, Context& context, const std::shared_ptr<Engine>&) {
        if (context.ipc_poisoned) return CUDA_ERROR_INVALID_CONTEXT;
        const auto found = FindEvent(driver, event);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (pHandle == nullptr || found->shared == nullptr || found->shared->owned_path.empty()) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        std::memset(pHandle, 0, sizeof *pHandle);
        const IpcEvent content{kIpcEventMagic, getpid(), found->shared->number};
        std::memcpy(pHandle, &content, sizeof content);
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
  return CallWithContext("cuIpcOpenEventHandle",
                         [&](Driver& driver, Context& context, const std::shared_ptr<Engine>&) {
                           if (context.ipc_poisoned) return CUDA_ERROR_INVALID_CONTEXT;
                           IpcEvent content;
                           std::memcpy(&content, &handle, sizeof content);
                           if (phEvent == nullptr || content.magic != kIpcEventMagic)
                             return CUDA_ERROR_INVALID_VALUE;
                           if (content.pid == getpid()) {
                             context.ipc_poisoned = true;
                             return CUDA_ERROR_INVALID_CONTEXT;
                           }
                           auto event = std::make_shared<Event>();
                           event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
                           event->shared = SharedEvent::Open(content.pid, content.number);
                           if (event->shared == nullptr) return CUDA_ERROR_MAP_FAILED;
                           return AddEvent(driver, std::move(event), phEvent);
                         });
}
