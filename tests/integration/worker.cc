// The implementation of a worker's commands; see processes.h.
#include <cuda.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>

#include "platform/driver/device.h"
#include "tests/integration/barrier_commands.h"
#include "tests/integration/kernel_commands.h"
#include "tests/integration/processes.h"
#include "tests/integration/ring_commands.h"
#include "tests/integration/signal_commands.h"
#include "tests/integration/waiter_commands.h"

namespace gpushm::integration {
namespace {

constexpr int kChannel = 3;

class Application {
 public:
  Application(const std::string& folder, const std::string& pod_uid) {
    auto options = Sized<gpushm_open_options>();
    options.folder = folder.c_str();
    options.pod_uid = pod_uid.empty() ? nullptr : pod_uid.c_str();
    if (!pod_uid.empty()) options.timeout_ms = 1000;  // The other pod is already there.
    opened_ = gpushm_open(&options, &client_);
    api_ = *CudaApi::Load(DriverFolderFromEnvironment());
    signals_.emplace(client_, *api_);
    barriers_.emplace(client_, *signals_);
    rings_.emplace(client_, *api_);
    kernels_.emplace(*signals_, *api_);
    waiter_.emplace(client_, &*rings_, &*signals_);
  }

  Answer Do(const std::string& line) {
    if (opened_ != GPUSHM_OK) return {opened_, 0};
    std::istringstream in(line);
    std::string verb;
    std::string name;
    in >> verb;
    if (verb == "attach") return Attach(in);
    if (verb == "write") return Write(in);
    if (verb == "read") return Read(0);
    if (verb == "read-last") return Read(gpushm_attachment_size(latest_) - sizeof(uint32_t));
    if (verb == "offered-blocks") return {0, blocks_offered_};
    if (verb == "offered-bytes") return {0, static_cast<int64_t>(bytes_offered_)};
    if (verb == "same") return Same();
    if (verb == "read-on") return ReadOn(in);
    if (verb == "peer-way") return PeerWay();
    if (verb == "context") return NeedContext();
    if (verb == "publish") return {gpushm_attachment_publish(latest_), 0};
    if (verb == "current") return {gpushm_attachment_check(latest_), 0};
    if (verb == "lease") return Lease();
    if (verb == "address") {
      return {0, static_cast<int64_t>(gpushm_attachment_address(latest_))};
    }
    if (verb == "advance") return Advance(in);
    if (verb == "graph") return Graph(in);
    if (verb == "detach")
      return {gpushm_attachment_detach(std::exchange(latest_, nullptr), nullptr), 0};
    if (verb == "barrier") {
      NeedContext();
      return barriers_->Do(in);
    }
    if (verb == "ring") {
      NeedContext();
      return rings_->Do(in);
    }
    if (verb == "waiter") return waiter_->Do(in);
    if (verb == "kernel") {
      NeedContext();
      return kernels_->Do(in);
    }
    if (verb == "signal") {
      NeedContext();
      return signals_->Do(in, latest_);
    }
    in >> name;
    if (verb == "load-attached") {
      auto result = Sized<gpushm_transfer_result>();
      const int status = gpushm_attachment_load(latest_, name.c_str(), nullptr, &result);
      return {status, static_cast<int64_t>(result.bytes)};
    }
    if (verb == "delete") return {gpushm_delete(client_, name.c_str(), nullptr), 0};
    if (verb == "offer") return Offer(name, in);
    if (verb == "offer-state") {
      auto info = Sized<gpushm_offer_info>();
      const int status = gpushm_offer_state(client_, name.c_str(), offered_, &info);
      return {status, info.unused == 1 ? 100 : static_cast<int64_t>(info.users)};
    }
    if (verb == "wait") {
      uint64_t generation = 0;
      in >> generation;
      auto info = Sized<gpushm_info>();
      const int status = gpushm_wait(client_, name.c_str(), generation, nullptr, &info);
      return {status, static_cast<int64_t>(info.generation)};
    }
    if (verb == "holder-way") {
      auto last = std::vector<gpushm_holder>(16, Sized<gpushm_holder>());
      size_t count = 0;
      const int status =
          gpushm_list_holders(client_, name.c_str(), last.data(), last.size(), &count);
      if (status != GPUSHM_OK || count == 0) return {status, -1};
      return {status, last[count - 1].peer_method};
    }
    if (verb == "holders") {
      size_t count = 0;
      const int status = gpushm_list_holders(client_, name.c_str(), nullptr, 0, &count);
      return {status, static_cast<int64_t>(count)};
    }
    if (verb == "load" || verb == "save") {
      std::string path;
      in >> path;
      auto result = Sized<gpushm_transfer_result>();
      const auto move = verb == "load" ? gpushm_load : gpushm_save;
      const int status = move(client_, name.c_str(), path.c_str(), nullptr, &result);
      return {status, static_cast<int64_t>(result.bytes)};
    }
    return Make(verb, name, in);
  }

 private:
  Answer Lease() {
    auto info = Sized<gpushm_attachment_info>();
    const int status = gpushm_attachment_get_info(latest_, &info);
    return {status, static_cast<int64_t>(info.lease_id)};
  }
  Answer Advance(std::istringstream& in) {
    auto options = Sized<gpushm_advance_options>();
    int number = -1;
    in >> options.generation >> number >> options.timeout_ms;
    if (number >= 0) NeedContext();
    void* const stream = number < 0 ? nullptr : signals_->StreamOf(number);
    options.streams = &stream;
    options.stream_count = number < 0 ? 0 : 1;
    const int status = gpushm_attachment_advance(latest_, &options);
    if (status != GPUSHM_OK) std::fprintf(stderr, "worker: %s\n", gpushm_last_error()->text);
    auto info = Sized<gpushm_attachment_info>();
    gpushm_attachment_get_info(latest_, &info);
    return {status, static_cast<int64_t>(info.generation)};
  }
  Answer Graph(std::istringstream& in) {
    NeedContext();
    std::string verb;
    in >> verb;
    const CUstream stream = signals_->StreamOf(63);
    if (verb == "capture") {
      if (word_ == nullptr)
        api_->cuMemHostAlloc(reinterpret_cast<void**>(&word_), sizeof *word_, 0);
      CUgraph graph = nullptr;
      CUresult done = api_->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
      if (done == CUDA_SUCCESS) {
        done = api_->cuMemcpyDtoHAsync(word_, gpushm_attachment_address(latest_), sizeof *word_,
                                       stream);
      }
      const CUresult ended = api_->cuStreamEndCapture(stream, &graph);
      if (done != CUDA_SUCCESS || ended != CUDA_SUCCESS) return {1, 0};
      return {api_->cuGraphInstantiateWithFlags(&graph_, graph, 0) == CUDA_SUCCESS ? 0 : 1, 0};
    }
    *word_ = 0;
    CUresult done = api_->cuGraphLaunch(graph_, stream);
    if (done == CUDA_SUCCESS) done = api_->cuStreamSynchronize(stream);
    return {done == CUDA_SUCCESS ? 0 : 1, *word_};
  }
  Answer Attached(int status) {
    if (status != GPUSHM_OK) {
      std::fprintf(stderr, "worker: %s\n", gpushm_last_error()->text);
      return {status, 0};
    }
    auto info = Sized<gpushm_attachment_info>();
    gpushm_attachment_get_info(latest_, &info);
    return {status, static_cast<int64_t>(info.generation)};
  }

  Answer Attach(std::istringstream& in) {
    std::string name;
    std::string access;
    auto options = Sized<gpushm_attach_options>();
    in >> name >> access >> options.timeout_ms >> options.peer_devices >> options.stage;
    options.access = access == "w" ? GPUSHM_ACCESS_READ_WRITE : GPUSHM_ACCESS_READ;
    return Attached(gpushm_attach(client_, name.c_str(), &options, &latest_));
  }

  Answer Make(const std::string& verb, const std::string& name, std::istringstream& in) {
    uint64_t size_bytes = 0;
    in >> size_bytes;
    auto options = Sized<gpushm_create_options>();
    options.unpublished = verb.ends_with("-unpublished") ? 1 : 0;
    const auto make = verb.starts_with("replace") ? gpushm_replace : gpushm_create;
    return Attached(make(client_, name.c_str(), size_bytes, &options, &latest_));
  }

  Answer NeedContext() {
    (void)api_->Init();
    if (!context_) context_.emplace(*PrimaryContext::Retain(*api_, 0));
    return {context_->MakeCurrent() ? 0 : 1, 0};
  }

  Answer Write(std::istringstream& in) {
    NeedContext();
    uint32_t word = 0;
    in >> word;
    const CUresult set = api_->cuMemsetD32(gpushm_attachment_address(latest_), word, 1);
    return {set == CUDA_SUCCESS && api_->cuCtxSynchronize() == CUDA_SUCCESS ? 0 : 1, 0};
  }

  Answer Read(uint64_t offset) {
    NeedContext();
    uint32_t word = 0;
    const CUresult got =
        api_->cuMemcpyDtoH(&word, gpushm_attachment_address(latest_) + offset, sizeof word);
    return {got == CUDA_SUCCESS ? 0 : 1, word};
  }

  Answer Same() {
    NeedContext();
    std::vector<unsigned char> bytes(gpushm_attachment_size(latest_));
    const CUresult got =
        api_->cuMemcpyDtoH(bytes.data(), gpushm_attachment_address(latest_), bytes.size());
    if (got != CUDA_SUCCESS || bytes.empty()) return {1, 0};
    const bool same =
        std::all_of(bytes.begin(), bytes.end(), [&](auto byte) { return byte == bytes[0]; });
    return {0, same ? bytes[0] : -1};
  }

  // Reads on another GPU than the first.
  Answer ReadOn(std::istringstream& in) {
    int device = 0;
    in >> device;
    const auto context = PrimaryContext::Retain(*api_, device);
    if (!context || !context->MakeCurrent()) return {1, 0};
    uint32_t word = 0;
    const CUresult got = api_->cuMemcpyDtoH(&word, gpushm_attachment_address(latest_), sizeof word);
    api_->cuCtxSetCurrent(nullptr);
    return {got == CUDA_SUCCESS ? 0 : 1, word};
  }

  Answer PeerWay() {
    auto info = Sized<gpushm_attachment_info>();
    const int status = gpushm_attachment_get_info(latest_, &info);
    return {status, info.peer_method};
  }

  Answer Offer(const std::string& name, std::istringstream& in) {
    NeedContext();
    uint64_t size_bytes = 0;
    uint32_t word = 0;
    std::string kind;
    in >> size_bytes >> word >> kind;
    const CUdeviceptr address = Allocate(kind, size_bytes);
    api_->cuMemsetD32(address, word, 1);
    api_->cuMemsetD32(address + size_bytes - sizeof word, word + 1, 1);
    api_->cuCtxSynchronize();
    auto options = Sized<gpushm_offer_options>();
    options.allow_copy = kind == "copy" ? 1 : 0;
    auto result = Sized<gpushm_offer_result>();
    const int status = gpushm_offer(client_, name.c_str(), address, size_bytes, &options, &result);
    offered_ = result.generation;
    blocks_offered_ = result.allocations;
    bytes_offered_ = result.mapped_bytes;
    if (status != GPUSHM_OK) std::fprintf(stderr, "worker: %s\n", gpushm_last_error()->text);
    return {status, result.copied != 0 ? 100 : static_cast<int64_t>(result.transport)};
  }

  CUdeviceptr Allocate(const std::string& kind, uint64_t size_bytes) {
    CUdeviceptr address = 0;
    if (kind == "malloc") {
      api_->cuMemAlloc_v2(&address, size_bytes);
      return address;
    }
    if (kind == "vmm") {
      memory_.emplace(*DeviceMemory::Create(*api_, 0, size_bytes));
      mapping_.emplace(*DeviceMapping::Map(*api_, *memory_, size_bytes, 0, Access::kReadWrite));
      return mapping_->address();
    }
    // As torch does with expandable segments: blocks side by side, and ranges anywhere in them.
    if (kind == "blocks") {
      std::vector<DeviceMapping::Block> blocks;
      constexpr uint64_t kBytes = 2 << 20;
      for (uint64_t covered = 0; covered < kBlockOffset + size_bytes; covered += kBytes) {
        blocks.push_back({*DeviceMemory::Create(*api_, 0, kBytes), kBytes});
      }
      mapping_.emplace(*DeviceMapping::Map(*api_, blocks, 0, Access::kReadWrite));
      return mapping_->address() + kBlockOffset;
    }
    // Memory of a kind that no other process can map.
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    api_->cuMemCreate(&handle, size_bytes, &properties, 0);
    api_->cuMemAddressReserve(&address, size_bytes, 0, 0, 0);
    api_->cuMemMap(address, size_bytes, 0, handle, 0);
    api_->cuMemSetAccess(address, size_bytes, &access, 1);
    return address;
  }

  int opened_ = GPUSHM_OK;
  gpushm_client* client_ = nullptr;
  const CudaApi* api_ = nullptr;
  std::optional<PrimaryContext> context_;
  std::optional<DeviceMemory> memory_;
  std::optional<DeviceMapping> mapping_;
  static constexpr uint64_t kBlockOffset = 4096 + 256;
  // Of the last offer.
  uint64_t offered_ = 0;  // Its generation.
  uint32_t blocks_offered_ = 0;
  uint64_t bytes_offered_ = 0;
  gpushm_attachment* latest_ = nullptr;
  CUgraphExec graph_ = nullptr;
  uint32_t* word_ = nullptr;  // Pinned.
  std::optional<SignalCommands> signals_;
  std::optional<BarrierCommands> barriers_;
  std::optional<RingCommands> rings_;
  std::optional<KernelCommands> kernels_;
  std::optional<WaiterCommands> waiter_;
};

}  // namespace

int WorkerMain(const std::vector<std::string>& words) {
  if (words.size() != 2) return 1;
  Application application(words[0], words[1]);
  char line[512];
  for (;;) {
    const ssize_t length = recv(kChannel, line, sizeof line, 0);
    if (length <= 0) return 0;
    const Answer answer = application.Do(std::string(line, static_cast<size_t>(length)));
    const std::string text = Concat(answer.status, " ", answer.value);
    if (send(kChannel, text.data(), text.size(), MSG_NOSIGNAL) < 0) return 0;
  }
}

int IsolatedWorkerMain(const std::vector<std::string>& words) {
  if (words.size() != 1) return 1;
  Application application(words[0], "");
  for (std::string line; std::getline(std::cin, line);) {
    const Answer answer = application.Do(line);
    std::cout << answer.status << " " << answer.value << "\n" << std::flush;
  }
  return 0;
}

}  // namespace gpushm::integration
