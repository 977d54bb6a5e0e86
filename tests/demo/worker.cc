#include "tests/demo/worker.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/testing/must.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/demo/model.h"

namespace gpushm::demo {
namespace {

using gpushm::testing::Failure;
using gpushm::testing::Must;
using nlohmann::json;

constexpr char kBuffer[] = "weights";
constexpr int kAttachRounds = 201;

uint64_t NamespaceInode(const char* kind) {
  struct stat info{};
  const std::string path = Concat("/proc/self/ns/", kind);
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

double MicrosecondsSince(int64_t start_ns) {
  return static_cast<double>(MonotonicNs() - start_ns) / 1000.0;
}

// What the process holds until it ends.
struct Held {
  const CudaApi* api = nullptr;
  gpushm_client* client = nullptr;
  gpushm_attachment* attachment = nullptr;
  ~Held() { gpushm_close(client); }
};

// The alternative without gpushm: the same bytes go from the GPU to pinned host memory, and back
// into memory of this process.
double StagedCopyUs(const CudaApi& api, uint64_t source, uint64_t size_bytes) {
  const PinnedBuffer host = Must(PinnedBuffer::Allocate(api, size_bytes));
  CUdeviceptr copy = 0;
  Must(api.Check(api.cuMemAlloc(&copy, size_bytes), "cuMemAlloc"));
  const int64_t start_ns = MonotonicNs();
  Must(api.Check(api.cuMemcpyDtoH(host.data(), source, size_bytes), "copy down"));
  Must(api.Check(api.cuMemcpyHtoD(copy, host.data(), size_bytes), "copy up"));
  Must(api.Check(api.cuCtxSynchronize(), "cuCtxSynchronize"));
  const double took_us = MicrosecondsSince(start_ns);
  api.cuMemFree(copy);
  return took_us;
}

// Which generation the process holds, and whether the name still refers to it.
json Standing(const Held& held) {
  gpushm_attachment_info info;
  GPUSHM_INIT(&info);
  if (gpushm_attachment_get_info(held.attachment, &info) != GPUSHM_OK) {
    throw Failure(LastError());
  }
  return json{{"generation", info.generation},
              {"current", gpushm_attachment_check(held.attachment) == GPUSHM_OK}};
}

// The same as Standing, with a hash of the bytes that the GPU has now.
json LookAgain(const Held& held) {
  std::vector<std::byte> seen(gpushm_attachment_size(held.attachment));
  Must(held.api->Check(
      held.api->cuMemcpyDtoH(seen.data(), gpushm_attachment_address(held.attachment), seen.size()),
      "read back"));
  json report = Standing(held);
  report["hash"] = Hash(seen);
  return report;
}

// Compares every tensor with the file.
json CheckTensors(const CudaApi& api, uint64_t address, const Model& model) {
  std::vector<std::byte> seen(model.bytes().size());
  Must(api.Check(api.cuMemcpyDtoH(seen.data(), address, seen.size()), "read back"));
  size_t equal = 0;
  std::string first_wrong;
  for (const Tensor& tensor : model.tensors()) {
    if (std::memcmp(seen.data() + tensor.begin, model.bytes().data() + tensor.begin,
                    tensor.end - tensor.begin) == 0) {
      ++equal;
    } else if (first_wrong.empty()) {
      first_wrong = tensor.name;
    }
  }
  return json{{"tensors", model.tensors().size()},
              {"tensors_equal", equal},
              {"first_wrong", first_wrong},
              {"hash", Hash(seen)}};
}

json Use(const WorkerOptions& options, const Model& model, Held* held) {
  gpushm_attach_options attach;
  GPUSHM_INIT(&attach);
  attach.timeout_ms = options.timeout_ms;
  gpushm_wait_options wait;
  GPUSHM_INIT(&wait);
  wait.timeout_ms = options.timeout_ms;
  if (gpushm_wait(held->client, kBuffer, 0, &wait, nullptr) != GPUSHM_OK) {
    throw Failure(LastError());
  }
  // The first attach of a process includes the driver's first use, so several are measured.
  std::vector<double> attach_us;
  for (int round = 0; round < kAttachRounds; ++round) {
    if (held->attachment != nullptr) gpushm_attachment_detach(held->attachment, nullptr);
    const int64_t start_ns = MonotonicNs();
    if (gpushm_attach(held->client, kBuffer, &attach, &held->attachment) != GPUSHM_OK) {
      throw Failure(LastError());
    }
    attach_us.push_back(MicrosecondsSince(start_ns));
  }
  const double first_us = attach_us.front();
  std::sort(attach_us.begin() + 1, attach_us.end());
  const int64_t start_ns = MonotonicNs();
  gpushm_attachment* again = nullptr;
  if (gpushm_attach(held->client, kBuffer, &attach, &again) != GPUSHM_OK) {
    throw Failure(LastError());
  }
  const double cached_us = MicrosecondsSince(start_ns);
  gpushm_attachment_detach(again, nullptr);

  const uint64_t address = gpushm_attachment_address(held->attachment);
  json report = CheckTensors(*held->api, address, model);
  const double staged_us = StagedCopyUs(*held->api, address, model.bytes().size());
  report["attach_first_us"] = first_us;
  report["attach_us"] = attach_us[attach_us.size() / 2];
  report["attach_again_us"] = cached_us;
  report["staged_us"] = staged_us;
  return report;
}

json Load(const WorkerOptions& options, const Model& model, Held* held) {
  gpushm_transfer_options transfer;
  GPUSHM_INIT(&transfer);
  transfer.timeout_ms = options.timeout_ms;
  gpushm_transfer_result result;
  GPUSHM_INIT(&result);
  transfer.format = GPUSHM_FORMAT_RAW;  // The demo compares the file as a whole.
  if (gpushm_load(held->client, kBuffer, options.file.c_str(), &transfer, &result) != GPUSHM_OK) {
    throw Failure(LastError());
  }
  if (gpushm_attach(held->client, kBuffer, nullptr, &held->attachment) != GPUSHM_OK) {
    throw Failure(LastError());
  }
  json report = CheckTensors(*held->api, gpushm_attachment_address(held->attachment), model);
  report["load_us"] = static_cast<double>(result.elapsed_ns) / 1000.0;
  return report;
}

json Work(const WorkerOptions& options, Held* held) {
  const Model model = Must(Model::Open(options.file));
  held->api = Must(CudaApi::Load(options.driver));
  const std::vector<DeviceInfo> devices = Must(ListDevices(*held->api));

  gpushm_open_options open;
  GPUSHM_INIT(&open);
  open.folder = options.folder.c_str();
  open.driver = options.driver.empty() ? nullptr : options.driver.c_str();
  open.timeout_ms = options.timeout_ms;
  if (gpushm_open(&open, &held->client) != GPUSHM_OK) throw Failure(LastError());
  gpushm_broker_info broker;
  GPUSHM_INIT(&broker);
  if (gpushm_broker_get_info(held->client, &broker) != GPUSHM_OK) throw Failure(LastError());
  for (const DeviceInfo& device : devices) {
    if (std::memcmp(device.uuid.bytes.data(), broker.gpu_uuid, GPUSHM_UUID_BYTES) != 0) continue;
    // An application has a context; gpushm itself needs none.
    static const PrimaryContext context = Must(PrimaryContext::Retain(*held->api, device.device));
    Must(context.MakeCurrent());
    json report = options.loads ? Load(options, model, held) : Use(options, model, held);
    report.update(Standing(*held));
    report["mapped_bytes"] = gpushm_attachment_size(held->attachment);
    return report;
  }
  throw Failure(Code::kNotFound, "the broker's GPU is not visible here");
}

}  // namespace

Status LastError() {
  const gpushm_error* const error = gpushm_last_error();
  return Status(static_cast<Code>(error->status), error->what, error->remedy);
}

int RunWorker(const WorkerOptions& options) {
  Held held;
  bool good = true;
  const auto report = [&good](const auto& work) -> json {
    try {
      return work();
    } catch (const Failure& failure) {
      good = false;
      return {{"error", failure.status.ToString()}};
    }
  };
  json line = report([&] { return Work(options, &held); });
  line["pid"] = getpid();
  line["uid"] = getuid();
  line["ns"] = json{{"pid", NamespaceInode("pid")},
                    {"mnt", NamespaceInode("mnt")},
                    {"ipc", NamespaceInode("ipc")},
                    {"net", NamespaceInode("net")}};
  std::cout << line.dump() << "\n" << std::flush;
  // Holds its attachment until another word arrives.
  for (std::string word; good && std::getline(std::cin, word) && word == kLookWord;) {
    std::cout << report([&] { return LookAgain(held); }).dump() << "\n" << std::flush;
  }
  return good ? 0 : 1;
}

}  // namespace gpushm::demo
