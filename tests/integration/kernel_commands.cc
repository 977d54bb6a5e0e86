#include "tests/integration/kernel_commands.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "runtime/include/gpushm/sync.h"

namespace gpushm::integration {
namespace {

// A function of the loaded driver. The library itself does not use these functions.
template <typename Function>
Function* Find(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(driver, name));
}
#define FIND(name) Find<decltype(name)>(#name)

}  // namespace

bool KernelCommands::Load() {
  if (module_ != nullptr) return true;
  const auto path = std::filesystem::canonical("/proc/self/exe").replace_filename(kKernelsFile);
  std::ifstream file(path);
  program_.assign(std::istreambuf_iterator<char>(file), {});
  return api_.cuModuleLoadData(&module_, program_.c_str()) == CUDA_SUCCESS;
}

CUresult KernelCommands::Launch(const std::string& name, CUstream stream,
                                std::vector<void*> arguments) {
  // A kernel of the header is a template in a namespace, so its name in the module is longer.
  const std::regex entry("\\.entry (\\w*" + name + "\\w*)\\(");
  std::smatch match;
  if (!std::regex_search(program_, match, entry)) return CUDA_ERROR_NOT_FOUND;
  CUfunction function = nullptr;
  const CUresult found = api_.cuModuleGetFunction(&function, module_, match[1].str().c_str());
  if (found != CUDA_SUCCESS) return found;
  return api_.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.data(), nullptr);
}

template <typename Capture>
CUresult KernelCommands::Repeat(CUstream stream, int times, Capture capture) {
  CUgraph graph = nullptr;
  CUgraphExec runnable = nullptr;
  CUresult result = api_.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  if (result == CUDA_SUCCESS) result = capture();
  const CUresult ended = api_.cuStreamEndCapture(stream, &graph);
  if (result == CUDA_SUCCESS) result = ended;
  if (result == CUDA_SUCCESS) result = api_.cuGraphInstantiateWithFlags(&runnable, graph, 0);
  for (int i = 0; result == CUDA_SUCCESS && i < times; ++i) {
    result = api_.cuGraphLaunch(runnable, stream);
  }
  return result;
}

CUresult KernelCommands::RepeatNode(CUstream stream, int times,
                                    CUstreamBatchMemOpParams operation) {
  const auto create = FIND(cuGraphCreate);
  const auto add = FIND(cuGraphAddBatchMemOpNode);
  const auto change = FIND(cuGraphExecBatchMemOpNodeSetParams);
  if (create == nullptr || add == nullptr || change == nullptr) return CUDA_ERROR_NOT_FOUND;
  CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{};
  parameters.count = 1;
  parameters.paramArray = &operation;
  CUgraph graph = nullptr;
  CUgraphExec runnable = nullptr;
  CUgraphNode node = nullptr;
  CUresult result = api_.cuCtxGetCurrent(&parameters.ctx);
  if (result == CUDA_SUCCESS) result = create(&graph, 0);
  if (result == CUDA_SUCCESS) result = add(&node, graph, nullptr, 0, &parameters);
  if (result == CUDA_SUCCESS) result = api_.cuGraphInstantiateWithFlags(&runnable, graph, 0);
  for (int i = 0; result == CUDA_SUCCESS && i < times; ++i, ++operation.writeValue.value64) {
    result = change(runnable, node, &parameters);
    if (result == CUDA_SUCCESS) result = api_.cuGraphLaunch(runnable, stream);
  }
  return result;
}

Answer KernelCommands::Do(std::istringstream& in) {
  if (!Load()) return {GPUSHM_UNSUPPORTED, 0};
  std::string verb;
  int number = 0;
  uint64_t value = 0;
  uint64_t third = 0;
  in >> verb >> number >> value >> third;
  uint64_t address = 0;
  const gpushm_status known = gpushm_signal_device_address(signals_.signal(), &address);
  if (known != GPUSHM_OK) return {known, 0};
  const CUstream stream = signals_.StreamOf(number);
  if (verb == "set") return {Launch("set_signal", stream, {&address, &value}), 0};
  if (verb == "store" || verb == "reach") {
    CUstreamBatchMemOpParams operation{};
    operation.writeValue.operation =
        verb == "store" ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_64;
    operation.writeValue.address = address;
    operation.writeValue.value64 = value;
    operation.writeValue.flags = verb == "store"
                                     ? static_cast<unsigned>(CU_STREAM_WRITE_VALUE_DEFAULT)
                                     : static_cast<unsigned>(CU_STREAM_WAIT_VALUE_GEQ);
    return {RepeatNode(stream, static_cast<int>(third), operation), 0};
  }
  return {Repeat(stream, static_cast<int>(value),
                 [&] { return Launch("AdvanceSignal", stream, {&address}); }),
          0};
}

}  // namespace gpushm::integration
