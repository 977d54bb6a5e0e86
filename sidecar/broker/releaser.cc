#include "sidecar/broker/releaser.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "contract/sync/page.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "sidecar/broker/gpu.h"
#include "sidecar/broker/spawner.h"

namespace gpushm::broker {
namespace {

struct Arguments {
  ChildGpu gpu;
  std::vector<uint64_t> mapped_bytes;  // For each word's memory.
  std::string driver_folder;
  bool die = false;
};

// Stores one word with a stream operation, so a reader never sees half of it.
Result<void> StorePoison(const CudaApi& api, int device, int word, uint64_t mapped_bytes) {
  const Result<DeviceMemory> memory = DeviceMemory::Import(api, word);
  if (!memory) return std::unexpected(memory.error());
  const Result<DeviceMapping> mapping =
      DeviceMapping::Map(api, *memory, mapped_bytes, device, Access::kReadWrite);
  if (!mapping) return std::unexpected(mapping.error());
  if (auto r = api.Check(api.cuStreamWriteValue64(nullptr, mapping->address(), signal::kPoison,
                                                  CU_STREAM_WRITE_VALUE_DEFAULT),
                         "cuStreamWriteValue64 for the end of a signal");
      !r) {
    return r;
  }
  return api.Check(api.cuCtxSynchronize(), "cuCtxSynchronize");
}

Result<void> StoreAll(const Arguments& arguments) {
  const Result<Order> order = ReceiveOrder(arguments.mapped_bytes.size());
  if (!order) return std::unexpected(order.error());
  const int device = UseGpu(arguments.gpu);
  const Result<const CudaApi*> api = CudaApi::Load(arguments.driver_folder);
  if (!api) return std::unexpected(api.error());
  if (auto ready = (*api)->Init(); !ready) return ready;
  const Result<PrimaryContext> context = PrimaryContext::Retain(**api, device);
  if (!context) return std::unexpected(context.error());
  if (auto current = context->MakeCurrent(); !current) return current;
  if (arguments.die) raise(SIGKILL);
  Result<void> all;  // A failure for one word does not keep the others from being stored.
  for (size_t i = 0; i < arguments.mapped_bytes.size(); ++i) {
    const Result<void> stored =
        StorePoison(**api, device, order->descriptors[i].get(), arguments.mapped_bytes[i]);
    if (!stored && all) all = stored;
  }
  return all;
}

}  // namespace

int ReleaserMain(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // The broker's successor starts another releaser.
  ::signal(SIGPIPE, SIG_IGN);
  Arguments arguments;
  CLI::App app("The broker's releaser. Only the broker starts it.");
  app.add_option("--device", arguments.gpu.device);
  app.add_option("--visible", arguments.gpu.visible);
  app.add_option("--mapped", arguments.mapped_bytes)->required();
  app.add_option("--driver", arguments.driver_folder);
  app.add_flag("--test-die", arguments.die);
  CLI11_PARSE(app, argc, argv);
  const Result<void> stored = StoreAll(arguments);
  if (stored) return 0;
  const std::string why = stored.error().ToString() + '\n';
  [[maybe_unused]] const ssize_t written = write(kChannel, why.data(), why.size());
  return 1;
}

}  // namespace gpushm::broker
