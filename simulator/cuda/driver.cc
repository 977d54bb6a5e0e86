#include "simulator/cuda/driver.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace gpushm::sim {
namespace {

thread_local std::vector<Context*> current_contexts;

size_t ConnectionsFromEnvironment(bool mps) {
  constexpr long kMost = 32;
  const long unless_set = mps ? 2 : 8;
  const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const long wanted = text == nullptr ? unless_set : std::strtol(text, nullptr, 10);
  return static_cast<size_t>(wanted >= 1 && wanted <= kMost ? wanted : unless_set);
}

// As on the real driver: without a daemon, a process runs without MPS and is not told.
bool MpsDaemonListens() {
  const char* const folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = std::string(folder == nullptr ? "/tmp/nvidia-mps" : folder) + "/control";
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const bool listens =
      fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return listens;
}

CUresult Complain(const std::string& error) {
  std::fprintf(stderr, "gpushm simulated driver: %s\n", error.c_str());
  return CUDA_ERROR_SYSTEM_NOT_READY;
}

}  // namespace

CUresult ToResult(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return CUDA_SUCCESS;
    case Outcome::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Outcome::kNotFound:
      return CUDA_ERROR_INVALID_HANDLE;
    case Outcome::kForeign:
      return CUDA_ERROR_UNKNOWN;
    case Outcome::kSystem:
      break;
  }
  return CUDA_ERROR_OPERATING_SYSTEM;
}

Driver& Driver::Get() {
  static Driver* const driver = new Driver();
  return *driver;
}

CUresult Driver::Init() {
  const std::lock_guard lock(init_mutex_);
  if (phase_ == Phase::kForked) return CUDA_ERROR_NOT_INITIALIZED;
  return phase_ == Phase::kReady ? CUDA_SUCCESS : InitLocked();
}

CUresult Driver::InitLocked() {
  const std::string folder = StateFolder();
  std::string error;
  Machine machine;
  if (!LoadMachine(folder, &machine, &error)) return Complain(error);
  const std::vector<size_t> visible = VisibleToCuda(machine);
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  auto state = std::make_unique<State>(folder);
  if (!state->Prepare(&error) || !state->RegisterProcess(&error)) return Complain(error);
  machine_ = std::move(machine);
  for (const size_t index : visible) devices_.push_back(&machine_.cards[index]);
  mps_ = MpsDaemonListens();
  state_ = state.release();
  {
    const std::lock_guard lock(mutex);
    for (int device = 0; device < device_count(); ++device) {
      contexts.push_back(std::make_unique<Context>());
      contexts.back()->device = device;
    }
  }
  // A child of fork() has neither the driver's threads nor its mappings, so it must not continue.
  pthread_atfork(nullptr, nullptr, [] { Get().phase_ = Phase::kForked; });
  phase_ = Phase::kReady;
  Delay("init");
  return CUDA_SUCCESS;
}

CUresult Driver::Enter(const char* function) {
  if (phase_.load() != Phase::kReady) return CUDA_ERROR_NOT_INITIALIZED;
  const std::shared_ptr<const Faults> faults = CurrentFaults(state_->folder());
  for (const char* name : {function, "*"}) {
    const auto hang = faults->hang_ms.find(name);
    if (hang != faults->hang_ms.end()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(hang->second));
    }
  }
  if (!faults->lost.empty()) {
    for (const Card* card : devices_) {
      if (faults->IsLost(card->uuid_text, card->gpu_index)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
  }
  const auto result = faults->results.find(function);
  return result == faults->results.end() ? CUDA_SUCCESS : static_cast<CUresult>(result->second);
}

void Driver::Delay(const char* latency) const {
  const auto found = machine_.latency_us.find(latency);
  if (found == machine_.latency_us.end() || found->second == 0) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(found->second);
  // Sleeping is too coarse for a few microseconds.
  if (found->second > 200) std::this_thread::sleep_until(end);
  while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

int Driver::OrdinalOf(const UuidBytes& uuid) const {
  for (int device = 0; device < device_count(); ++device) {
    if (card(device)->uuid == uuid) return device;
  }
  return -1;
}

CUresult Driver::Current(Context** context, std::shared_ptr<Engine>* engine) {
  if (current_contexts.empty() || current_contexts.back() == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *context = current_contexts.back();
  const std::lock_guard lock(mutex);
  *engine = (*context)->engine;
  return *engine == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

Context* Driver::ContextOf(CUcontext handle) {
  const std::lock_guard lock(mutex);
  for (const auto& context : contexts) {
    if (reinterpret_cast<CUcontext>(context.get()) == handle) return context.get();
  }
  return nullptr;
}

bool Driver::AnyContextActive() {
  const std::lock_guard lock(mutex);
  for (const auto& context : contexts) {
    if (context->engine != nullptr) return true;
  }
  return false;
}

CUresult Driver::FindStream(CUstream handle, std::shared_ptr<Stream>* stream) {
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    Context* context = nullptr;
    std::shared_ptr<Engine> engine;
    const CUresult result = Current(&context, &engine);
    if (result == CUDA_SUCCESS) *stream = engine->null_stream();
    return result;
  }
  const std::lock_guard lock(mutex);
  const auto found = streams.find(handle);
  if (found == streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  *stream = found->second;
  return (*stream)->engine->stopped() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

// The context functions that change the thread-local stack are here, next to Current().

namespace {

void Deactivate(Driver& driver, Context& context) {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Backing> reserve;
  std::map<uint64_t, uint64_t> owned;
  {
    const std::lock_guard lock(driver.mutex);
    engine.swap(context.engine);
    reserve.swap(context.reserve);
    owned.swap(context.owned);
    context.ipc.clear();
    context.ipc_poisoned = false;
  }
  engine->Stop();
  for (const auto& [address, size] : owned) UnmapWhole(driver, address);
  driver.space().RemoveHostOf(context.device);
}

CUresult Activate(Driver& driver, Context& context) {
  driver.Delay("context");
  std::shared_ptr<Backing> reserve;
  const bool mps = driver.mps();
  const Outcome outcome =
      driver.state().Create(*driver.card(context.device), mps ? Kind::kMpsContext : Kind::kContext,
                            mps ? kMpsContextBytes : kContextBytes, 0, &reserve);
  if (outcome != Outcome::kOk) return ToResult(outcome);
  auto engine = std::make_shared<Engine>(context.device, ConnectionsFromEnvironment(driver.mps()));
  engine->MakeNullStream();
  const std::lock_guard lock(driver.mutex);
  context.engine = std::move(engine);
  context.reserve = std::move(reserve);
  return CUDA_SUCCESS;
}

std::mutex& ActivationMutex() {
  static std::mutex* const mutex = new std::mutex();
  return *mutex;
}

}  // namespace
}  // namespace gpushm::sim

using gpushm::sim::Call;
using gpushm::sim::Context;
using gpushm::sim::Driver;

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  return Call("cuDevicePrimaryCtxRetain", [&](Driver& driver) {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (driver.card(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    Context& context = *driver.contexts[static_cast<size_t>(dev)];
    const std::lock_guard activation(gpushm::sim::ActivationMutex());
    if (context.retains == 0) {
      const CUresult result = gpushm::sim::Activate(driver, context);
      if (result != CUDA_SUCCESS) return result;
    }
    ++context.retains;
    *pctx = reinterpret_cast<CUcontext>(&context);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
  return Call("cuDevicePrimaryCtxRelease", [&](Driver& driver) {
    if (driver.card(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    Context& context = *driver.contexts[static_cast<size_t>(dev)];
    const std::lock_guard activation(gpushm::sim::ActivationMutex());
    if (context.retains == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--context.retains == 0) gpushm::sim::Deactivate(driver, context);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
  return Call("cuCtxSetCurrent", [&](Driver& driver) {
    Context* const context = ctx == nullptr ? nullptr : driver.ContextOf(ctx);
    if (ctx != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    auto& stack = gpushm::sim::current_contexts;
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* pctx) {
  return Call("cuCtxGetCurrent", [&](Driver&) {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto& stack = gpushm::sim::current_contexts;
    *pctx = stack.empty() ? nullptr : reinterpret_cast<CUcontext>(stack.back());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx) {
  return Call("cuCtxPushCurrent", [&](Driver& driver) {
    Context* const context = driver.ContextOf(ctx);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    gpushm::sim::current_contexts.push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* pctx) {
  return Call("cuCtxPopCurrent", [&](Driver&) {
    auto& stack = gpushm::sim::current_contexts;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx != nullptr) *pctx = reinterpret_cast<CUcontext>(stack.back());
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}
