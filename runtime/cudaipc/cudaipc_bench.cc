// What a getpid() costs with libgpushm-cudaipc.so, by who asks.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

namespace {

using Function = pid_t (*)();

void Repeat(benchmark::State& state, Function ask) {
  if (ask == nullptr) {
    state.SkipWithError("the module was not built: build the target all");
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize(ask());
}

Function In(const char* file, const char* name) {
  void* const module = dlopen((std::string(CALLERS "/") + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  return module != nullptr ? reinterpret_cast<Function>(dlsym(module, name)) : nullptr;
}

pid_t AskTheKernel() { return static_cast<pid_t>(syscall(SYS_getpid)); }
pid_t AskHere() {
  const pid_t pid = getpid();
  benchmark::ClobberMemory();  // Not a jump to getpid.
  return pid;
}

void BM_SystemCall(benchmark::State& state) { Repeat(state, AskTheKernel); }
void BM_Program(benchmark::State& state) { Repeat(state, AskHere); }
void BM_Library(benchmark::State& state) { Repeat(state, In("plain.so", "AskElsewhere")); }
void BM_Driver(benchmark::State& state) { Repeat(state, In("libcuda.so.1", "Ask")); }
void BM_Runtime(benchmark::State& state) { Repeat(state, In("runtime.so", "Ask")); }
BENCHMARK(BM_SystemCall);
BENCHMARK(BM_Program);
BENCHMARK(BM_Library);
BENCHMARK(BM_Driver);
BENCHMARK(BM_Runtime);

}  // namespace

BENCHMARK_MAIN();
